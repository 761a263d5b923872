"""The limits of a record, and what is published of a node that exceeds them.

The API server refuses a whole record for one list that is too long, at every try. Then the node
would have no current record. So the agent does not write a record that exceeds the limits. The
hardware stays as it was written last, and the status says that the record is not Ready, and by how
much it is too large (:func:`too_large`). Two parts can be left out while the rest is published:
NICs, and pods' exclusive CPUs and memory. The condition ``Complete`` names them.

The numbers are those of ``manifests/base/crd.yaml``. The whole record has a limit, too. etcd takes
1.5 MiB for an object, and the API server's notes on field ownership need two thirds of it.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from topology import codec
from topology.agent.model.observations import Unseen
from topology.agent.model.podentries import GPU_DRIVER
from topology.core.devices import DeviceId, Gpu, GpuUuid, Nic, base_uuid
from topology.core.graph import NodeTopology
from topology.core.memo import memoized
from topology.core.mig import MIG_IDS
from topology.core.numa import Holding, cpu_list
from topology.core.report import Allocation, Report

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
MOST_REFUSED = 32
LONGEST_NAME = 253
LONGEST_REASON = 253
LONGEST_MESSAGE = 4000  # shorter than the schema allows, because people read it
HIGHEST_HINTED_NODE = 63  # the kubelet cannot hint at a NUMA node of a higher number
LONGEST_TYPE = 63  # characters of a type of memory
MOST_TYPES = 16  # types of memory of a NUMA node
LARGEST_AMOUNT = 2**63 - 1  # bytes of memory of one type
LARGEST_RECORD = 480_000  # bytes of JSON, spec and status together
LARGEST_EXCLUSIVE = 100_000  # the part of those bytes for exclusive CPUs and memory

# Reasons of records that are not Ready and do not show all holders.
HOLDINGS_LEFT_OUT = frozenset({"UnknownDevices", "TooLarge", "RecordRefused"})

# Resources whose devices are GPUs, whatever form their ids have.
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
GPU_IDS = "GPU-"
NVIDIA = "nvidia.com/"  # the prefix of the names of NVIDIA's resources

_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*(::[0-9]+)?")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
# Bytes that a part takes in JSON in addition to its texts, rounded up.
_HOLDING, _BLOCK, _NUMBER = 60, 60, 4


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a record cannot be relied on."""

    reason: str  # a word
    message: str  # a sentence


def publishable(device_id: str) -> bool:
    """Check whether a record may hold a device id."""
    return len(device_id) <= LONGEST_NAME and _DEVICE_ID.fullmatch(device_id) is not None


def unknown_devices(
    allocatable: Mapping[str, Iterable[DeviceId]],
    allocations: Sequence[Allocation],
    gpus: Iterable[GpuUuid] | None,
) -> list[tuple[str, DeviceId]]:
    """Return the device ids that name no known GPU, or that no record can hold.

    The result has pairs of resource and id, sorted. Some plugins number devices (``nvidia0``)
    instead of naming GPUs. ``gpus`` are the node's, None if the hardware could not be read. A GPU
    that is held and gone is not unknown.
    """
    known = None if gpus is None else set(gpus)
    found = {
        (resource, device)
        for resource, ids in allocatable.items()
        for device in ids
        if not publishable(device)
        or (known is not None and device.startswith(GPU_IDS) and base_uuid(device) not in known)
        or not device.startswith((GPU_IDS, MIG_IDS))
    }
    found |= {
        (a.resource, device)
        for a in allocations
        for device in a.device_ids
        if not publishable(device)
        or (a.resource != GPU_DRIVER and not device.startswith((GPU_IDS, MIG_IDS)))
    }
    return sorted(found)


