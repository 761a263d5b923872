"""Who leads, by a Lease: what one replica writes next, and until when it may answer.

A state machine without I/O or clock. Times are seconds of the caller's clock, which runs on while
the process is paused. The election only decides who answers, and how soon another takes over. No
GPU is given twice even if it goes wrong: :mod:`.fence` sees to that.
"""

from dataclasses import dataclass, replace
from enum import Enum

# The share of a Lease's duration for which its holder counts on it. The holder counts from the
# moment before it asked for the Lease, the others wait for the whole duration from when they see
# it. So even if clocks run 5 % fast or slow (0.9 / 0.95 < 1 / 1.05), the holder stops before
# another begins.
HOLDS = 0.9


# A leader offers its Lease after it has been stale for so many seconds and has renewed the Lease
# all the time. While the API server is away nobody renews a Lease, so an outage offers nothing.
OFFERED_AFTER = 10.0


class Step(Enum):
    """What to write to the Lease now."""

    NOTHING = "nothing"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class Lease:
    """The Lease as the API server has it."""

    holder: str = ""  # empty if nobody leads
    seconds: float = 0.0  # its duration
    term: int = 0  # counts the holders
    drained: int = -1  # the term whose holder has said that all its binds are written
    version: str = ""  # the resourceVersion; empty for a Lease that does not exist yet
    offered: bool = False  # its holder is stale: a replica that sees may take it, at once


class Election:
    """What one replica knows of the Lease. ``identity`` names this process alone, ``seconds`` is
    the duration that it writes."""

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
        self._after = Lease()

    @property
    def holds(self) -> bool:
        """Whether the Lease names us, even if it has run out."""
        return self.lease is not None and self.lease.holder == self.identity

    @property
    def term(self) -> int:
        """The number of our term, if the Lease names us."""
        return self.lease.term if self.lease is not None else 0

    @property
    def after_drained(self) -> bool:
        """Whether the leader before us has said that all its binds are written."""
        return self._after.drained == self._after.term

    def others_count_on_it(self, now: float) -> float:
        """For how many seconds at most another holder may still count on a Lease that we have seen.

        0 if that Lease has run out. More than 0 if somebody has shortened or deleted it, or if we
        took it because it was offered: its former holder may not know yet.
        """
        return max(0.0, self._others_until - now)

    def leads(self, now: float) -> bool:
        """Whether the Lease is ours and has not run out."""
        return self.holds and now < self._until

    def saw(self, lease: Lease, now: float) -> None:
        """Take in the Lease as it was read. Any change of it starts the wait anew."""
        if self.lease is None or lease.version != self.lease.version:
            self.lease, self._since = lease, now
            if lease.holder not in ("", self.identity):
                self._others_until = max(self._others_until, now + lease.seconds)
        self._highest = max(self._highest, lease.term)

    def heard_of(self, term: int, *, others: int = 0) -> None:
        """Take in a term that our watch has shown: our own next term must be higher.

        ``others`` is the latest term that another replica has begun. If a Lease is deleted at the
        wrong moment, it may have the same number as ours, and then neither of us leads in it.
        """
        self._highest = max(self._highest, term)
        self._others = max(self._others, others)

    def looked(self, *, sees: bool) -> None:
        """Take in whether our watches tell us now what happens in the cluster."""
        self._sees = sees

    def step(self, now: float) -> Step:
        """What to write now."""
        lease = self.lease
        if lease is None:
            return Step.NOTHING
        if self.holds:
            # If not, another has begun such a term, on a Lease that was deleted since.
            ours = lease.term >= self._highest and lease.term > self._others
            return Step.RENEW if ours else Step.TAKE
        over = (
            not lease.holder
            or (lease.offered and self._sees)
            or now - self._since >= max(lease.seconds, self._seconds)
        )
        return Step.TAKE if over else Step.NOTHING

    def wanted(self, step: Step) -> Lease:
        """The Lease to write for :attr:`Step.TAKE` or :attr:`Step.RENEW`, over the version seen."""
        seen = self.lease or Lease()
        if step is Step.TAKE:
            self._after = seen
            seen = replace(seen, holder=self.identity, term=self._highest + 1)
        stale_for = 0.0 if self._sees else self._written - self._stale_since
        offered = step is Step.RENEW and stale_for >= OFFERED_AFTER
        return replace(seen, seconds=self._seconds, drained=-1, offered=offered)

    def released(self, *, drained: bool) -> Lease:
        """The Lease to write when we resign: nobody holds it."""
        seen = self.lease or Lease()
        return replace(seen, holder="", drained=seen.term if drained else -1, offered=False)

    def wrote(self, lease: Lease, asked: float, now: float) -> None:
        """Take in that a write was accepted. ``asked`` is the moment before it was sent."""
        self.saw(lease, now)
        if self._sees or asked - self._written > self._seconds:
            self._stale_since = now
        self._written = now
        if self.holds:
            self._until = asked + HOLDS * self._seconds
