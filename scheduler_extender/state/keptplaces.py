"""The places that are kept for waiting pods, and when each ends.

One place is kept on a node at a time: of several the one that ends first, so that every replica
keeps the same one there. :data:`MOST` are kept in all; a pod that comes when there are so many gets
none, until it is seen again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.reserved import MAX_SECONDS, Reserved
from topology.core.devices import NodeName, PodUid

MOST = 64


@dataclass(frozen=True, slots=True)
class _Kept:
    pod: PodRecord
    reserved: Reserved
    deadline: float

    @property
    def order(self) -> tuple[float, PodUid]:
        return self.reserved.until, self.pod.uid


class KeptPlaces:
    """Who has a place kept, by UID. Times are in seconds of the cluster's clock."""

    def __init__(self) -> None:
        self._kept: dict[PodUid, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, pod: PodRecord, now: float, today: float) -> set[NodeName]:
        """Take a pod in as it is now; the nodes on which another place may be kept from now on.

        ``today`` is the time of day in seconds since 1970.
        """
        wanted = pod.reserved
        if wanted is None or pod.node is not None or pod.ended or pod.deleting:
            return self.drop(pod.uid)
        known = self._kept.get(pod.uid)
        if known is not None and known.reserved == wanted:
            deadline = known.deadline
        else:
            deadline = now + min(wanted.until - today, MAX_SECONDS)
        if deadline <= now or (known is None and len(self._kept) >= MOST):
            return self.drop(pod.uid)
        self._kept[pod.uid] = _Kept(pod, wanted, deadline)
        return {wanted.node} | ({known.reserved.node} if known is not None else set())

    def drop(self, uid: PodUid) -> set[NodeName]:
        """Keep no place for a pod any more; the nodes as :meth:`take` gives them."""
        known = self._kept.pop(uid, None)
        return set() if known is None else {known.reserved.node}

    def ended(self, now: float) -> Iterator[NodeName]:
        """Each node on which a place has been kept for too long, once; it is kept no more."""
        for uid, kept in [item for item in self._kept.items() if item[1].deadline <= now]:
            del self._kept[uid]
            yield kept.reserved.node

    def on(self, node: NodeName) -> PodRecord | None:
        """The pod for which a place is kept on a node."""
        here = [kept for kept in self._kept.values() if kept.reserved.node == node]
        return min(here, key=lambda kept: kept.order).pod if here else None

    def of(self, uid: PodUid) -> NodeName | None:
        """The node on which a pod's place is kept."""
        known = self._kept.get(uid)
        if known is None:
            return None
        first = self.on(known.reserved.node)
        return known.reserved.node if first is not None and first.uid == uid else None

    def waiting(self) -> list[PodRecord]:
        """The pods for which a place is kept."""
        return [kept.pod for kept in self._kept.values()]
