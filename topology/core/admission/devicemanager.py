"""A kubelet's Device Manager, which allocates the devices of one resource on one node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from topology.core.allocators import ALLOCATORS, Allocator, Call, Outcomes
from topology.core.devices import GpuResource, Mask, positions
from topology.core.devicesets import DeviceSet, width_for
from topology.core.graph import AllocatorConfig, NodeTopology, names_unknown_nodes, plugin_version
from topology.core.memo import hashed_once, memoized
from topology.core.mig import MIG, shape_of
from topology.core.report import MissingGpu
from topology.core.shape import Shape, placed_gpus

UNKNOWN_CONFIG = AllocatorConfig()


@hashed_once
@dataclass(frozen=True)
class DeviceManager:
    """The Device Manager of a kubelet with the device plugin of one resource.

    Equal nodes have equal values, which serve as keys.
    """

    shape: Shape
    config: AllocatorConfig = UNKNOWN_CONFIG
    replicas: int = 1  # devices that the plugin advertises for one GPU or one MIG instance
    # Whether the plugin refuses a container more than one device; None if that is unknown.
    refuses_several: bool | None = False
    # The allocator of this node, if it is not the one that `config.policy` names.
    plugin: Allocator | None = None
    # Whether the plugin serves MIG instances instead of the GPUs that are in MIG mode.
    split: bool = False

    # The fields below follow from those above and are computed once.
    allocator: Allocator = field(init=False, compare=False, repr=False)
    width: int = field(init=False, compare=False, repr=False)  # bits per GPU in device sets
    # Whether the Topology Manager has an effect: it may align GPUs, or refuse the pod because of
    # other resources.
    aligns: bool = field(init=False, compare=False, repr=False)
    # Whether a larger set of free devices never loses an outcome. Then it is enough to evaluate
    # the largest.
    monotone: bool = field(init=False, compare=False, repr=False)
    # Whether the allocator alone decides, and can answer for many sets of free devices at once.
    answers_at_once: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        config, shape = self.config, self.shape
        if config.sees_topology and names_unknown_nodes(shape, config):
            config = replace(config, sees_topology=False)
        policy = config.topology_manager_policy
        cares = policy != "best-effort" or bool(placed_gpus(shape))
        aligns = policy != "none" and (cares or not config.sees_topology)
        whole = self.replicas == 1 and not shape.of_mig
        decides = (self.plugin or ALLOCATORS[config.policy]).under(config, whole=whole)
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
        """Whether a position may stand for several devices (shares of a GPU, or MIG instances)."""
        return self.replicas > 1 or self.shape.of_mig

    def devices_on(self, mask: Mask) -> int:
        """Return the number of devices at these positions, free or not."""
        each = self.shape.instances
        count = sum(each[p] for p in positions(mask)) if each else mask.bit_count()
        return count * self.replicas

    @property
    def devices_served(self) -> int:
        """The number of devices that the node serves, free or not. GPUs that are split by MIG have
        none."""
        away = self.shape.in_mig_mode if self.split else 0
        return self.devices_on(self.shape.all_gpus & ~away)

    @property
    def may_refuse(self) -> bool:
        """Whether the kubelet or the plugin may refuse a container although enough devices are
        free."""
        strict = self.aligns and self.config.topology_manager_policy != "best-effort"
        return strict or bool(self.allocator.hazards) or self.refuses_several is not False

    def outcomes(self, available: DeviceSet, size: int, required: DeviceSet = 0) -> Outcomes:
        """Return what the plugin may answer when it is asked for ``size`` of the ``available``
        devices."""
        version = plugin_version(self.config.plugin_version)
        return self.allocator.outcomes(
            Call(self.shape, available, size, required, self.width, version)
        )

    @cached_property
    def without_order(self) -> DeviceManager:
        """The same kubelet for all nodes that differ only in the devices that they would choose
        next."""
        plugin = None if self.plugin is None else self.plugin.usual
        return _interned(
            self.shape, self.config, self.replicas, self.refuses_several, plugin, self.split
        )

    @property
    def shared_bytes(self) -> int:
        """The approximate size in bytes, with the shape. Caches share it."""
        return 500 + self.shape.shared_bytes


@memoized
def opaque(kubelet: DeviceManager) -> DeviceManager:
    """Return the same node as if nothing were known of how its plugin chooses."""
    broken = kubelet.plugin if kubelet.allocator.broken else None
    return replace(kubelet, config=UNKNOWN_CONFIG, plugin=broken)


def widened(kubelet: DeviceManager) -> DeviceManager | None:
    """Return the same node as if any devices might come; None if that could hide a refusal.

    Any free MIG instance may come, unless the Topology Manager aligns the instances. Its policy
    ``best-effort`` refuses no pod and can only narrow the choice. So a property of every choice
    still holds, and the hints need not be followed.
    """
    if kubelet.shape.of_mig and kubelet.aligns and not kubelet.may_refuse:
        return opaque(kubelet)
    return None


def device_manager_of(
    topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...] = ()
) -> DeviceManager:
    """Return how a node allocates one of its resources while the ``missing`` GPUs do not answer."""
    config = topology.allocator
    policy = ALLOCATORS[config.policy]
    plugin = policy.on_node(topology, resource, missing)
    if plugin is not policy and not plugin.broken:
        # The plugin has the order itself.
        config = replace(config, policy=plugin.name, published=())
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
) -> DeviceManager:
    """Return the same object for equal kubelets, so that a look-up by kubelet is quick."""
    return DeviceManager(shape, config, replicas, refuses_several, plugin, split)
