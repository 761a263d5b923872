"""What is free on nodes besides devices: CPU, memory, and whatever else kube-scheduler counts.

A guaranteed place is one of GPUs. kube-scheduler sends nobody there whose requests are more than
the node's allocatable less the requests of its pods. Pods with devices are among a node's facts.
What the others ask for is asked of somebody else, node by node, and only of nodes that matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_extender.deadline import OutOfTimeError
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.standing import Amounts, Others, nobody_knows
from topology.core.devices import NodeName

MAX_NODES = 200
"""Nodes of which one search asks what their other pods ask for."""


class Spare:
    """The room on all nodes. ``unknown`` are those of which it was not known when it was asked for:
    they count as having room."""

    def __init__(self, others: Others = nobody_knows) -> None:
        self._others = others
        self._known: dict[NodeName, Amounts | None] = {}
        self.unknown: set[NodeName] = set()

    def takes(self, facts: NodeFacts, pod: PodRecord) -> bool:
        """Whether a pod fits on a node beside the pods of these facts.

        Raises :class:`.OutOfTimeError` for one node more than :data:`MAX_NODES`.
        """
        asks = wanted(pod)
        if facts.node_object.allocatable is None:
            return True  # as in a cluster file: no limit is known
        others = self._of(facts.name)
        if others is None:
            self.unknown.add(facts.name)
        free = dict(facts.node_object.allocatable)
        _subtract(free, others or ())
        coming = facts.kept_for
        nominated = coming is not None and coming.kept_place and coming.kept_place.by_nomination
        waiting = (coming,) if coming is not None and nominated else ()
        for each in (*facts.pods.living, *waiting):
            if not each.ended and each.uid != pod.uid:
                _subtract(free, wanted(each))
        return all(free.get(name, 0) >= amount for name, amount in asks)

    def _of(self, name: NodeName) -> Amounts | None:
        if name not in self._known:
            if len(self._known) >= MAX_NODES:
                raise OutOfTimeError
            self._known[name] = self._others(name)
        return self._known[name]


def wanted(pod: PodRecord) -> Amounts:
    """What a pod with devices needs besides them: what it asks for, and its own place."""
    asks = [item for item in pod.standing.asks if item[0] != resource_of(pod)]
    return (*asks, ("pods", 1000))


def _subtract(free: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for name, amount in amounts:
        free[name] = free.get(name, 0) - amount
