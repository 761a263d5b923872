"""How many pairs, quads and whole nodes can still be promised, and which free GPUs are stranded.

The map, the metrics and the demo's picture all take these figures from here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from topology.core.devices import Bytes, Mask
from topology.core.devicesets import only
from topology.core.dra import first_published
from topology.core.guaranteedcapacity import RequestClass, guaranteed_placements
from topology.core.links import LinkKind
from topology.core.memo import Memo
from topology.core.mig import MIG
from topology.core.placement import Rejection
from topology.core.requests import Constraints, gpu_request
from topology.core.shape import Shape

NVLINKED = Constraints(link=LinkKind.NVLINK)
# A required constraint that every GPU meets, unless it is sick.
ANY_GPU = Constraints(min_gpu_memory=Bytes(0))
PAIR, QUAD = 2, 4


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of placements that can still be promised, placed one after the other.

    Each figure assumes that only NVLinked pairs, only NVLinked quads, or only whole nodes are
    placed. The three figures must not be added up.
    """

    pairs: int = 0
    quads: int = 0
    nodes: int = 0

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(
            self.pairs + other.pairs, self.quads + other.quads, self.nodes + other.nodes
        )


class Capacities:
    """The capacity of nodes, cached by everything on which it depends.

    Any thread may use it. At worst two threads work out the same capacity.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = Memo[Hashable, Capacity]()

    def of(self, info: NodeInfo) -> Capacity:
        """Return the capacity of a node, computed by the code that decides about pods.

        GPUs that MIG splits are not counted. A node with shared GPUs never counts as a whole node.
        A fault in our own code is raised unchanged.
        """
        if info.topology is None or info.node_object.cordoned:
            return Capacity()
        topology = info.topology
        if not topology.allocator.serves_extended_resource:
            # Under DRA, claims get what a number of GPUs would get.
            topology = first_published(topology, ())
            info = replace(info, record=replace(info.record, topology=topology))
        names = [served.name for served in topology.resources if served.strategy != MIG]
        return sum((self._of(info, name) for name in names), Capacity())

    def _of(self, info: NodeInfo, resource: str) -> Capacity:
        key = (resource, info.key(resource))
        capacity = self._known.get(key)
        if capacity is None:
            capacity = self._work_out(info, resource)
            self._known.put(key, capacity)
        return capacity

    def _work_out(self, info: NodeInfo, resource: str) -> Capacity:
        offer = info.offer(resource)
        if isinstance(offer, Rejection):
            return Capacity()
        size = len(offer.topology.gpus)
        whole = offer.availability.width == 1 and self._takes(info, resource, size, ANY_GPU)
        return Capacity(self._many(info, offer, PAIR), self._many(info, offer, QUAD), int(whole))

    def _many(self, info: NodeInfo, offer: Offer, count: int) -> int:
        """Return how many placements of ``count`` GPUs can be promised; 0 if not even one can.

        Beyond the first, the number is the *guaranteed capacity* of scores
        (:mod:`topology.core.guaranteedcapacity`): the expectation over all sets that the node may
        hand out, rounded down. Unacknowledged pods take their GPUs first.
        """
        if not self._takes(info, offer.resource.name, count, NVLINKED):
            return 0
        now, kubelet = offer.availability, offer.kubelet
        healthy: Mask = kubelet.shape.all_gpus & ~now.sick
        free = only(now.free, healthy, now.width)
        many = int(guaranteed_placements(kubelet, free, RequestClass(count, NVLINKED)))
        return max(1, min(many, now.devices_left // count))

    def _takes(self, info: NodeInfo, resource: str, count: int, constraints: Constraints) -> bool:
        """Return whether the node would promise this request to the next pod."""
        decision = decide(info, gpu_request(count, constraints, resource=resource), self._settings)
        assessed = decision.assessment
        return decision.rejection is None and assessed is not None and assessed.verdict.holds


def stranded(shape: Shape, free: Mask) -> Mask:
    """Return the free GPUs without an NVLink to another free GPU; none if the node has no NVLinks.

    No pod can get a linked pair with them now.

    >>> from topology.machines import machine
    >>> bin(stranded(machine("a100-pcie-4-bridged").topology("n").shape, 0b1110))
    '0b10'
    """
    linked = shape.rows(frozenset(link for link in shape.distinct_links if link.nvlinks))
    if not any(linked):
        return 0
    return sum(1 << p for p in range(shape.size) if free >> p & 1 and not linked[p] & free)
