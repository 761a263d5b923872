"""Who leads, by a Lease: what one replica writes next, and up to when it may answer.

A state machine without I/O or clock. Times are seconds of the caller's own clock, which runs on
while the process is paused. That no GPU is given twice does not depend on any of it (that is
:mod:`.fence`); it decides who answers, and how soon another takes over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

# The share of a Lease's duration for which its holder counts on it, from before it asked for it.
# The others wait for the whole of it, from when they see it; so with clocks that run 5 % fast or
# slow (0.9 / 0.95 < 1 / 1.05) the holder has stopped before another begins.
HOLDS = 0.9


# Seconds for which a leader has been blind, and has renewed its Lease all the time, until it offers
# the Lease to a replica that sees. While the API server is away nobody renews a Lease: so an outage
# offers nothing, and after it there is so much time to see again.
OFFERED_AFTER = 10.0


class Step(Enum):
    """What to write to the Lease now."""

    NOTHING = "nothing"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class Lease:
    """The Lease as the API server has it.

    ``holder`` is empty where nobody leads. ``seconds`` is its duration. ``term`` counts the
    holders. ``drained`` is the term whose holder has said that all its binds are written.
    ``version`` is the resourceVersion, empty for a Lease that does not exist yet. ``offered`` says
    that the holder is blind and leaves the Lease to a replica that sees; up to then it leads on.
    """

    holder: str = ""
    seconds: float = 0.0
    term: int = 0
    drained: int = -1
    version: str = ""
    offered: bool = False


class Election:
    """What one replica knows of the Lease. ``identity`` is this process's alone, ``seconds`` the
    duration that it writes."""

    def __init__(self, identity: str, seconds: float) -> None:
        self.identity = identity
        self._seconds = seconds
        self._lease: Lease | None = None
        self._since = 0.0
        self._until = float("-inf")
        self._others_until = float("-inf")
        self._highest = self._others = 0
        self._sees = True
        self._written = self._blind_since = float("-inf")
        self._after = Lease()

    @property
    def lease(self) -> Lease | None:
        """The Lease as it was last seen; None before."""
        return self._lease

    @property
    def holds(self) -> bool:
        """Whether the Lease names us, if perhaps no longer in time."""
        return self._lease is not None and self._lease.holder == self.identity

    @property
    def term(self) -> int:
        """The number of our term, if the Lease names us."""
        return self._lease.term if self._lease is not None else 0

    @property
    def after_drained(self) -> bool:
        """Whether whoever led before our term has said that all its binds are written."""
        return self._after.drained == self._after.term

    def others_count_on_it(self, now: float) -> float:
        """For how many seconds at most another may still count on a Lease that we have seen.

        None, where it was renewed up to the end and has run out. Where somebody has shortened or
        deleted it, or where it was taken as offered, its former holder goes on up to then.
        """
        return max(0.0, self._others_until - now)

    def leads(self, now: float) -> bool:
        """Whether the Lease is ours and has not run out."""
        return self.holds and now < self._until

    def saw(self, lease: Lease, now: float) -> None:
        """The Lease was read. Whatever has changed in it starts the wait anew."""
        if self._lease is None or lease.version != self._lease.version:
            self._lease, self._since = lease, now
            if lease.holder not in ("", self.identity):
                self._others_until = max(self._others_until, now + lease.seconds)
        self._highest = max(self._highest, lease.term)

    def heard_of(self, term: int, *, others: int = 0) -> None:
        """A term was heard of elsewhere: a Lease that was deleted must not begin anew below it.

        ``others`` is the latest that another replica has begun. Where a Lease is deleted at the
        wrong moment it may have the same number as ours, and then neither of us leads in it.
        """
        self._highest = max(self._highest, term)
        self._others = max(self._others, others)

    def looked(self, *, sees: bool) -> None:
        """Whether our watches tell us what happens in the cluster, as of now."""
        self._sees = sees

    def step(self, now: float) -> Step:
        """What to write now."""
        lease = self._lease
        if lease is None:
            return Step.NOTHING
        if self.holds:
            # Else another has begun such a term, on a Lease that was deleted since.
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
        seen = self._lease or Lease()
        if step is Step.TAKE:
            self._after = seen
            seen = replace(seen, holder=self.identity, term=self._highest + 1)
        blind_for = 0.0 if self._sees else self._written - self._blind_since
        offered = step is Step.RENEW and blind_for >= OFFERED_AFTER
        return replace(seen, seconds=self._seconds, drained=-1, offered=offered)

    def released(self, *, drained: bool) -> Lease:
        """The Lease to write where we resign: nobody holds it."""
        seen = self._lease or Lease()
        return replace(seen, holder="", drained=seen.term if drained else -1, offered=False)

    def wrote(self, lease: Lease, asked: float, now: float) -> None:
        """A write was accepted. ``asked`` is the moment just before it was sent."""
        self.saw(lease, now)
        if self._sees or asked - self._written > self._seconds:
            self._blind_since = now
        self._written = now
        if self.holds:
            self._until = asked + HOLDS * self._seconds
