"""What the agent has seen of its node, as values. Nothing here does I/O.

NVML shows GPUs and their links (:class:`SeenNode`) and the values that change (:class:`Vitals`).
sysfs shows where GPUs and RDMA NICs are in the PCI tree (:class:`PciTree`) and the machine's CPUs
(:class:`Processors`). The classes of PCIe paths are those of ``nvidia-smi topo -m``. The class of
two devices depends on the point where their paths from the root separate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from topology.core.devices import Bytes, Fabric, Gpu, GpuUuid
from topology.core.links import LinkKind
from topology.core.numa import CpuSet


@dataclass(frozen=True, slots=True, order=True)
class Unseen:
    """A fact that the agent could not find out, and why."""

    fact: str
    cause: str  # why not
    of: str = ""  # the devices that the fact is about; empty if it is about no particular device

    def __str__(self) -> str:
        return f"{self.fact}{f' of {self.of}' if self.of else ''}: {self.cause}"


class Remote(Enum):
    """The device at the far end of an NVLink."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"  # a CPU, as on POWER9; it leads to no GPU
    UNKNOWN = "unknown"  # the driver does not say, as in many virtual machines


@dataclass(frozen=True, slots=True)
class NvlinkEnd:
    """One NVLink as one of its GPUs sees it."""

    number: int  # NVML's
    active: bool
    remote: Remote = Remote.UNKNOWN
    remote_bus: str | None = None
    version: int | None = None  # NVML's


@dataclass(frozen=True, slots=True)
class FabricState:
    """The state of a GPU in its NVLink fabric."""

    registered: bool  # whether its registration is complete
    misconfigured: bool = False
    route_unhealthy: bool = False
    degraded: bool = False  # its bandwidth is less than it should be
    recovering: bool = False

    @property
    def usable(self) -> bool:
        """Whether its NVLinks through a switch can be relied on."""
        return self.registered and not (self.misconfigured or self.route_unhealthy)


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What NVML shows of one GPU."""

    gpu: Gpu
    nvlinks: tuple[NvlinkEnd, ...] = ()  # the links that it has, active or not
    fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """What NVML shows of a node.

    Pairs are GPU indices, the smaller one first. A pair is absent if NVML does not say.
    """

    gpus: tuple[SeenGpu, ...] = ()
    # The PCIe class of each pair (`pcie`), and whether its peers may use NVLink (`p2p`).
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
    """The values that change on one MIG instance. The driver has no utilisation for it."""

    uuid: str
    processes: int | None = None  # how many run there; None if the driver does not say
    memory_used: Bytes | None = None  # None if the driver does not say


@dataclass(frozen=True, slots=True)
class Vitals:
    """The values that change on one GPU. None means that the driver does not say.

    For a GPU that does not answer, only ``lost`` or ``hung`` is known.
    """

    uuid: GpuUuid
    lost: bool = False  # whether its calls fail
    hung: bool = False  # whether its calls do not return
    active_links: frozenset[int] | None = None  # NVML's numbers
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    sram_exceeded: bool | None = None  # whether its SRAM has more ECC errors than NVIDIA allows
    fabric: FabricState | None = None  # also None where the GPU can be in none
    energy: int | None = None  # mJ since the last load of the driver or reset of the GPU
    recovery: str | None = None
    # The share of the last second or less in which a kernel ran, and in which memory was read or
    # written, 0 to 1.
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_used: Bytes | None = None
    processes: tuple[GpuProcess, ...] | None = None  # ascending
    instances: tuple[InstanceVitals, ...] = ()  # of a GPU that is split by MIG

    @property
    def silent(self) -> bool:
        """Whether the GPU does not answer."""
        return self.lost or self.hung


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported."""

    uuid: GpuUuid | None  # None if the driver does not say which GPU
    number: int


@dataclass(frozen=True, slots=True)
class NvmlState:
    """What NVML has shown last."""

    seen: SeenNode | None = None
    vitals: tuple[Vitals, ...] = ()
    rounds: int = 0  # how often the vitals were read
    problem: str = "it has not answered yet"  # why no newer values are known; empty if NVML works
    asked: bool = False  # whether NVML has answered or failed at least once
    # The driver's numbers of the GPUs that it counts, that do not answer and whose UUID is unknown
    # (`nameless`), and of those among them over which a call hangs (`hung`).
    nameless: tuple[int, ...] = ()
    hung: tuple[int, ...] = ()
    looks: int = 0  # how many readings ended
    look_seconds: float = 0.0  # the total time that they took


@dataclass(frozen=True, slots=True)
class Processors:
    """The CPUs that the kernel shows; CPUs that are offline are left out."""

    nodes: tuple[CpuSet, ...]  # the CPUs of each NUMA node, by its number
    # The package of each NUMA node; None if the node has no CPUs, or CPUs of several packages.
    sockets: tuple[int | None, ...]
    cores: tuple[CpuSet, ...]  # sets of CPUs that share a core


@dataclass(frozen=True, slots=True)
class CountedDevices:
    """How many devices of plugins the kubelet counts, according to the Node's status."""

    at: str  # when the kubelet wrote it (RFC 3339)
    # all that plugins have registered, by resource (the Node's capacity)
    devices: Mapping[str, int]
    in_order: Mapping[str, int]  # the healthy ones, which it hands out (the Node's allocatable)


Place = tuple[str, ...]  # from the PCI root down to the device itself


@dataclass(frozen=True, slots=True)
class PciNic:
    """The position of an RDMA NIC in the PCI tree."""

    place: Place
    numa: int | None = None  # None if the platform does not say


@dataclass(frozen=True, slots=True)
class PciTree:
    """The PCI tree and the NUMA nodes of a machine."""

    places: Mapping[str, Place] = field(default_factory=dict)  # by PCI address
    numa: Mapping[str, int] = field(default_factory=dict)  # NUMA nodes by PCI address
    nics: Mapping[str, PciNic] = field(default_factory=dict)  # RDMA NICs by name
    unseen: tuple[Unseen, ...] = ()
    # A row for each NUMA node, by its number; None if rows are missing or the numbers have gaps.
    numa_distances: tuple[tuple[int, ...], ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole tree could be read."""
        return not self.unseen and self.numa_distances is not None

    def between(self, gpu: Gpu, other: Gpu) -> LinkKind:
        """Return the class of the path between two GPUs; UNKNOWN if one is not in the tree."""
        bus, there = gpu.pci_bus_id or "", other.pci_bus_id or ""
        a, b = self.places.get(bus), self.places.get(there)
        if a is None or b is None:
            return LinkKind.UNKNOWN
        return pcie_class(a, b, self.numa.get(bus), self.numa.get(there))


def pcie_class(a: Place, b: Place, numa_a: int | None, numa_b: int | None) -> LinkKind:
    """Return the class of the path between two places in the PCI tree.

    Under different roots it is SYS, or NODE if both places are known to be on one NUMA node. Below
    one root without a common bridge it is PHB. Below a common bridge it is PIX if neither path has
    more than one bridge (the port of a switch) below it, else PXB.

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
