"""What a record may hold, and what is published of a node that has more.

The API server refuses a whole record for one list that is too long or one word that it does not
know, at every try: nobody would hear of the node again. So the agent leaves out what does not fit,
and the record says so. Missing hardware makes for fewer promises, and ``Complete`` names it.
Missing holders make the record not Ready.

The numbers are those of ``manifests/base/crd.yaml``. The whole record has a bound, too: etcd takes
1.5 MiB for an object, and the API server's notes on who owns which field need more than half of it.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from topology.agent.decides.holdings import GPU_DRIVER
from topology.agent.decides.observed import Unseen
from topology.core.devices import DeviceId, Gpu, GpuResource, GpuUuid, Nic, base_uuid
from topology.core.graph import NodeTopology
from topology.core.numa import Holding, NumaFacts, cpu_list
from topology.core.report import Allocation, IdleAllocation

MOST_DEVICE_IDS = 4096  # device ids to hand out, and device ids of one allocation
MOST_ALLOCATIONS = 4096
MOST_EXCLUSIVE = 4096  # pods that have exclusive CPUs or memory
MOST_BLOCKS = 1024  # blocks of memory of one such pod
MOST_RESOURCES = 16
MOST_REPLICAS = 1024
MOST_NICS = 64
MOST_MIG_INSTANCES = 16
MOST_HEALTH = 64
MOST_MISSING = 64
LONGEST_NAME = 253
LONGEST_REASON = 253
LONGEST_MESSAGE = 4000  # shorter than the schema allows: people read it
HIGHEST_NUMA_NODE = 1023
HIGHEST_HINTED_NODE = 63  # the kubelet cannot hint at a NUMA node of a higher number
LONGEST_TYPE = 63  # characters of a type of memory
MOST_TYPES = 16  # types of memory of a NUMA node
LARGEST_AMOUNT = 2**63 - 1  # bytes of memory of one type
LARGEST_RECORD = 600_000  # bytes of JSON, spec and status together
LARGEST_EXCLUSIVE = 100_000  # bytes of that for the exclusive CPUs and memory of pods

# Reasons of a record that is not Ready and does not show all holders.
HOLDINGS_LEFT_OUT = frozenset({"UnknownDevices", "TooManyDevices", "RecordRefused"})

# Resources whose devices are GPUs, whatever their ids look like.
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
GPU_IDS, MIG_IDS = "GPU-", "MIG-"

_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*(::[0-9]+)?")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
# Bytes that a part takes in JSON beside its words, rounded up.
_SPEC, _GPU, _MIG, _LINK, _NIC, _DISTANCE = 2_000, 250, 120, 95, 60, 32
_STATUS, _ALLOCATION, _DEVICE = 50_000, 110, 4
_IDLE = 40  # including its comma and spaces
_NUMA_NODE, _MEMORY, _HOLDING, _BLOCK, _NUMBER = 80, 120, 60, 60, 4


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a record cannot be relied on."""

    reason: str  # a word
    message: str  # a sentence


@dataclass(frozen=True, slots=True)
class PublishedHoldings:
    """What is published of who holds what."""

    allocatable: frozenset[DeviceId] | None
    allocations: tuple[Allocation, ...]
    problem: Problem | None = None
    left_out: int = 0  # device ids
    room: int = 0  # bytes that are left


def publishable(device_id: str) -> bool:
    """Whether a record may hold a device id."""
    return len(device_id) <= LONGEST_NAME and _DEVICE_ID.fullmatch(device_id) is not None