def publishable_allocations(allocations: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """Return one allocation for each key, without device ids that no record can hold.

    So two pods of one name that have no UID become one allocation.
    """
    by_key: dict[tuple[str, ...], Allocation] = {}
    for a in allocations:
        key = (a.pod_uid, a.namespace, a.pod, a.container, a.resource)
        before = by_key[key].device_ids if key in by_key else ()
        ids = dict.fromkeys((*before, *filter(publishable, a.device_ids)))
        if ids:
            by_key[key] = replace(a, device_ids=tuple(ids))
    return tuple(by_key.values())


def too_large(topology: NodeTopology | None, report: Report) -> Problem | None:
    """Return by how much a record exceeds its limits; None if it fits."""
    gpus = () if topology is None else topology.gpus
    resources = () if topology is None else topology.resources
    held = [len(allocation.device_ids) for allocation in report.allocations]
    found = [
        (len(report.allocatable or ()), MOST_DEVICE_IDS, "device ids to hand out"),
        (len(held), MOST_ALLOCATIONS, "allocations"),
        (max(held, default=0), MOST_DEVICE_IDS, "device ids of one container"),
        (len(resources), MOST_RESOURCES, "resources"),
        (max((r.replicas for r in resources), default=0), MOST_REPLICAS, "shares of one GPU"),
        (
            max((len(gpu.mig_instances) for gpu in gpus), default=0),
            MOST_MIG_INSTANCES,
            "MIG devices of one GPU",
        ),
    ]
    over = [(count, most, what) for count, most, what in found if count > most]
    if not over:
        with suppress(ValueError):  # the writer reports a text that no record can hold
            size = _size_of_spec(topology) + _size(codec.encode_report(report))
            over = [(size, LARGEST_RECORD, "bytes")] if size > LARGEST_RECORD else []
    if not over:
        return None
    words = (f"{count:,} {what}, but at most {most:,} are allowed" for count, most, what in over)
    return Problem("TooLarge", f"the record is too large: it would have {'; '.join(words)}")


@memoized
def _size_of_spec(topology: NodeTopology | None) -> int:
    """Return the size of a node's hardware as JSON, in bytes."""
    return 0 if topology is None else _size(codec.encode_spec(topology))


def _size(part: dict[str, object]) -> int:
    return len(json.dumps(part, separators=(",", ":")))


Published = tuple[tuple[Holding, ...] | None, tuple[Unseen, ...]]


def exclusive(holdings: tuple[Holding, ...] | None) -> Published:
    """Return all exclusive CPUs and memory, or none and the reason why.

    A part of them is never published, because readers would take it for all.
    """
    if holdings is None:
        return None, ()
    for block in (block for holding in holdings for block in holding.memory):
        if not (memory_fits(block.type, block.amount) and all(map(_can_be_hinted, block.nodes))):
            return _hidden(
                f"the kubelet reports {block.amount} bytes of {block.type[:64]!r} on the NUMA "
                f"nodes {', '.join(map(str, block.nodes))[:64]}, which a record cannot express"
            )
    size = sum(map(size_of_holding, holdings))
    blocks = max((len(holding.memory) for holding in holdings), default=0)
    if len(holdings) > MOST_EXCLUSIVE or blocks > MOST_BLOCKS or size > LARGEST_EXCLUSIVE:
        return _hidden(
            f"{len(holdings)} pods have exclusive CPUs or memory, but a record can have "
            f"{LARGEST_EXCLUSIVE // 1000} kB of them and {MOST_BLOCKS} blocks of memory of a pod"
        )
    return holdings, ()


def _hidden(cause: str) -> Published:
    return None, (Unseen("exclusive CPUs and memory", cause),)


def memory_fits(kind: str, amount: int) -> bool:
    """Check whether a record can hold this type of memory with this number of bytes."""
    return 0 < len(kind) <= LONGEST_TYPE and 0 <= amount <= LARGEST_AMOUNT


def size_of_holding(holding: Holding) -> int:
    """Return the most bytes that a pod's exclusive CPUs and memory can take in a record."""
    names = len(holding.namespace) + len(holding.pod) + len(cpu_list(holding.cpus))
    blocks = sum(_BLOCK + len(b.type) + _NUMBER * len(b.nodes) for b in holding.memory)
    return _HOLDING + names + blocks


def of_unknown(unknown: Sequence[tuple[str, DeviceId]]) -> Problem:
    """Return the problem of device ids that name no known GPU."""
    resource, example = unknown[0]
    count = len(unknown)
    what = "id is" if count == 1 else "ids are"
    return Problem(
        "UnknownDevices",
        f"{count} device {what} not of a known GPU of this node, such as {example[:64]!r} of "
        f"{resource}, so the holders of the GPUs are unknown",
    )


def hardware(topology: NodeTopology) -> tuple[NodeTopology, tuple[Unseen, ...]]:
    """Return the part of the hardware that a record holds, and what is left out."""
    unseen: list[Unseen] = []
    nics = topology.nics
    if len(nics) > MOST_NICS:
        nics = _nearest(topology)
        unseen.append(
            Unseen(
                "RDMA NICs",
                f"there are {len(topology.nics)}, but a record can have {MOST_NICS}: it has the "
                "nearest ones",
            )
        )
    gpus = tuple(map(_gpu, topology.gpus))
    nics = tuple(replace(nic, name=plain(nic.name)) for nic in nics)
    return replace(topology, gpus=gpus, nics=nics), tuple(unseen)


def plain(text: str) -> str:
    """Return the text as a record may hold it: each line break and control character is a blank."""
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)


def _gpu(gpu: Gpu) -> Gpu:
    bus = gpu.pci_bus_id
    return replace(
        gpu,
        product=plain(gpu.product[:LONGEST_NAME]),
        pci_bus_id=bus if bus and _BUS_ID.fullmatch(bus) else None,
    )


def hinted(
    named: Mapping[GpuUuid, tuple[int, ...]],
) -> tuple[Mapping[GpuUuid, tuple[int, ...]], tuple[Unseen, ...]]:
    """Return the NUMA nodes by GPU that a record holds, and what is left out.

    If one node of a GPU is left out, all of its nodes are, because the kubelet's alignment of such
    a GPU is not known.
    """
    kept, unseen = {}, []
    for gpu, nodes in named.items():
        strange = [node for node in nodes if not _can_be_hinted(node)]
        if strange:
            unseen.append(
                Unseen(
                    "NUMA node that the plugin reports to the kubelet",
                    f"the plugin names {strange[0]}, but allowed are 0 to {HIGHEST_HINTED_NODE}",
                    gpu[:64],
                )
            )
        else:
            kept[gpu] = nodes
    return kept, tuple(unseen)


def _can_be_hinted(node: int) -> bool:
    return 0 <= node <= HIGHEST_HINTED_NODE


def _nearest(topology: NodeTopology) -> tuple[Nic, ...]:
    """Return as many NICs as fit: each GPU's nearest one, then those that are nearest to any GPU.

    So each GPU keeps its nearest NIC. Pods can request no other NIC than the nearest one.
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
