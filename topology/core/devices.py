"""GPUs and RDMA NICs of a node, and the types of their identities and units."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from topology.core.links import LinkKind
from topology.core.memo import hashed_once

NodeName = NewType("NodeName", str)
GpuUuid = NewType("GpuUuid", str)
# An id as the device plugin advertises it: ``GPU-<uuid>`` or ``MIG-<uuid>``. A shared device has
# ``::<n>`` behind it.
DeviceId = NewType("DeviceId", str)
PodUid = NewType("PodUid", str)
Bytes = NewType("Bytes", int)
Mask = int  # a set of GPUs: bit *p* is the GPU at position *p* of `NodeTopology.gpus`

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance of a GPU in MIG mode."""

    uuid: str
    profile: str  # such as `1g.10gb`
    memory: Bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node."""

    index: int  # the driver's number (NVML, nvidia-smi): unique in a node, not necessarily dense
    uuid: GpuUuid
    product: str
    memory: Bytes  # NVML's total, which is below the marketing number
    numa_node: int | None = None  # None where the platform does not name it
    pci_bus_id: str | None = None
    vendor: str = "nvidia"
    mig_mode: str = "disabled"
    mig_instances: tuple[MigInstance, ...] = ()
    # The NUMA nodes (none, one or several) that the device plugin names to the kubelet
    # (`TopologyInfo` of PodResources). The kubelet aligns by them. If left out, `numa_node` alone.
    topology_nodes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.topology_nodes is None:
            alone = () if self.numa_node is None else (self.numa_node,)
            object.__setattr__(self, "topology_nodes", alone)

    def renamed(self, uuid: GpuUuid) -> Gpu:
        """Return the same GPU under another UUID."""
        return Gpu(
            self.index,
            uuid,
            self.product,
            self.memory,
            self.numa_node,
            self.pci_bus_id,
            self.vendor,
            self.mig_mode,
            self.mig_instances,
            self.topology_nodes,
        )


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA NIC and how near each GPU is to it."""

    name: str
    # (GPU index, PCIe class). The distance to a GPU that is absent here is unknown.
    distances: tuple[tuple[int, LinkKind], ...] = ()
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """A multi-node NVLink domain (NVL72 and the like) that a node's GPUs belong to."""

    cluster_uuid: str
    clique_id: int


@hashed_once
@dataclass(frozen=True)
class GpuResource:
    """An extended resource that the node's device plugin serves."""

    name: str = "nvidia.com/gpu"
    strategy: str = "none"  # whole GPUs; or `time-slicing`, `mps`, `mig`
    replicas: int = 1  # devices that the plugin advertises for one GPU or one MIG instance
    # Whether the plugin refuses a container that requests more than one shared device (its option
    # `failRequestsGreaterThanOne`). None where it is unknown.
    refuses_several: bool | None = None


def base_uuid(device_id: str) -> GpuUuid:
    """Return the GPU or MIG instance of a device id, without a shared device's replica number.

    >>> base_uuid("GPU-5f::3")
    'GPU-5f'
    """
    return GpuUuid(device_id.partition("::")[0])


def positions(mask: Mask) -> list[int]:
    """Return the positions in ``mask``, ascending.

    >>> positions(0b1010)
    [1, 3]
    """
    members = []
    while mask:
        low = mask & -mask
        members.append(low.bit_length() - 1)
        mask ^= low
    return members


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending numbers as runs without gaps.

    >>> runs([0, 1, 2, 5])
    [[0, 1, 2], [5]]
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def bus_id(text: str) -> str:
    """Return a PCI address in its short form.

    >>> bus_id("00000000:8A:00.0")
    '0000:8a:00.0'
    """
    return re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", text.strip().lower())