def unknown_devices(
    allocatable: Mapping[str, Iterable[DeviceId]],
    allocations: Sequence[Allocation],
    gpus: Iterable[GpuUuid] | None,
) -> list[tuple[str, DeviceId]]:
    """Device ids that name no known GPU, with their resources, in order.

    Some plugins number devices (``nvidia0``) instead of naming GPUs. ``gpus`` are the node's, None
    if nobody could look. A GPU that is held and gone is not unknown.
    """
    known = None if gpus is None else set(gpus)
    found = {
        (resource, device)
        for resource, ids in allocatable.items()
        for device in ids
        if not device.startswith(MIG_IDS)
        and (
            not device.startswith(GPU_IDS) or (known is not None and base_uuid(device) not in known)
        )
    }
    found |= {
        (a.resource, device)
        for a in allocations
        if a.resource != GPU_DRIVER
        for device in a.device_ids
        if not device.startswith((GPU_IDS, MIG_IDS))
    }
    return sorted(found)


def publishable_holdings(
    allocatable: Mapping[str, Iterable[DeviceId]] | None,
    allocations: Sequence[Allocation],
    unknown: Sequence[tuple[str, DeviceId]],
    room: int = LARGEST_RECORD,
) -> PublishedHoldings:
    """The part of this that a record holds, in ``room`` bytes.

    Readers would take a part of the allocatable devices for all: so all are published or none, and
    none if ids are ``unknown``. Allocations are left out one by one, the last ones first.
    """
    offered = None
    if allocatable is not None:
        offered = frozenset(device for ids in allocatable.values() for device in ids)
    merged = _merged(allocations)
    total = len(offered or ()) + sum(len(a.device_ids) for a in merged)
    kept = [replace(a, device_ids=tuple(filter(publishable, a.device_ids))) for a in merged]
    fitting: list[Allocation] = []
    room -= _STATUS
    for a in kept:
        size = _ALLOCATION + len(a.pod_uid) + len(a.namespace) + len(a.pod) + len(a.container)
        size += len(a.resource) + sum(len(i) + _DEVICE for i in a.device_ids)
        if not a.device_ids or len(a.device_ids) > MOST_DEVICE_IDS:
            continue
        if size > room or len(fitting) == MOST_ALLOCATIONS:
            continue
        fitting.append(a)
        room -= size
    listed = offered
    if listed is not None and (
        unknown
        or len(listed) > MOST_DEVICE_IDS
        or sum(len(i) + _DEVICE for i in listed) > room
        or not all(map(publishable, listed))
    ):
        listed = None
    room -= sum(len(i) + _DEVICE for i in listed or ())
    left_out = total - len(listed or ()) - sum(len(a.device_ids) for a in fitting)
    problem = None
    if unknown:
        problem = _of_unknown(unknown)
    elif left_out:
        problem = Problem(
            "TooManyDevices",
            f"{left_out} of {total} device ids do not fit into a record, which holds "
            f"{MOST_DEVICE_IDS} to hand out, {MOST_ALLOCATIONS} allocations and "
            f"{LARGEST_RECORD // 1000} kB: share each GPU among fewer pods",
        )
    return PublishedHoldings(listed, tuple(fitting), problem, left_out, room)


