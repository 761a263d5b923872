"""The domain to which filter sends the members of a gang, one after the other.

kube-scheduler or a gang scheduler asks about one member after the other, and binds none before the
end. It offers the nodes that have the GPUs by its own count. That count includes pods that we have
not heard of, and the members so far. So the best of the offered domains may differ from member to
member, and a gang that is sent to two domains is bound only in part. Hence the first member chooses
a domain, and all others follow.

Nothing tells us where a cycle of the scheduler ends, or who sends a request: a dry run or a second
scheduler may ask about any member at any time. So no single call changes the domain. The gang gives
its domain up only if a member could not follow, and then no member was sent there for :data:`QUIET`
seconds. The scheduler is then between two cycles. The next member chooses a domain anew, and the
one that was given up is the last choice.

This is a hint that expires after a minute, and nothing else depends on it. After a restart the next
member chooses.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from scheduler_extender.groupreference import GroupReference

SECONDS = 60.0  # seconds for which a domain is kept after a member was last sent there
# Seconds without a member that was sent to the domain, after which a cycle is over. Members of one
# cycle follow each other within milliseconds. The next cycle begins at least a second later.
QUIET = 0.5
# The number of domains that are kept for each gang because it was sent there in vain.
MOST_IN_VAIN = 16
# The number of gangs that are kept. With more, the gang that was sent longest ago is forgotten.
MOST_GANGS = 4096


@dataclass(frozen=True, slots=True)
class Direction:
    """The domain that a gang member must go to; None for any domain.

    ``in_vain`` are domains to which a member could not follow, the latest at the end.
    """

    domain: str | None = None
    in_vain: tuple[str, ...] = ()

    def rank(self, domain: str) -> int:
        """Return a number by which domains are sorted; the lowest is chosen first.

        The domain that was in vain last comes last.

        >>> direction = Direction(in_vain=("west", "east"))
        >>> sorted(["east", "north", "west"], key=direction.rank)
        ['north', 'west', 'east']
        """
        return 1 + self.in_vain.index(domain) if domain in self.in_vain else 0


ANY_DOMAIN = Direction()


@dataclass(slots=True)
class _Sent:
    """The domain of a gang, and when a member was last sent there.

    ``failed`` says that a member could not follow.
    """

    domain: str
    at: float
    in_vain: tuple[str, ...] = ()
    failed: bool = False


class GangDomains:
    """The gangs that were recently sent to a domain, by the group reference of their members.

    Safe for many threads. Times are in seconds of the cluster's clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: OrderedDict[GroupReference, _Sent] = OrderedDict()

    def __len__(self) -> int:
        """Return how many gangs are kept."""
        return len(self._sent)

    def of(self, gang: GroupReference, now: float) -> Direction:
        """Return where a member of a gang must go. O(1)."""
        known = self._sent.get(gang)
        if known is None or known.at + SECONDS <= now:
            return ANY_DOMAIN
        if not known.failed or now < known.at + QUIET:
            return Direction(known.domain, known.in_vain)
        others = (domain for domain in known.in_vain if domain != known.domain)
        return Direction(None, (*others, known.domain)[-MOST_IN_VAIN:])

    def answered(self, gang: GroupReference, domain: str | None, now: float) -> None:
        """Note that a member was sent to a domain, or that none was found for it (None). O(1)."""
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
