"""The domain to which filter sends a gang that its scheduler is asking about.

The scheduler asks about one member after the other and binds nobody before the end. It offers the
nodes that have the GPUs by its own count, in which pods stand that we have not heard of, and the
members so far. So the best domain among those offered need not be the same for all members, and a
gang that is sent to two domains is bound in part. Hence who is asked next follows who was asked
before. A member that is asked a second time begins a new *round*, and the domain is chosen anew:
one to which somebody could not follow comes last then.

It is a hint of the last minute, and nothing else depends on it: after a restart the first member
that is asked about chooses.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from scheduler_extender.membership import Membership
from topology.core.devices import PodUid

SECONDS = 60.0
"""For how long a round is remembered after somebody was sent to its domain."""
MOST_IN_VAIN = 16
"""Domains to which a gang was sent in vain, that are remembered of each."""
MOST_MEMBERS = 65_536
"""Members that are remembered; where there are more, the gang that was asked about first is
forgotten."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Where a member has to go: to ``domain``, or to any where it is None. ``in_vain`` are domains
    to which a member could not follow, the latest at the end."""

    domain: str | None = None
    in_vain: tuple[str, ...] = ()

    def rank(self, domain: str) -> int:
        """Those with a lower rank are chosen first; the domain that was in vain just now is last.

        >>> direction = Direction(in_vain=("west", "east"))
        >>> sorted(["east", "north", "west"], key=direction.rank)
        ['north', 'west', 'east']
        """
        return 1 + self.in_vain.index(domain) if domain in self.in_vain else 0


ANYWHERE = Direction()


@dataclass(slots=True)
class _Round:
    """Who has been asked about, and where they were sent; it is over at ``until``."""

    until: float
    domain: str | None = None
    in_vain: tuple[str, ...] = ()
    asked: set[PodUid] = field(default_factory=set)


class GangDomains:
    """The gangs that were asked about lately, by what their members say of them. Times are in
    seconds of the cluster's clock."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[Membership, _Round] = OrderedDict()
        self._members = 0

    def __len__(self) -> int:
        """How many members are remembered."""
        return self._members

    def of(self, gang: Membership, uid: PodUid, now: float) -> Direction:
        """Where a member has to go. O(1)."""
        known = self._rounds.get(gang)
        if known is None or known.until <= now:
            return ANYWHERE
        return Direction(None if uid in known.asked else known.domain, known.in_vain)

    def answered(self, gang: Membership, uid: PodUid, domain: str | None, now: float) -> None:
        """A member was sent to a domain, or nowhere. O(1), but for gangs that are forgotten."""
        known = self._rounds.get(gang)
        if known is None or known.until <= now or uid in known.asked:
            known = self._begin(gang, now)
        if domain is not None:
            known.domain, known.until = domain, now + SECONDS
        elif known.domain is not None:
            others = (domain for domain in known.in_vain if domain != known.domain)
            known.in_vain = (*others, known.domain)[-MOST_IN_VAIN:]
        known.asked.add(uid)
        self._members += 1
        while self._members > MOST_MEMBERS:
            _, oldest = self._rounds.popitem(last=False)
            self._members -= len(oldest.asked)

    def _begin(self, gang: Membership, now: float) -> _Round:
        """A new round; it knows which domains were in vain before, until all of it is forgotten."""
        before = self._rounds.pop(gang, None)
        begun = self._rounds[gang] = _Round(now + SECONDS)
        if before is not None:
            self._members -= len(before.asked)
            if before.until > now:
                begun.in_vain = before.in_vain
        return begun
