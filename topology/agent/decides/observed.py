"""What the agent has seen of its node, as values: nothing here asks anybody.

NVML shows GPUs and their links (:class:`SeenNode`) and what moves on them (:class:`Vitals`). sysfs
shows where GPUs and RDMA NICs sit (:class:`PciTree`) and the machine's CPUs (:class:`Processors`).
The classes of PCIe paths are those of ``nvidia-smi topo -m``: two devices' class follows from where
their paths part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from topology.core.devices import Bytes, Fabric, GpuUuid, MigInstance
from topology.core.links import LinkKind
from topology.core.numa import CpuSet


@dataclass(frozen=True, slots=True, order=True)
class Unseen:
    """A fact that could not be had, and why not; ``of`` says of which devices, if of some."""

    fact: str
    cause: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.fact}{f' of {self.of}' if self.of else ''}: {self.cause}"


class Remote(Enum):
    """What is at the far end of an NVLink."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"  # a CPU, as on POWER9: no GPU is reached by it
    UNKNOWN = "unknown"  # not to be identified, as in many virtual machines


@dataclass(frozen=True, slots=True)
class NvlinkEnd:
    """One NVLink as seen from one GPU. ``number`` and ``version`` are NVML's."""

    number: int
    active: bool
    remote: Remote = Remote.UNKNOWN
    remote_bus: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What NVML says of one GPU; ``nvlinks`` are the links it has, active or not."""

    index: int
    uuid: GpuUuid
    product: str
    memory: Bytes
    pci_bus_id: str
    numa_node: int | None = None
    mig_mode: str = "disabled"
    mig_instances: tuple[MigInstance, ...] = ()
    nvlinks: tuple[NvlinkEnd, ...] = ()
    fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """What NVML says of a node.

    ``pcie`` and ``p2p`` are by pairs of GPU indices, the smaller first: the PCIe class, and whether
    peers may use NVLink. A pair that is absent could not be had.
    """

    gpus: tuple[SeenGpu, ...] = ()
    driver: str = ""
    pcie: Mapping[tuple[int, int], LinkKind] = field(default_factory=dict)
    p2p: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class GpuProcess:
    """A process on a GPU, and how much of the GPU's memory it uses."""

    pid: int
    memory: Bytes


@dataclass(frozen=True, slots=True)
class InstanceVitals:
    """What moves on one MIG instance; None if it could not be had.

    ``processes`` is how many there are. The driver has no utilisation of a MIG instance.
    """

    uuid: str
    processes: int | None = None
    memory_used: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """What moves on one GPU; None if it could not be had.

    ``active_links`` are NVML's numbers. ``energy`` is in mJ since the driver or the GPU was last
    reset. ``utilisation`` and ``memory_utilisation`` are 0 to 1: for how much of the last second or
    less a kernel ran, and memory was read or written. ``processes`` ascend. ``instances`` are those
    of a GPU that is split by MIG. Of a GPU that does not answer nothing is told but that: it is
    ``lost`` if its calls fail, and ``hung`` if they do not return.
    """

    uuid: GpuUuid
    lost: bool = False
    hung: bool = False
    active_links: frozenset[int] | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    energy: int | None = None
    recovery: str | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_used: Bytes | None = None
    processes: tuple[GpuProcess, ...] | None = None
    instances: tuple[InstanceVitals, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether the GPU does not answer."""
        return self.lost or self.hung


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported; ``uuid`` is None if the GPU could not be told."""

    uuid: GpuUuid | None
    number: int


@dataclass(frozen=True, slots=True)
class NvmlState:
    """The last that was seen; ``problem`` says why nothing newer is, empty if all is well.

    ``rounds`` counts looks at the vitals; ``asked`` is false before the first answer or failure.
    ``nameless`` are the driver's numbers of GPUs that it counts, that do not answer, and whose UUID
    nobody knows; ``hung`` are those of them over which a call hangs. ``looks`` counts the looks
    that ended, and ``look_seconds`` is how long they took, all together.
    """

    seen: SeenNode | None = None
    vitals: tuple[Vitals, ...] = ()
    rounds: int = 0
    problem: str = "it has not answered yet"
    asked: bool = False
    nameless: tuple[int, ...] = ()
    hung: tuple[int, ...] = ()
    looks: int = 0
    look_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Processors:
    """What the kernel shows of a machine's CPUs, those that are offline left out.

    ``nodes`` are the CPUs of each NUMA node by its number, ``sockets`` the number of its package,
    None if it has no CPUs, or those of several packages. ``cores`` are CPUs that share a core.
    """

    nodes: tuple[CpuSet, ...]
    sockets: tuple[int | None, ...]
    cores: tuple[CpuSet, ...]


@dataclass(frozen=True, slots=True)
class CountedDevices:
    """How many devices of plugins the kubelet counts, by the Node's status.

    ``devices`` are all that plugins have told it of (the capacity), ``in_order`` those that it
    hands out (the allocatable ones), by resource. ``at`` is when it wrote that, RFC 3339.
    """

    at: str
    devices: Mapping[str, int]
    in_order: Mapping[str, int]


Place = tuple[str, ...]  # from the PCI root down to the device itself


@dataclass(frozen=True, slots=True)
class PciNic:
    """Where an RDMA NIC sits; ``numa`` is None if the platform does not say."""

    place: Place
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class PciTree:
    """Places and NUMA nodes by PCI address, and the RDMA NICs by name.

    ``numa_distances`` has a row for each NUMA node of the machine by its number; None if they
    are not to be had or not numbered without gaps.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    numa: Mapping[str, int] = field(default_factory=dict)
    nics: Mapping[str, PciNic] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    numa_distances: tuple[tuple[int, ...], ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether all of it could be read."""
        return not self.unseen and self.numa_distances is not None

    def between(self, bus: str, other: str) -> LinkKind:
        """The class of two PCI addresses; UNKNOWN if one of them is not in the tree."""
        a, b = self.places.get(bus), self.places.get(other)
        if a is None or b is None:
            return LinkKind.UNKNOWN
        return pcie_class(a, b, self.numa.get(bus), self.numa.get(other))


def pcie_class(a: Place, b: Place, numa_a: int | None, numa_b: int | None) -> LinkKind:
    """The class of two places.

    Under different roots it is SYS, or NODE if both are known to be on one NUMA node. Below one
    root and no common bridge it is PHB. Below a common bridge it is PIX if neither has more than
    one bridge (the port of a switch) in between, else PXB.

    >>> pcie_class(("pci0000:00", "01.0", "up", "p0", "gpu"), ("pci0000:00", "01.0", "up", "p1",
    ...     "nic"), 0, 0).name
    'PIX'
    """
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common == 0:
        same = numa_a is not None and numa_a == numa_b
        return LinkKind.NODE if same else LinkKind.SYS
    if common == 1:
        return LinkKind.PHB
    between = max(len(a), len(b)) - common - 1
    return LinkKind.PIX if between <= 1 else LinkKind.PXB
