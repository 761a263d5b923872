"""How one node hands out the devices of one resource."""

from __future__ import annotations

from dataclasses import dataclass, field

from topology.core.allocators import Allocator, allocator
from topology.core.allocators.best_effort import BEST_EFFORT, MAX_GPUS
from topology.core.graph import AllocatorFacts, Shape
from topology.core.hashing import hashed_once
from topology.core.pools import width_for

UNKNOWN_FACTS = AllocatorFacts()


@hashed_once
@dataclass(frozen=True)
class Kubelet:
    """How one node hands out one resource: equal nodes are equal keys.

    ``replicas`` is how many devices the plugin advertises for one GPU.
    """

    shape: Shape
    facts: AllocatorFacts = UNKNOWN_FACTS
    replicas: int = 1
    width: int = field(init=False, compare=False, repr=False, default=1)
    """Bits per GPU in this node's pools."""
    aligns: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether the Topology Manager has a say: it has a policy, and GPUs have NUMA nodes."""
    monotone: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether a larger pool never loses an outcome, so that the largest speaks for all."""
    whole_best_effort: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether NVIDIA's plugin picks whole GPUs, as modelled, and nobody else has a say."""

    def __post_init__(self) -> None:
        known = any(node is not None for node in self.shape.numa)
        aligns = known and self.facts.topology_manager_policy != "none"
        derived = {
            "width": width_for(self.replicas),
            "aligns": aligns,
            "monotone": self.allocator.monotone and not aligns,
            "whole_best_effort": self.allocator is BEST_EFFORT
            and not aligns
            and self.replicas == 1
            and self.shape.size <= MAX_GPUS,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def may_refuse(self) -> bool:
        """Whether a container may be refused, by whomever, though there are devices enough."""
        strict = self.aligns and self.facts.topology_manager_policy != "best-effort"
        return strict or self.allocator is BEST_EFFORT

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes with its shape; memories share it."""
        return 500 + self.shape.shared_bytes

    @property
    def allocator(self) -> Allocator:
        """The model of its device plugin."""
        return allocator(self.facts.policy)
