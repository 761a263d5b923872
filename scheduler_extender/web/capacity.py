"""How many pairs, quads and whole nodes the cluster can still promise."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from scheduler_extender.explain import ANY_GPU
from scheduler_extender.state.decision import Settings, decide
from scheduler_extender.state.ledger import Ledger
from scheduler_extender.state.node import NodeFacts
from topology.core.devices import Mask
from topology.core.links import LinkKind
from topology.core.pools import only
from topology.core.requests import Constraints, gpu_request
from topology.core.scoring import RequestClass, promises

NVLINKED = Constraints(link=LinkKind.NVLINK)
KINDS = {"pair": 2, "quad": 4}
"""What is counted, and of how many GPUs it is; each two of them have an NVLink."""
REMEMBERED = 20_000
"""States of nodes whose capacity is remembered."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What can still be promised, one placement after the other: NVLinked pairs alone, or NVLinked
    quads alone, or whole nodes alone; the three do not add up."""

    pairs: int = 0
    quads: int = 0
    nodes: int = 0

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(
            self.pairs + other.pairs, self.quads + other.quads, self.nodes + other.nodes
        )


class Capacities:
    """The capacity of nodes, remembered by what it depends on. One thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[Hashable, Capacity] = {}

    def of(self, facts: NodeFacts, resource: str = "nvidia.com/gpu") -> Capacity:
        """What a node can still promise of whole GPUs, by the code that decides about pods."""
        if facts.topology is None or facts.topology.resource(resource) is None or facts.cordoned:
            return Capacity()
        key = facts.key(resource)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._work_out(facts, resource)
        return found

    def _work_out(self, facts: NodeFacts, resource: str) -> Capacity:
        ledger = facts.ledger(resource)
        assert facts.topology is not None  # noqa: S101 (the caller looked)
        if not isinstance(ledger, Ledger):
            return Capacity()
        counted = {name: self._many(facts, resource, ledger, n) for name, n in KINDS.items()}
        size = len(facts.topology.gpus)
        whole = ledger.availability.width == 1 and self._takes(facts, resource, size, ANY_GPU)
        return Capacity(counted["pair"], counted["quad"], int(whole))

    def _many(self, facts: NodeFacts, resource: str, ledger: Ledger, count: int) -> int:
        """How many placements of so many GPUs; 0 where the first one is not promised.

        The ones after it are worked out as the scores' *worth* is (:mod:`topology.core.worth`):
        what is expected over all that the node may hand out, rounded down. Pods that are on their
        way take theirs first.
        """
        if not self._takes(facts, resource, count, NVLINKED):
            return 0
        now, kubelet = ledger.availability, facts.kubelet(resource)
        healthy: Mask = kubelet.shape.all_gpus & ~now.sick
        free = only(now.free, healthy, now.width)
        many = int(promises(kubelet, free, RequestClass(count, NVLINKED)))
        return max(1, min(many, now.devices_left // count))

    def _takes(self, facts: NodeFacts, resource: str, count: int, constraints: Constraints) -> bool:
        """Whether the node would promise this to the next pod."""
        decision = decide(facts, gpu_request(count, constraints, resource=resource), self._settings)
        assessed = decision.assessment
        return decision.rejection is None and assessed is not None and assessed.verdict.holds
