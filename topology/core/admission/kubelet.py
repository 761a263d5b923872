"""How one node hands out the devices of one resource."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from topology.core.allocators import ALLOCATORS, Allocator, Call, Outcomes
from topology.core.devices import GpuResource, Mask, positions
from topology.core.devicesets import DeviceSet, width_for
from topology.core.graph import AllocatorConfig, NodeTopology, names_strange_nodes, plugin_version
from topology.core.memo import hashed_once, memoized
from topology.core.mig import MIG, shape_of
from topology.core.report import MissingGpu
from topology.core.shape import Shape, placed_gpus

UNKNOWN_CONFIG = AllocatorConfig()


@hashed_once
@dataclass(frozen=True)
class Kubelet:
    """How one node hands out one resource: equal nodes are equal keys."""

    shape: Shape
    config: AllocatorConfig = UNKNOWN_CONFIG
    replicas: int = 1  # devices that the plugin advertises for one GPU or one MIG instance
    # Whether the plugin refuses a container more than one device; None: that is not known.
    refuses_several: bool | None = False
    # The allocator of this very node, where it is not the one that the facts name.
    plugin: Allocator | None = None
    # Whether the plugin serves the MIG instances of GPUs in MIG mode in place of these GPUs.
    split: bool = False

    # What follows from them, worked out once.
    allocator: Allocator = field(init=False, compare=False, repr=False)
    width: int = field(init=False, compare=False, repr=False)  # bits per GPU in its pools
    # Whether the Topology Manager has a say: it may align GPUs, or refuse the pod for others.
    aligns: bool = field(init=False, compare=False, repr=False)
    # Whether a larger pool never loses an outcome, so that the largest speaks for all.
    monotone: bool = field(init=False, compare=False, repr=False)
    # Whether the allocator alone decides, and tells of many pools at once.
    answers_at_once: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        config, shape = self.config, self.shape
        if config.sees_topology and names_strange_nodes(shape, config):
            config = replace(config, sees_topology=False)
        policy = config.topology_manager_policy
        cares = policy != "best-effort" or bool(placed_gpus(shape))
        aligns = policy != "none" and (cares or not config.sees_topology)
        whole = self.replicas == 1 and not shape.of_mig
        decides = (self.plugin or ALLOCATORS[config.policy]).told(config, whole=whole)
        derived = {
            "config": config,
            "allocator": decides,
            "width": width_for(self.replicas * max(shape.instances, default=1)),
            "aligns": aligns,
            "monotone": decides.monotone and not aligns,
            "answers_at_once": whole and not aligns and 0 < shape.size <= decides.answers_up_to,
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
        """How many devices it has, free or not. GPUs that are split by MIG have none."""
        away = self.shape.in_mig_mode if self.split else 0
        return self.devices_on(self.shape.all_gpus & ~away)

    @property
    def may_refuse(self) -> bool:
        """Whether anybody may refuse a container although enough devices are free."""
        strict = self.aligns and self.config.topology_manager_policy != "best-effort"
        return strict or bool(self.allocator.hazards) or self.refuses_several is not False

    def outcomes(self, available: DeviceSet, size: int, required: DeviceSet = 0) -> Outcomes:
        """What the plugin may answer if it is asked for so many of these devices."""
        version = plugin_version(self.config.plugin_version)
        call = Call(self.shape, available, size, required, self.width, version)
        return self.allocator.outcomes(call)

    @cached_property
    def settled(self) -> Kubelet:
        """One node for all that differ by what they would choose next, and in nothing else."""
        plugin = None if self.plugin is None else self.plugin.usual
        return _interned(
            self.shape, self.config, self.replicas, self.refuses_several, plugin, self.split
        )

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes with its shape; memories share it."""
        return 500 + self.shape.shared_bytes


@memoized
def opaque(kubelet: Kubelet) -> Kubelet:
    """The same node as if nothing were known of how its plugin chooses."""
    broken = kubelet.plugin if kubelet.allocator.broken else None
    return replace(kubelet, config=UNKNOWN_CONFIG, plugin=broken)


def widened(kubelet: Kubelet) -> Kubelet | None:
    """The same node as if any devices might come, if that hides no refusal; else None.

    Any free MIG instance may come, unless the Topology Manager aligns them. Its policy
    ``best-effort`` refuses nobody and can only narrow the choice. So what holds for every choice
    holds, and the hints need not be followed.
    """
    if kubelet.shape.of_mig and kubelet.aligns and not kubelet.may_refuse:
        return opaque(kubelet)
    return None


def kubelet_of(
    topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...] = ()
) -> Kubelet:
    """How a node hands out one of its resources while the ``missing`` GPUs do not answer."""
    config = topology.allocator
    policy = ALLOCATORS[config.policy]
    plugin = policy.on_node(topology, resource, missing)
    if plugin is not policy and not plugin.broken:
        config = replace(config, policy=plugin.name, published=())  # the plugin has the order
    shape = shape_of(topology, resource)
    beside_mig = resource.strategy != MIG and any(r.strategy == MIG for r in topology.resources)
    return _interned(
        shape,
        config,
        resource.replicas,
        policy.refuses_several(topology, resource),
        None if plugin is ALLOCATORS[config.policy] else plugin,
        beside_mig and shape.in_mig_mode != 0,
    )


@memoized
def _interned(
    shape: Shape,
    config: AllocatorConfig,
    replicas: int,
    refuses_several: bool | None,
    plugin: Allocator | None,
    split: bool,
) -> Kubelet:
    """One object for equal kubelets, so that a look-up by kubelet is quick."""
    return Kubelet(shape, config, replicas, refuses_several, plugin, split)