def idle(found: Sequence[IdleAllocation], room: int) -> tuple[IdleAllocation, ...]:
    """As many idle allocations as fit into so many bytes; the others look as if they were used."""
    return tuple(found[: max(0, room) // _IDLE])


@dataclass(frozen=True, slots=True)
class PublishedExclusive:
    """What is published of pods' exclusive CPUs and memory."""

    holdings: tuple[Holding, ...] | None
    size: int = 0  # bytes
    unseen: tuple[Unseen, ...] = ()


def exclusive(holdings: tuple[Holding, ...] | None) -> PublishedExclusive:
    """All exclusive CPUs and memory, or none: readers would take a part for all."""
    if holdings is None:
        return PublishedExclusive(None)
    for block in (block for holding in holdings for block in holding.memory):
        if not (memory_fits(block.type, block.amount) and all(map(_can_be_hinted, block.nodes))):
            return _hidden(
                f"the kubelet tells of {block.amount} bytes of {block.type[:64]!r} on the NUMA "
                f"nodes {', '.join(map(str, block.nodes))[:64]}, which no record can hold"
            )
    size = sum(map(_size_of_holding, holdings))
    blocks = max((len(holding.memory) for holding in holdings), default=0)
    if len(holdings) > MOST_EXCLUSIVE or blocks > MOST_BLOCKS or size > LARGEST_EXCLUSIVE:
        return _hidden(
            f"{len(holdings)} pods have some, a record holds {LARGEST_EXCLUSIVE // 1000} kB of it "
            f"and {MOST_BLOCKS} blocks of memory of a pod"
        )
    return PublishedExclusive(holdings, size)


def _hidden(cause: str) -> PublishedExclusive:
    return PublishedExclusive(None, 0, (Unseen("exclusive CPUs and memory", cause),))


def memory_fits(kind: str, amount: int) -> bool:
    """Whether a record can hold this type of memory with this number of bytes."""
    return 0 < len(kind) <= LONGEST_TYPE and 0 <= amount <= LARGEST_AMOUNT


def _size_of_holding(holding: Holding) -> int:
    names = len(holding.namespace) + len(holding.pod) + len(cpu_list(holding.cpus))
    blocks = sum(_BLOCK + len(b.type) + _NUMBER * len(b.nodes) for b in holding.memory)
    return _HOLDING + names + blocks


def _of_unknown(unknown: Sequence[tuple[str, DeviceId]]) -> Problem:
    resource, example = unknown[0]
    count = len(unknown)
    what = "id is" if count == 1 else "ids are"
    return Problem(
        "UnknownDevices",
        f"{count} device {what} of no GPU of this node that we know, such as "
        f"{example[:64]!r} of {resource}: who holds which GPU cannot be told",
    )


def _merged(allocations: Sequence[Allocation]) -> list[Allocation]:
    """One allocation for each key: two pods of one name without UIDs become one."""
    by_key: dict[tuple[str, ...], Allocation] = {}
    for a in allocations:
        key = (a.pod_uid, a.namespace, a.pod, a.container, a.resource)
        known = by_key.get(key)
        ids = a.device_ids if known is None else (*known.device_ids, *a.device_ids)
        by_key[key] = replace(a, device_ids=tuple(dict.fromkeys(ids)))
    return list(by_key.values())


def room_beside(topology: NodeTopology | None, numa: NumaFacts | None = None) -> int:
    """The bytes that a node's hardware leaves for its holders."""
    if topology is None:
        return LARGEST_RECORD - _SPEC
    lists = 0
    if numa is not None:
        lists = len(cpu_list(numa.allocatable)) + len(cpu_list(numa.whole_cores))
        for node in numa.nodes:
            lists += _NUMA_NODE + len(cpu_list(node.cpus)) + _MEMORY * len(node.memory)
    gpus = sum(
        _GPU + len(g.uuid) + len(g.product) + _MIG * len(g.mig_instances) for g in topology.gpus
    )
    nics = sum(_NIC + len(n.name) + _DISTANCE * len(n.distances) for n in topology.nics)
    return LARGEST_RECORD - _SPEC - gpus - nics - lists - _LINK * len(topology.links)


def resources(
    served: Sequence[GpuResource],
) -> tuple[tuple[GpuResource, ...], tuple[Unseen, ...], Problem | None]:
    """The resources that a record holds, what it leaves out, and why it is not reliable."""
    first = sorted(served, key=lambda r: (r.name not in GPU_RESOURCES, r.name))
    kept = sorted(first[:MOST_RESOURCES], key=lambda r: r.name)
    unseen = []
    if len(served) > MOST_RESOURCES:
        unseen.append(
            Unseen("resources", f"{len(served)} are served, a record holds {MOST_RESOURCES}")
        )
    problem = None
    most = max(kept, key=lambda r: r.replicas, default=None)
    if most is not None and most.replicas > MOST_REPLICAS:
        problem = Problem(
            "TooManyDevices",
            f"{most.name} has {most.replicas} devices for one GPU, at most {MOST_REPLICAS} can be "
            "told: share each GPU among fewer pods",
        )
    return (
        tuple(replace(r, replicas=min(r.replicas, MOST_REPLICAS)) for r in kept),
        tuple(unseen),
        problem,
    )


def hardware(topology: NodeTopology) -> tuple[NodeTopology, tuple[Unseen, ...]]:
    """The hardware that a record holds, and what it leaves out."""
    unseen: list[Unseen] = []
    nics = topology.nics
    if len(nics) > MOST_NICS:
        nics = _nearest(topology)
        unseen.append(
            Unseen(
                "RDMA NICs",
                f"{len(topology.nics)} are there, a record holds {MOST_NICS}: the nearest ones",
            )
        )
    gpus = tuple(_gpu(gpu, unseen) for gpu in topology.gpus)
    nics = tuple(
        replace(nic, name=plain(nic.name), numa_node=_numa(nic.numa_node, nic.name, unseen))
        for nic in nics
    )
    return replace(topology, gpus=gpus, nics=nics), tuple(unseen)


def plain(text: str) -> str:
    """The text as a record may hold it: a blank for each line break and control character."""
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)


def _gpu(gpu: Gpu, unseen: list[Unseen]) -> Gpu:
    if len(gpu.mig_instances) > MOST_MIG_INSTANCES:
        unseen.append(
            Unseen(
                "MIG instances",
                f"{len(gpu.mig_instances)} are there, a record holds {MOST_MIG_INSTANCES}",
                f"GPU {gpu.index}",
            )
        )
    bus = gpu.pci_bus_id
    return replace(
        gpu,
        product=plain(gpu.product[:LONGEST_NAME]),
        pci_bus_id=bus if bus and _BUS_ID.fullmatch(bus) else None,
        numa_node=_numa(gpu.numa_node, f"GPU {gpu.index}", unseen),
        mig_instances=gpu.mig_instances[:MOST_MIG_INSTANCES],
        topology_nodes=tuple(filter(_can_be_hinted, gpu.topology_nodes or ())),
    )


def hinted(
    named: Mapping[GpuUuid, tuple[int, ...]],
) -> tuple[Mapping[GpuUuid, tuple[int, ...]], tuple[Unseen, ...]]:
    """The NUMA nodes by GPU that a record holds, and what it leaves out.

    If one node of a GPU is left out, all are: nobody can tell how the kubelet aligns such a GPU.
    """
    kept, unseen = {}, []
    for gpu, nodes in named.items():
        strange = [node for node in nodes if not _can_be_hinted(node)]
        if strange:
            unseen.append(
                Unseen(
                    "NUMA node that the kubelet is told",
                    f"the plugin names {strange[0]}, allowed is 0 to {HIGHEST_HINTED_NODE}",
                    gpu[:64],
                )
            )
        else:
            kept[gpu] = nodes
    return kept, tuple(unseen)


def _can_be_hinted(node: int) -> bool:
    return 0 <= node <= HIGHEST_HINTED_NODE


def _numa(node: int | None, of: str, unseen: list[Unseen]) -> int | None:
    if node is None or node <= HIGHEST_NUMA_NODE:
        return node
    unseen.append(
        Unseen("NUMA node", f"its number is {node}, a record holds {HIGHEST_NUMA_NODE} at most", of)
    )
    return None


def _nearest(topology: NodeTopology) -> tuple[Nic, ...]:
    """As many NICs as fit: each GPU's nearest one, then those that are nearest to any GPU.

    So each GPU keeps its nearest NIC, and pods ask only for that.
    """
    order = {nic.name: i for i, nic in enumerate(topology.nics)}
    first: dict[int, tuple[int, str]] = {}
    for nic in topology.nics:
        for index, kind in nic.distances:
            if index not in first or kind > first[index][0]:
                first[index] = (kind, nic.name)
    needed = {name for _, name in first.values()}

    def rank(nic: Nic) -> tuple[bool, int, int]:
        best = max((kind for _, kind in nic.distances), default=0)
        return nic.name not in needed, -best, order[nic.name]

    kept = sorted(topology.nics, key=rank)[:MOST_NICS]
    return tuple(sorted(kept, key=lambda nic: order[nic.name]))
