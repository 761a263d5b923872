"""The places that are kept for waiting pods, and when each ends.

One place is kept on a node at a time, and :data:`MOST` in all: of several those that the API server
took first, by their annotations. So every replica keeps the same ones, whatever it has seen first.
The others take their turn as places end.

Who evicts first writes that a place is to be kept, and then which version that write got. Somebody
else may have written earlier and not have told the version yet, and then goes first. So the order
is not settled while there is a place without a version: until then nobody evicts
(:meth:`KeptPlaces.settled`). A watch shows the writes in their order; so who is first once it is
settled stays first. (Lamport's bakery: take a number, and let those pass who are about to.)
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from scheduler_extender.state.cluster.freshness import Due
from scheduler_extender.state.pods.keptplace import MAX_SECONDS, KeptPlace
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid

MOST = 64
ASKING_SECONDS = 30.0
"""Seconds for which a place without a version unsettles the order: its writer tells it at once, or
has died."""

_Order = tuple[float, PodUid]


@dataclass(frozen=True, slots=True)
class _Kept:
    pod: PodRecord
    place: KeptPlace
    deadline: float
    seen: float

    @property
    def order(self) -> _Order:
        return self.place.order, self.pod.uid


def is_not_scheduled(pod: PodRecord) -> bool:
    """Whether kube-scheduler does not look at a pod: nobody is kept off a node for it."""
    return pod.ended or pod.deleting or pod.gated


class KeptPlaces:
    """Who has a place kept, by UID. Times are in seconds of the cluster's clock."""

    def __init__(self) -> None:
        self._wanted: dict[PodUid, _Kept] = {}
        self._in_order: list[_Order] = []
        self.due = Due[PodUid]()  # pods by when their places end
        self._spent: dict[PodUid, KeptPlace] = {}
        """What was kept up to its end and is still written on the pod: it is not kept again."""

    def __len__(self) -> int:
        return min(MOST, len(self._wanted))

    def take(self, pod: PodRecord, now: float, today: float) -> set[NodeName]:
        """Take a pod in as it is now; the nodes on which another place may be kept from now on.

        ``today`` is the time of day in seconds since 1970.
        """
        wanted = pod.kept_place
        if wanted is None or pod.node is not None or is_not_scheduled(pod):
            return self.drop(pod.uid)
        if self._spent.get(pod.uid) == wanted:
            return set()
        known = self._wanted.get(pod.uid)
        if known is not None and known.place == wanted:
            deadline, seen = known.deadline, known.seen
        else:
            deadline, seen = now + min(wanted.until - today, MAX_SECONDS), now
        if deadline <= now:
            return self.end(pod.uid, wanted)
        self._spent.pop(pod.uid, None)
        before = self._nodes()
        self._put_out(pod.uid)
        kept = self._wanted[pod.uid] = _Kept(pod, wanted, deadline, seen)
        insort(self._in_order, kept.order)
        self.due.put(pod.uid, deadline)
        return self._changed(before) | {wanted.node}

    def drop(self, uid: PodUid) -> set[NodeName]:
        """Keep no place for a pod any more; the nodes as :meth:`take` gives them."""
        self._spent.pop(uid, None)
        self.due.drop(uid)
        if uid not in self._wanted:
            return set()
        before = self._nodes()
        self._put_out(uid)
        return self._changed(before)

    def end(self, uid: PodUid, place: KeptPlace | None = None) -> set[NodeName]:
        """The time of a pod's place is up; the nodes as :meth:`take` gives them."""
        place = place or self._wanted[uid].place
        changed = self.drop(uid)
        self._spent[uid] = place
        return changed

    def on(self, node: NodeName) -> PodRecord | None:
        """The pod for which a place is kept on a node."""
        return next((kept.pod for kept in self._first() if kept.place.node == node), None)

    def of(self, uid: PodUid) -> NodeName | None:
        """The node on which a pod's place is kept."""
        known = self._wanted.get(uid)
        if known is None:
            return None
        first = self.on(known.place.node)
        return known.place.node if first is not None and first.uid == uid else None

    def settled(self, now: float) -> bool:
        """Whether nobody can come before those that are kept now. O(places)."""
        return all(
            kept.place.version is not None or kept.seen + ASKING_SECONDS <= now
            for kept in self._wanted.values()
        )

    def waiting(self) -> list[PodRecord]:
        """The pods for which a place is kept, or will be once another one on its node ends."""
        return [kept.pod for kept in self._first()]

    def _first(self) -> list[_Kept]:
        return [self._wanted[uid] for _, uid in self._in_order[:MOST]]

    def _nodes(self) -> set[tuple[PodUid, NodeName]]:
        return {(kept.pod.uid, kept.place.node) for kept in self._first()}

    def _changed(self, before: set[tuple[PodUid, NodeName]]) -> set[NodeName]:
        return {node for _, node in before ^ self._nodes()}

    def _put_out(self, uid: PodUid) -> None:
        known = self._wanted.pop(uid, None)
        if known is not None:
            del self._in_order[bisect_left(self._in_order, known.order)]
