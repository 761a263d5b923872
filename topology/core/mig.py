"""The devices of one resource by position, where MIG instances may take the place of GPUs.

NVIDIA's plugin serves MIG instances under one of two strategies. Under ``single`` all instances of
the node are alike, and the plugin serves them as ``nvidia.com/gpu``. Under ``mixed`` it serves the
instances of each profile as a resource of its own (``nvidia.com/mig-1g.10gb``), beside whole GPUs.

The rest of the core works with positions, and with device sets that count the devices at each
position. So a resource of MIG instances gets a shape of its own. A position stands for *equal
instances of one GPU* (one profile, one memory). It has the NUMA nodes and NICs of its GPU. It has
no link to any other position, because instances have none. Equal instances are interchangeable, so
16 GPUs with seven equal instances each have 16 positions and not 112.

Time-sliced instances have a position each, because the plugin chooses among the replicas of one
instance by how many of them are handed out.

Sources: k8s-device-plugin 0.17 to 0.19 (``internal/rm/device_map.go``, ``internal/lm/resource.go``
for the product's name), read and run.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from topology.core.devices import Bytes, GpuResource, Mask, MigInstance, positions
from topology.core.graph import MAX_GPUS, NodeTopology
from topology.core.links import canonical_product
from topology.core.shape import Shape, shared_shape

MIG = "mig"  # the strategy of a resource of MIG instances
MIG_IDS = "MIG-"  # the prefix of an instance's device id
MIG_RESOURCE = "/mig-"  # stands before the profile in a resource name of the mixed strategy
# The beginning of a compute instance's profile: its slices, and those of its GPU instance.
_COMPUTE_INSTANCE = re.compile(r"([1-7])c\.([1-7])g\.")


@dataclass(frozen=True, eq=False, slots=True)
class ServedDevices:
    """The devices that a node serves as one resource, by position."""

    shape: Shape
    position_of: Mapping[str, int]  # by device id, without its replica number
    counts: tuple[int, ...]  # the devices at each position
    gpu_of: tuple[int, ...]  # the GPU of each position, as a position of `NodeTopology.gpus`
    indices_of: tuple[int, ...]  # the GPU of each position, by the driver's index
    problem: str = ""  # why these devices cannot be followed; empty if they can

    def indices(self, mask: Mask) -> tuple[int, ...]:
        """Return the driver indices of the GPUs at these positions, ascending, each once."""
        return tuple(sorted({self.indices_of[p] for p in positions(mask)}))

    def index_sets(self, sets: Iterable[Mask]) -> list[list[int]]:
        """Return :meth:`indices` of each set, in their order, without repetitions.

        Several sets may have the same GPUs, because MIG instances of several kinds may be on one.
        """
        return [list(gpus) for gpus in dict.fromkeys(self.indices(mask) for mask in sets)]

    def on(self, gpus: Mask) -> Mask:
        """Return the positions that lie on these GPUs of the node."""
        return sum(1 << p for p, gpu in enumerate(self.gpu_of) if gpus >> gpu & 1)


def shape_of(topology: NodeTopology, resource: GpuResource) -> Shape:
    """Return the shape of one resource of a node: the node's own, unless it is of MIG instances."""
    return served_devices(topology, resource).shape if resource.strategy == MIG else topology.shape


def served_devices(topology: NodeTopology, resource: GpuResource) -> ServedDevices:
    """Return the devices of one resource of a node, worked out once for each node and resource."""
    known = topology.views.get(resource)
    if known is None:
        work_out = _instances if resource.strategy == MIG else _gpus
        known = topology.views[resource] = work_out(topology, resource)
    return known


def instance_ids(topology: NodeTopology) -> frozenset[str]:
    """Return the device ids of all MIG instances of a node."""
    return frozenset(part.uuid for gpu in topology.gpus for part in gpu.mig_instances)


def profile_named(resource: str) -> str:
    """Return the profile in the name of a resource of the mixed strategy; empty for other names.

    The plugin writes a dot for each plus of the profile.

    >>> profile_named("nvidia.com/mig-1g.10gb.me"), profile_named("nvidia.com/gpu")
    ('1g.10gb.me', '')
    """
    return resource.partition(MIG_RESOURCE)[2].removesuffix(".shared")


