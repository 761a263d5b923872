"""How one node hands out the devices of one resource."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from topology.core.allocators import ANY, DISTRIBUTED, PACKED, Allocator, allocator
from topology.core.allocators.best_effort import (
    BEST_EFFORT,
    MAX_GPUS,
    Unforeseen,
    refuses_nobody,
)
from topology.core.allocators.outage import Outage, outage
from topology.core.devices import GpuResource, Mask, positions
from topology.core.graph import AllocatorFacts, NodeTopology, names_strange_nodes, plugin_version
from topology.core.hashing import hashed_once
from topology.core.mig import MIG, shape_of
from topology.core.pools import width_for
from topology.core.remembering import remembered
from topology.core.report import MissingGpu
from topology.core.requests import Counts, Role
from topology.core.shape import Shape, placed_gpus

UNKNOWN_FACTS = AllocatorFacts()


@hashed_once
@dataclass(frozen=True)
class Kubelet:
    """How one node hands out one resource: equal nodes are equal keys.

    ``replicas`` is how many devices the plugin advertises for one GPU, or for one MIG instance
    where the shape is of such. ``refuses_several`` says
    whether the plugin refuses a container more than one device; None where that is not known.
    ``outage`` takes the policy's place while GPUs do not answer the driver. ``split`` says that the
    plugin serves the MIG instances of GPUs in MIG mode in place of these GPUs.
    """

    shape: Shape
    facts: AllocatorFacts = UNKNOWN_FACTS
    replicas: int = 1
    refuses_several: bool | None = False
    outage: Outage | None = None
    split: bool = False
    width: int = field(init=False, compare=False, repr=False, default=1)
    """Bits per GPU in this node's pools."""
    aligns: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether the Topology Manager has a say: it may align GPUs, or refuse the pod for others."""
    monotone: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether a larger pool never loses an outcome, so that the largest speaks for all."""
    whole_best_effort: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether NVIDIA's plugin picks whole GPUs, as modelled, and nobody else has a say."""

    def __post_init__(self) -> None:
        if self.facts.sees_topology and names_strange_nodes(self.shape, self.facts):
            object.__setattr__(self, "facts", replace(self.facts, sees_topology=False))
        policy = self.facts.topology_manager_policy
        cares = policy != "best-effort" or bool(placed_gpus(self.shape))
        aligns = policy != "none" and (cares or not self.facts.sees_topology)
        derived = {
            "width": width_for(self.replicas * max(self.shape.instances, default=1)),
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
    def shared(self) -> bool:
        """Whether a position may stand for several devices: shares of a GPU, MIG instances."""
        return self.replicas > 1 or self.shape.of_mig

    def devices_on(self, mask: Mask) -> int:
        """How many devices these positions have, free or not."""
        each = self.shape.instances
        count = sum(each[p] for p in positions(mask)) if each else mask.bit_count()
        return count * self.replicas

    @property
    def devices_served(self) -> int:
        """How many devices it has, free or not: of GPUs that are split by MIG none."""
        away = self.shape.in_mig_mode if self.split else 0
        return self.devices_on(self.shape.all_gpus & ~away)

    @property
    def may_refuse(self) -> bool:
        """Whether a container may be refused, by whomever, though there are devices enough."""
        strict = self.aligns and self.facts.topology_manager_policy != "best-effort"
        fails = self.allocator not in (ANY, DISTRIBUTED, PACKED)
        return strict or fails or self.refuses_several is not False

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes with its shape; memories share it."""
        return 500 + self.shape.shared_bytes

    @property
    def allocator(self) -> Allocator:
        """The model of its device plugin.

        Where devices may be aligned in any way, or it is not known how NVIDIA's plugin ranks them,
        any may come, and every refusal of that plugin may, too.
        """
        facts = self.facts
        policy = allocator(facts.policy)
        aligned_anyhow = facts.topology_manager_policy != "none" and not facts.sees_topology
        if self.outage is not None:
            return replace(self.outage, certain=False) if aligned_anyhow else self.outage
        whole = self.replicas == 1 and not self.shape.of_mig
        if whole and policy is ANY and facts.plugin_version is not None:  # only NVIDIA's is known
            return Unforeseen(ranked=False)
        if aligned_anyhow:
            return Unforeseen(ranked=True) if whole and policy is BEST_EFFORT else ANY
        return policy


@remembered
def opaque(kubelet: Kubelet) -> Kubelet:
    """The same node with nothing known of how it chooses."""
    return replace(kubelet, facts=UNKNOWN_FACTS)


@remembered
def widened(kubelet: Kubelet) -> Kubelet | None:
    """The same node as if any devices might come, where that hides no refusal; else None.

    Of MIG instances every free one may come, but for the Topology Manager. Under its policy
    ``best-effort`` it refuses nobody, and can only narrow the choice. What holds for every choice
    is told at once, and what the hints come to need not be followed.
    """
    if kubelet.shape.of_mig and kubelet.aligns and not kubelet.may_refuse:
        return opaque(kubelet)
    return None


def indifferent(
    kubelet: Kubelet, counts: Counts, pools: frozenset[int] | None = None
) -> Kubelet | None:
    """The same node as if any devices might come, for a pod to which that makes no difference.

    That is one container with one device, or with several GPUs that NVIDIA's plugin finds whichever
    are free. The plugin refuses it nothing while all GPUs answer, so it is admitted wherever
    devices enough are free. Its own outcomes can only become more. None for other pods, and where
    the node is so already or the Topology Manager has a say.

    ``pools`` are how many devices may be free when it comes; None stands for any number.
    """
    if len(counts) != 1 or kubelet.monotone or kubelet.aligns or kubelet.outage is not None:
        return None
    ((role, count),) = counts
    if role not in (Role.APP, Role.SIDECAR):
        return None
    certain = kubelet.whole_best_effort and kubelet.refuses_several is False
    if count != 1 and not (certain and refuses_nobody(kubelet.shape, count, pools)):
        return None
    return opaque(kubelet)


REFUSES_SEVERAL_SINCE = (0, 20)
"""From this version of the plugin on, refusing more than one MPS share is an option, on unless it
is turned off; before, all such requests are refused."""


def kubelet_of(
    topology: NodeTopology, served: GpuResource, missing: tuple[MissingGpu, ...] = ()
) -> Kubelet:
    """How a node hands out one of its resources while the ``missing`` GPUs do not answer."""
    failing = None
    if missing and served.strategy == "none":
        failing = outage(topology, missing, plugin_version(topology.allocator.plugin_version))
    several, facts = _refuses_several(topology, served), topology.allocator
    if served.strategy == MIG and served.replicas == 1 and facts.policy != ANY.name:
        # Each instance is a group of its own to the plugin, and all groups are alike: any may come.
        facts = replace(facts, policy=ANY.name)
    shape = shape_of(topology, served)
    beside_mig = served.strategy != MIG and any(r.strategy == MIG for r in topology.resources)
    split = beside_mig and shape.in_mig_mode != 0
    return _interned(shape, facts, served.replicas, several, failing, split)


@remembered
def _interned(
    shape: Shape,
    facts: AllocatorFacts,
    replicas: int,
    refuses_several: bool | None,
    failing: Outage | None,
    split: bool,
) -> Kubelet:
    """One object for equal kubelets, so that a look-up by kubelet is quick."""
    return Kubelet(shape, facts, replicas, refuses_several, failing, split)


def _refuses_several(topology: NodeTopology, served: GpuResource) -> bool | None:
    if served.strategy == "none" or (served.strategy == MIG and served.replicas == 1):
        return False
    version = plugin_version(topology.allocator.plugin_version)
    if served.strategy == "mps" and version is not None and version < REFUSES_SEVERAL_SINCE:
        return True
    return served.refuses_several
