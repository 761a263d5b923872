"""Records of nodes that publish their GPUs through Dynamic Resource Allocation (DRA).

The agent's record has only the hardware of such a node. The API server has the rest, which a device
plugin and a kubelet report on other nodes. ResourceSlices list the devices that may be handed out,
in their order. ResourceClaims list the devices that have been handed out. :func:`served` combines
these into one record, so possible free states, verdicts and costs need no code of their own for
DRA.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from topology.core.allocators import DRA
from topology.core.devices import DeviceId, GpuResource, GpuUuid, PodUid, base_uuid, bus_id
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.report import Allocation, Report

DRIVER = "gpu.nvidia.com"  # the name of NVIDIA's driver, and of its DeviceClass
MOST_NAMED = 253  # characters of a device's name


class DraError(ValueError):
    """Slices, claims and record that contradict each other, or that contain what we do not model.

    The message is written for people.
    """


@dataclass(frozen=True, slots=True)
class Published:
    """A device of a ResourceSlice that the pods' DeviceClass selects."""

    pool: str
    name: str
    uuid: str = ""
    pci_bus_id: str = ""
    tainted: bool = False  # then kube-scheduler allocates it to no claim

    @property
    def key(self) -> tuple[str, str]:
        """The pool and the name, which identify the device."""
        return self.pool, self.name


@dataclass(frozen=True, slots=True)
class Claimed:
    """A device that a ResourceClaim has, and the pod that holds it.

    If the claim is for no pod now, or for several (``sharers``), ``uid`` and ``holder`` stand for
    the claim itself.
    """

    pool: str
    device: str
    uid: PodUid
    namespace: str
    holder: str
    sharers: tuple[PodUid, ...] = ()
    claim: str = ""
    # Whether the claim has adminAccess. Its containers see the device, and other claims may have
    # it.
    admin: bool = False


def claim_holder(name: str) -> str:
    """Return the name that stands in a pod's place where a claim is for no pod now.

    No pod can have this name.
    """
    return f"claim/{name}"


def served(
    topology: NodeTopology,
    report: Report,
    resource: str,
    published: Sequence[Published],
    claimed: Iterable[Claimed],
    others: Iterable[Published] = (),
) -> tuple[NodeTopology, Report]:
    """Return the record of a node that serves its GPUs as ``resource``, ``published`` in order.

    ``others`` are devices of other classes. Those of them that are GPUs of the node are handed out
    by claims alone. A claimed device that its pool of GPUs publishes no longer is held under its
    own name. It is not known which container has which device, so the container's name is empty.
    Raises :class:`DraError`.
    """
    gpus = _gpus(topology, published)
    ours, former = set(gpus.values()), (each.device_ids for each in report.allocations)
    for at in map(base_uuid, chain.from_iterable(former)):
        if at in ours:  # Do not name the pod: commands print this to people who may not see it.
            raise DraError(
                f"a DRA driver publishes GPU {at}, but a pod holds it through a device plugin; "
                "the record names that pod in status.allocations"
            )
    held: dict[tuple[PodUid, str, str, tuple[PodUid, ...], str, bool], list[DeviceId]] = {}
    taken = [(each, (each.pool, each.device)) for each in claimed]
    left = {key for _, key in taken} - gpus.keys()
    found = gpu_finder(topology)
    outside = {o.key: found(o) if o.key in left else None for o in others if left}
    pools = {each.pool for each in published}
    for each, key in taken:
        uuid = gpus.get(key) or outside.get(key)
        gone = uuid is None and each.pool in pools and key not in outside
        if uuid is not None or gone:  # otherwise the device is no GPU
            holder = (each.uid, each.namespace, each.holder, each.sharers, each.claim, each.admin)
            held.setdefault(holder, []).append(DeviceId(uuid or "/".join(key)[-MOST_NAMED:]))
    shown: dict[bool, list[Allocation]] = {False: [], True: []}
    for (uid, namespace, name, sharers, claim, admin), devices in sorted(held.items()):
        given = Allocation(uid, namespace, name, "", resource, tuple(devices), sharers, claim)
        shown[admin].append(given)
    indices = {gpu.uuid: gpu.index for gpu in topology.gpus}
    allocator = AllocatorConfig(DRA.name, published=tuple(indices[uuid] for uuid in gpus.values()))
    free = frozenset(DeviceId(gpus[each.key]) for each in published if not each.tainted)
    return (
        topology.served(GpuResource(resource), allocator),
        replace(
            report,
            allocatable=free,
            allocations=tuple(shown[False]),
            watched=tuple(shown[True]),
            idle=(),
        ),
    )


def gpu_finder(topology: NodeTopology) -> Callable[[Published], GpuUuid | None]:
    """Return a function that finds the node's GPU that a published device is.

    The function returns None if the device is no GPU. A device with a UUID is found by the UUID
    alone, because a MIG instance has the bus address of its GPU.
    """
    uuids = {gpu.uuid for gpu in topology.gpus}
    by_bus = {bus_id(gpu.pci_bus_id): gpu.uuid for gpu in topology.gpus if gpu.pci_bus_id}

    def find(device: Published) -> GpuUuid | None:
        uuid = GpuUuid(device.uuid)
        return (uuid if uuid in uuids else None) if uuid else by_bus.get(bus_id(device.pci_bus_id))

    return find


def _gpus(
    topology: NodeTopology, published: Sequence[Published]
) -> Mapping[tuple[str, str], GpuUuid]:
    """Return the GPU of each published device, in their order. Raises :class:`DraError`."""
    gpus: dict[tuple[str, str], GpuUuid] = {}
    found = gpu_finder(topology)
    for device in published:
        uuid = found(device)
        if uuid is None:
            raise DraError(
                f"device {device.name[:64]} of a ResourceSlice is not among the GPUs of the record"
            )
        if uuid in gpus.values() or device.key in gpus:
            raise DraError(f"two devices of the node's ResourceSlices name the same GPU {uuid}")
        gpus[device.key] = uuid
    return gpus


def with_own_claims_only(topology: NodeTopology) -> NodeTopology:
    """Return the node as one that gives no GPUs to pods that request a number of them."""
    allocator = replace(topology.allocator, serves_extended_resource=False)
    return topology.served(topology.resources[0], allocator)


def without_devices(topology: NodeTopology) -> NodeTopology:
    """Return the node as one whose driver publishes no GPU yet."""
    return replace(topology, allocator=replace(topology.allocator, driver_waits=True))


def first_published(topology: NodeTopology, devices: Iterable[DeviceId]) -> NodeTopology:
    """Return the node as if ``devices`` were published first, in this order.

    A claim that has these devices gets them on such a node.
    """
    indices = {gpu.uuid: gpu.index for gpu in topology.gpus}
    ours = [indices[GpuUuid(device)] for device in devices]
    order = tuple(dict.fromkeys((*ours, *topology.allocator.published)))
    allocator = replace(topology.allocator, published=order, serves_extended_resource=True)
    return topology.served(topology.resources[0], allocator)
