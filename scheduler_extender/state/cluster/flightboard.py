"""The binds in flight, under the cluster's lock: pods that count on a node before the API server
has told us that they are bound there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.cluster.groupboard import GroupBoard
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import NodeName, PodUid


class FlightBoard(GroupBoard):
    """A board that knows binds in flight, too."""

    def __init__(
        self,
        clock: Callable[[], float],
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        super().__init__(clock, settings, watches)
        self._in_flight: dict[PodUid, NodeName] = {}

    def begin_bind(
        self, name: NodeName, pod: PodRecord, *, seen: NodeFacts | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server knows: its bind is in flight.

        With ``seen`` only while the answer that was worked out on these facts holds; else None.
        That is while the node is still in the same state, and in the same state without this pod
        if a bind of it is in flight here already: it is decided about as if it were not there.
        """
        with self._lock:
            self._expire()
            facts = self._facts(name)
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
        """Undo :meth:`begin_bind`: the bind was surely not written. ``before`` stands again.

        Nothing happens where it is not ours any more: another bind of the pod has begun, or its
        end is known.
        """
        with self._lock:
            if self.bind_in_flight(ours.uid) is not ours:
                return
            if before is None:
                self.release(ours.uid)
            else:
                self._fly(before.node or NodeName(""), before)

    def release(self, uid: PodUid) -> None:
        """End a bind in flight: it failed for sure, or the pod's own record has taken over."""
        with self._lock:
            name = self._in_flight.pop(uid, None)
            if name is not None:
                known = self._pods.get(uid)
                if known is None or known.node is None:
                    self._groups.drop(uid)
                    if known is not None:
                        self._groups.expect(known)
                self._put(transitions.without_bind_in_flight(self._facts(name), uid))

    def bind_in_flight(self, uid: PodUid) -> PodRecord | None:
        """A pod's bind in flight, if there is one."""
        with self._lock:
            name = self._in_flight.get(uid)
            return None if name is None else self._nodes[name].pods.in_flight[uid]

    def in_flight(self) -> list[PodRecord]:
        """Every bind in flight."""
        with self._lock:
            return [self._nodes[name].pods.in_flight[uid] for uid, name in self._in_flight.items()]

    def _fly(self, name: NodeName, pod: PodRecord) -> None:
        self._put(transitions.with_bind_in_flight(self._facts(name), pod))
        self._in_flight[pod.uid] = name
        self._groups.put(pod)
