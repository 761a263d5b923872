"""The leader election by a Lease: what one replica writes next, and until when it may answer.

This is a state machine without I/O or clock. Times are seconds of the caller's clock, which runs on
while the process is paused. The election only decides which replica answers, and how soon another
replica takes over. Even if the election fails, no GPU is given twice, because :mod:`.fence`
prevents that.
"""

from dataclasses import dataclass, replace
from enum import Enum

# The share of a Lease's duration for which its holder relies on it. The holder counts from the time
# just before it sends its write; the other replicas wait for the whole duration from the time at
# which they see the Lease. So even if clocks run 5 % fast or slow (0.9 / 0.95 < 1 / 1.05), the
# holder stops before another replica begins.
HOLDS = 0.9


# A leader offers its Lease after its watches have been stale for this many seconds while it renewed
# the Lease all the time. While the API server is down no replica can renew a Lease, so an outage of
# the API server causes no offer.
OFFERED_AFTER = 10.0


class Step(Enum):
    """The next write to the Lease."""

    NOTHING = "nothing"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class Lease:
    """The Lease as the API server has it."""

    holder: str = ""  # empty if no replica leads
    seconds: float = 0.0  # its duration
    term: int = 0  # counts the holders
    drained: int = -1  # the term whose holder has declared that all its binds are written
    version: str = ""  # the resourceVersion; empty for a Lease that does not exist yet
    offered: bool = False  # its holder is stale; a replica with fresh watches may take it at once


class Election:
    """One replica's knowledge of the Lease.

    ``identity`` is unique to this process. ``seconds`` is the duration that it writes.
    """

    def __init__(self, identity: str, seconds: float) -> None:
        self.identity = identity
        self._seconds = seconds
        self.lease: Lease | None = None  # as it was last seen; None before
        self._since = 0.0
        self._until = float("-inf")
        self._others_until = float("-inf")
        self._highest = self._others = 0
        self._sees = True
        self._written = self._stale_since = float("-inf")
        self._taken_from = Lease()

    @property
    def holds(self) -> bool:
        """Whether the Lease names this replica, even if the Lease has expired."""
        return self.lease is not None and self.lease.holder == self.identity

    @property
    def term(self) -> int:
        """The term in the Lease; it is this replica's term if :attr:`holds`. 0 before any read."""
        return self.lease.term if self.lease is not None else 0

    @property
    def after_drained(self) -> bool:
        """Whether the previous leader has declared that all its binds are written."""
        return self._taken_from.drained == self._taken_from.term

    def others_count_on_it(self, now: float) -> float:
        """Return how many seconds, at most, another holder may still rely on its Lease.

        The result is 0 if every Lease of another holder that we have seen has expired. It is more
        than 0 if such a Lease was shortened or deleted, or if we took it because it was offered:
        its former holder may not know yet.
        """
        return max(0.0, self._others_until - now)

    def leads(self, now: float) -> bool:
        """Check whether this replica holds the Lease and the Lease has not expired."""
        return self.holds and now < self._until

    def saw(self, lease: Lease, now: float) -> None:
        """Record the Lease as it was read. Any change of the Lease restarts the wait."""
        if self.lease is None or lease.version != self.lease.version:
            self.lease, self._since = lease, now
            if lease.holder not in ("", self.identity):
                self._others_until = max(self._others_until, now + lease.seconds)
        self._highest = max(self._highest, lease.term)

    def heard_of(self, term: int, *, others: int = 0) -> None:
        """Record a term that our watch has shown. Our next own term must be higher.

        ``others`` is the latest term that another replica has begun. If the Lease is deleted at an
        unlucky time, that term may have the same number as ours. Then neither replica leads in it.
        """
        self._highest = max(self._highest, term)
        self._others = max(self._others, others)

    def looked(self, *, sees: bool) -> None:
        """Record whether our watches are fresh now (``sees``)."""
        self._sees = sees

    def step(self, now: float) -> Step:
        """Return the write that is due now."""
        lease = self.lease
        if lease is None:
            return Step.NOTHING
        if self.holds:
            # Otherwise another replica has begun such a term, on a Lease that was deleted since.
            ours = lease.term >= self._highest and lease.term > self._others
            return Step.RENEW if ours else Step.TAKE
        over = (
            not lease.holder
            or (lease.offered and self._sees)
            or now - self._since >= max(lease.seconds, self._seconds)
        )
        return Step.TAKE if over else Step.NOTHING

    def wanted(self, step: Step) -> Lease:
        """Return the Lease to write for :attr:`Step.TAKE` or :attr:`Step.RENEW`.

        It names the version that was last seen, so that the write fails if the Lease has changed.
        """
        seen = self.lease or Lease()
        if step is Step.TAKE:
            self._taken_from = seen
            seen = replace(seen, holder=self.identity, term=self._highest + 1)
        stale_for = 0.0 if self._sees else self._written - self._stale_since
        offered = step is Step.RENEW and stale_for >= OFFERED_AFTER
        return replace(seen, seconds=self._seconds, drained=-1, offered=offered)

    def released(self, *, drained: bool) -> Lease:
        """Return the Lease to write when this replica resigns. It has no holder."""
        seen = self.lease or Lease()
        return replace(seen, holder="", drained=seen.term if drained else -1, offered=False)

    def wrote(self, lease: Lease, asked: float, now: float) -> None:
        """Record an accepted write. ``asked`` is the time just before the write was sent."""
        self.saw(lease, now)
        if self._sees or asked - self._written > self._seconds:
            self._stale_since = now
        self._written = now
        if self.holds:
            self._until = asked + HOLDS * self._seconds
