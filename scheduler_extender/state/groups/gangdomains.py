"""The domain to which filter sends a gang that its scheduler is asking about.

The scheduler asks about one member after the other and binds nobody before the end. It offers the
nodes that have the GPUs by its own count, in which pods stand that we have not heard of, and the
members so far. So the best domain among those offered need not be the same for all members, and a
gang that is sent to two domains is bound in part. Hence the first member that is asked about
chooses, and all others follow.

Nobody tells us where a cycle of the scheduler ends, nor who asks: a dry run or a second scheduler
may ask about any member at any time. So no single call changes the domain. It is given up only when
a member could not follow and then, for :data:`QUIET` seconds, none was sent there: the scheduler is
between two cycles. The next member that is asked about chooses anew, and the domain that was given
up comes last.

It is a hint of the last minute, and nothing else depends on it: after a restart the first member
that is asked about chooses.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from scheduler_extender.groupreference import GroupReference

SECONDS = 60.0
"""For how long a domain is remembered after somebody was sent there."""
QUIET = 0.5
"""Seconds without a member that was sent to the domain, after which a cycle is over. Members of one
cycle follow each other within milliseconds; the next cycle begins a second later at least."""
MOST_IN_VAIN = 16
"""Domains to which a gang was sent in vain, that are remembered of each."""
MOST_GANGS = 4096
"""Gangs that are remembered; of more the one that was asked about longest ago is forgotten."""


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


ANY_DOMAIN = Direction()


@dataclass(slots=True)
class _Sent:
    """Where a gang was sent, and when a member was last sent there; ``failed`` where a member could
    not follow."""

    domain: str
    at: float
    in_vain: tuple[str, ...] = ()
    failed: bool = False


class GangDomains:
    """The gangs that were asked about lately, by what their members say of them. Safe for many
    threads. Times are in seconds of the cluster's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: OrderedDict[GroupReference, _Sent] = OrderedDict()

    def __len__(self) -> int:
        """How many gangs are remembered."""
        return len(self._sent)

    def of(self, gang: GroupReference, now: float) -> Direction:
        """Where a member has to go. O(1)."""
        known = self._sent.get(gang)
        if known is None or known.at + SECONDS <= now:
            return ANY_DOMAIN
        if not known.failed or now < known.at + QUIET:
            return Direction(known.domain, known.in_vain)
        others = (domain for domain in known.in_vain if domain != known.domain)
        return Direction(None, (*others, known.domain)[-MOST_IN_VAIN:])

    def answered(self, gang: GroupReference, domain: str | None, now: float) -> None:
        """A member was sent to a domain, or nowhere. O(1)."""
        with self._lock:
            direction, known = self.of(gang, now), self._sent.get(gang)
            if domain is None:
                if known is not None and direction.domain is not None:
                    known.failed = True
            elif known is not None and direction.domain == domain:
                known.at = now
                self._sent.move_to_end(gang)
            elif direction.domain is None:
                self._sent[gang] = _Sent(domain, now, direction.in_vain)
                self._sent.move_to_end(gang)
                if len(self._sent) > MOST_GANGS:
                    self._sent.popitem(last=False)
