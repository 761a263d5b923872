"""Binds in flight: pods that count on a node before the API server has told us of it."""

from dataclasses import replace

from scheduler_extender.state.cluster.board import Board
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import NodeName, PodUid


class Binds:
    """The binds in flight. Methods may be called from any thread."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lock, self._nodes, self._pods = board.lock, board.nodes, board.pods

    def begin(
        self, name: NodeName, pod: PodRecord, *, seen: NodeFacts | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server knows: its bind is in flight.

        With ``seen`` only while the answer that was worked out on these facts holds; else None.
        That is while the node is still in the same state, and in the same state without this pod
        if a bind of it is in flight here already: it is decided about as if it were not there.
        """
        with self._lock:
            self._board.expire()
            facts = self._nodes.get(name)
            if seen is not None and facts is not seen:
                resource = resource_of(pod)
                if facts.key(resource) != seen.key(resource):
                    return None
                gone = frozenset({pod.uid} & facts.pods.in_flight.keys())
                if gone and facts.without(gone).key(resource) != seen.without(gone).key(resource):
                    return None
            ours = replace(pod, node=name)
            self._fly(name, ours)
            return ours

    def take_back(self, ours: PodRecord, before: PodRecord | None) -> None:
        """Undo :meth:`begin`: the bind was surely not written. ``before`` stands again.

        Nothing happens where it is not ours any more: another bind of the pod has begun, or its
        end is known.
        """
        with self._lock:
            if self.of(ours.uid) is not ours:
                return
            if before is None:
                self.release(ours.uid)
            else:
                self._fly(before.node or NodeName(""), before)

    def release(self, uid: PodUid) -> None:
        """End a bind in flight: it failed for sure, or the pod's own record has taken over."""
        with self._lock:
            flying = self._pods.in_flight.pop(uid)
            if flying is not None and flying.node is not None:
                self._board.reserve(flying.node)

    def of(self, uid: PodUid) -> PodRecord | None:
        """A pod's bind in flight, if there is one."""
        with self._lock:
            return self._pods.in_flight.get(uid)

    def _fly(self, name: NodeName, pod: PodRecord) -> None:
        self._pods.in_flight.put(pod.uid, pod)
        self._board.reserve(name)
