"""The graph of a node's GPUs and links, and the configuration of its device allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from topology.core.devices import (
    Fabric,
    Gpu,
    GpuResource,
    GpuUuid,
    Mask,
    Nic,
    NodeName,
    positions,
)
from topology.core.links import Link, LinkKind, canonical_product
from topology.core.memo import hashed_once, memoized
from topology.core.numa import NumaConfig
from topology.core.shape import Shape, hinted_nodes, shared_shape

MAX_GPUS = 64


class TopologyError(ValueError):
    """A contradiction in the description of a node. The message names the field and the value."""


# A Topology Manager policy that the agent could not find out. It may act like any of them.
UNKNOWN = "unknown"


@hashed_once
@dataclass(frozen=True)
class AllocatorConfig:
    """The configuration by which the node's kubelet and device plugin choose devices.

    ``None`` means that a value is unknown.
    """

    policy: str = "any"  # the name of an allocator
    plugin_version: str | None = None
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    # These two matter where the Topology Manager has a policy. Unless both managers are known to
    # give no hints, its merged hint can be anything (see admission).
    cpu_manager_policy: str | None = None
    memory_manager_policy: str | None = None
    # The Topology Manager's option `prefer-closest-numa-nodes`.
    prefers_closest: bool | None = None
    numa_distances: tuple[tuple[int, ...], ...] | None = None  # a row for each NUMA node, by number
    # False if the record does not name the NUMA nodes of every device, as the plugin names them to
    # the kubelet. Then devices may be aligned in any way.
    sees_topology: bool = True
    full_cores_only: bool | None = None  # the CPU Manager's option `full-pcpus-only`
    numa: NumaConfig | None = None  # CPUs and memory, where a static manager gives them to pods
    # Under DRA: driver indices in the order in which the driver publishes the GPUs.
    published: tuple[int, ...] = ()
    serves_extended_resource: bool = True  # False if pods get GPUs only by claims of their own
    # Whether a DRA driver has a pool for the node but publishes no GPU in it.
    driver_waits: bool = False
    # Where `numa` is None, the fields that the record lacks for it. They are for messages alone.
    numa_lacks: tuple[str, ...] = field(default=(), compare=False)

    @property
    def aligned_anyhow(self) -> bool:
        """Whether the kubelet aligns devices by NUMA nodes that the record does not name."""
        return self.topology_manager_policy != "none" and not self.sees_topology


@memoized
def plugin_version(text: str | None) -> tuple[int, ...] | None:
    """Return a version such as ``v0.20.1`` as numbers; None if it is unknown or unreadable.

    >>> plugin_version("v0.20.1")
    (0, 20, 1)
    """
    parts = (text or "").strip().removeprefix("v").split("-")[0].split(".")
    return tuple(int(p) for p in parts) if all(p.isascii() and p.isdigit() for p in parts) else None


@dataclass(frozen=True)
class NodeTopology:
    """A node's hardware: GPUs by ascending index, their links, NICs and how devices are served.

    It is built once and never changed. A contradiction raises :class:`TopologyError`. Examples are
    an index, a UUID or a name that occurs twice, a pair with two links, and a GPU at two distances
    from a NIC. Links, NICs and the published order must not name a GPU that is not there. More than
    :data:`MAX_GPUS` GPUs are refused, too.
    """

    name: NodeName
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    resources: tuple[GpuResource, ...] = (GpuResource(),)
    allocator: AllocatorConfig = AllocatorConfig()
    fabric: Fabric | None = None

    def __post_init__(self) -> None:
        if len(self.gpus) > MAX_GPUS:
            raise TopologyError(
                f"devices: {len(self.gpus)} GPUs, but at most {MAX_GPUS} are allowed"
            )
        _unique("devices.index", [g.index for g in self.gpus])
        _unique("devices.uuid", [g.uuid for g in self.gpus])
        _unique("nics.name", [n.name for n in self.nics])
        _unique("resources.name", [r.name for r in self.resources])
        object.__setattr__(self, "gpus", tuple(sorted(self.gpus, key=lambda g: g.index)))
        object.__setattr__(self, "links", tuple(sorted(self.links, key=lambda k: (k.a, k.b))))
        known = {g.index for g in self.gpus}
        for link in self.links:
            if link.a >= link.b:
                raise TopologyError(f"links: a={link.a} b={link.b}, but a must be less than b")
            for end in (link.a, link.b):
                if end not in known:
                    raise TopologyError(f"links: GPU {end} is not among the devices")
        _unique("links", [(link.a, link.b) for link in self.links])
        _unique("allocator.published", self.allocator.published)
        for index in self.allocator.published:
            if index not in known:
                raise TopologyError(f"allocator.published: GPU {index} is not among the devices")
        for nic in self.nics:
            _unique(f"nics[{nic.name}].distances", [index for index, _ in nic.distances])
            for index, _ in nic.distances:
                if index not in known:
                    raise TopologyError(f"nics[{nic.name}]: GPU {index} is not among the devices")

    def renamed(self, name: NodeName, uuids: Sequence[GpuUuid]) -> NodeTopology:
        """Return the same hardware under other names; ``uuids`` are by position and distinct.

        The new object shares all values that do not depend on names with this one.
        """
        gpus = tuple(gpu.renamed(uuid) for gpu, uuid in zip(self.gpus, uuids, strict=True))
        return self._alike(name=name, gpus=gpus)

    def served(self, resource: GpuResource, allocator: AllocatorConfig) -> NodeTopology:
        """Return the same hardware, served as the one ``resource`` by another allocator."""
        return self._alike(
            resources=(resource,),
            allocator=allocator,
            position_of_uuid=self.position_of_uuid,
            bit_of_uuid=self.bit_of_uuid,
        )

    def _alike(self, **changes: object) -> NodeTopology:
        """Return the same hardware with these ``changes``, without checking it again.

        Cached properties that do not depend on names are taken over. ``changes`` may also set
        cached properties.
        """
        other = object.__new__(NodeTopology)
        other.__dict__.update({each.name: getattr(self, each.name) for each in fields(self)})
        kept = {"shape": self.shape, "position_of_index": self.position_of_index}
        other.__dict__.update(kept | changes)
        return other

    @cached_property
    def shape(self) -> Shape:
        """The hardware without names. Nodes with equal hardware get the same object."""
        n = len(self.gpus)
        at = self.position_of_index
        matrix: list[list[Link | None]] = [[None] * n for _ in range(n)]
        for link in self.links:
            matrix[at[link.a]][at[link.b]] = matrix[at[link.b]][at[link.a]] = link.nameless
        nearest = [LinkKind.UNKNOWN] * n
        for nic in self.nics:
            for index, kind in nic.distances:
                nearest[at[index]] = max(nearest[at[index]], kind)
        return shared_shape(
            Shape(
                products=tuple(canonical_product(g.product) for g in self.gpus),
                memory=tuple(g.memory for g in self.gpus),
                numa=tuple(g.numa_node for g in self.gpus),
                mig=tuple(g.mig_mode == "enabled" for g in self.gpus),
                nic=tuple(nearest),
                links=tuple(tuple(row) for row in matrix),
                topology_nodes=tuple(g.topology_nodes or () for g in self.gpus),
            )
        )

    @cached_property
    def views(self) -> dict[GpuResource, Any]:
        """The devices of each resource, as far as :mod:`topology.core.mig` has worked them out."""
        return {}

    @cached_property
    def position_of_index(self) -> dict[int, int]:
        """The position in masks of each driver index."""
        return {g.index: p for p, g in enumerate(self.gpus)}

    @cached_property
    def position_of_uuid(self) -> dict[GpuUuid, int]:
        """The position in masks of each GPU's UUID."""
        return {g.uuid: p for p, g in enumerate(self.gpus)}

    @cached_property
    def bit_of_uuid(self) -> dict[str, Mask]:
        """The mask of the GPU alone, by its UUID."""
        return {gpu.uuid: 1 << p for p, gpu in enumerate(self.gpus)}

    def indices(self, mask: Mask) -> tuple[int, ...]:
        """Return the driver indices of a mask's GPUs, ascending."""
        return tuple(self.gpus[p].index for p in positions(mask))

    def resource(self, name: str) -> GpuResource | None:
        """Return the node's extended resource ``name``; None if the node does not serve it."""
        return next((each for each in self.resources if each.name == name), None)

    def summary(self) -> str:
        """Return the GPUs, MIG instances and links in one line for people.

        >>> from topology.machines import machine
        >>> machine("dgx1-v100").topology("n").summary()
        '8 × Tesla V100-SXM2-16GB, NVLink 1-2'
        """
        parts = [f"{n} × {p}" for p, n in sorted(Counter(g.product for g in self.gpus).items())]
        profiles = Counter(part.profile for gpu in self.gpus for part in gpu.mig_instances)
        instances = [f"{n} × MIG {profile}" for profile, n in sorted(profiles.items())]
        return ", ".join(filter(None, [*parts, *instances, self.link_summary()]))

    def link_summary(self) -> str:
        """Return the NVLinks per pair, or else the PCIe classes, in a few words for people.

        The text is empty for a node with one GPU.
        """
        counts = sorted({link.nvlinks for link in self.links if link.nvlinks})
        if counts:
            span = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
            return f"NVLink {span}"
        if len(self.gpus) > 1:
            kinds = sorted({link.pcie for link in self.links}, reverse=True)
            return "PCIe " + "/".join(k.label for k in kinds)
        return ""


def _unique(what: str, values: Sequence[object]) -> None:
    for value, times in Counter(values).items():
        if times > 1:
            raise TopologyError(f"{what}: {value} occurs {times} times, but only once is allowed")


def names_unknown_nodes(shape: Shape, config: AllocatorConfig) -> bool:
    """Check whether the plugin names NUMA nodes for which the machine has no distances.

    A kubelet hints only at NUMA nodes of its machine. What it does with other numbers is unknown.
    """
    known = config.numa_distances
    return known is not None and any(n >= len(known) for n, _ in hinted_nodes(shape))