def own_memory(part: MigInstance) -> Bytes:
    """Return the memory that an instance has for itself.

    Compute instances of one GPU instance share its memory, and the driver shows the whole memory
    for each of them. So each counts with a share: its slices divided by those of the GPU instance.
    The shares of all compute instances add up to at most the whole memory.

    >>> own_memory(MigInstance("MIG-1", "1c.3g.20gb", Bytes(21_000_000_000)))
    7000000000
    >>> own_memory(MigInstance("MIG-1", "3g.20gb", Bytes(21_000_000_000)))
    21000000000
    """
    compute = _COMPUTE_INSTANCE.match(part.profile)
    if compute is None:
        return part.memory
    slices, of_all = map(int, compute.groups())
    return Bytes(part.memory * min(slices, of_all) // of_all)


def _gpus(topology: NodeTopology, resource: GpuResource) -> ServedDevices:
    everything = tuple(range(len(topology.gpus)))
    return ServedDevices(
        topology.shape,
        cast("Mapping[str, int]", topology.position_of_uuid),
        (resource.replicas,) * len(everything),
        everything,
        tuple(gpu.index for gpu in topology.gpus),
    )


@dataclass(slots=True)
class _Place:
    """A future position: equal instances of one GPU."""

    gpu: int  # by position
    part: MigInstance  # one of them
    ids: list[str]


def _instances(topology: NodeTopology, resource: GpuResource) -> ServedDevices:
    places = list(_places(topology, resource))
    problem = ""
    if len(places) > MAX_GPUS:
        problem = (
            f"resources: {resource.name} has {len(places)} time-sliced MIG instances; at most "
            f"{MAX_GPUS} are supported"
        )
        places = places[:MAX_GPUS]
    whole, gpus = topology.shape, [place.gpu for place in places]
    shape = Shape(
        products=tuple(  # as NVIDIA's labels name them: a100-sxm4-40gb-mig-1g.5gb
            canonical_product(f"{topology.gpus[p.gpu].product}-MIG-{p.part.profile}")
            for p in places
        ),
        memory=tuple(own_memory(p.part) for p in places),
        numa=tuple(whole.numa[g] for g in gpus),
        mig=(False,) * len(places),
        nic=tuple(whole.nic[g] for g in gpus),
        links=((None,) * len(places),) * len(places),
        topology_nodes=tuple(whole.topology_nodes[g] for g in gpus),
        instances=tuple(len(p.ids) for p in places),
        parents=tuple(gpus),
    )
    return ServedDevices(
        shared_shape(shape),
        {uuid: position for position, place in enumerate(places) for uuid in place.ids},
        tuple(len(place.ids) * resource.replicas for place in places),
        tuple(gpus),
        tuple(topology.gpus[g].index for g in gpus),
        problem,
    )


def _places(topology: NodeTopology, resource: GpuResource) -> Iterator[_Place]:
    """Yield the positions by ascending GPU, and on each GPU in the driver's order."""
    profile = profile_named(resource.name)
    names = {profile_named(other.name) for other in (*topology.resources, resource)} - {""}
    for position, gpu in enumerate(topology.gpus):
        alike: dict[object, _Place] = {}
        for part in gpu.mig_instances:
            if profile and _served_as(part.profile, names) != profile:
                continue
            kind = part.uuid if resource.replicas > 1 else (part.profile, part.memory)
            alike.setdefault(kind, _Place(position, part, [])).ids.append(part.uuid)
        yield from alike.values()


def _served_as(profile: str, names: Collection[str]) -> str:
    """Return the one of the node's ``names`` under which instances of a profile are served.

    The result is empty if no name fits. Since v0.20 of the plugin it is the profile's own name.
    Older plugins looked for a name *within* the profile. They served ``1g.10gb+me`` and
    ``1c.1g.10gb`` as ``1g.10gb``, and nothing as ``1g.10gb.me`` (k8s-device-plugin#1462, #1807).
    """
    own = profile.replace("+", ".")
    if own in names:
        return own
    return min((name for name in names if name in own), key=lambda n: (len(n), n), default="")
