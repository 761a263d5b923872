"""The notation of machines in the catalogue, and the construction of nodes from it.

**The bus line** lists the leaves of the PCIe tree in order. Between two neighbours it has the PCIe
class of their connection. PCIe is a tree, so the class of any two leaves is the weakest class
between them on the line. One line thus holds the classes of all pairs of GPUs (numbers) and RDMA
NICs (names). ``"nic0 PIX 0 PIX 1 PHB 2 PIX 3"`` puts GPUs 0 and 1 and a NIC under one switch, GPUs
2 and 3 under another, and both switches under one host bridge.

**A wiring** gives the NVLinks of each pair: :func:`drawn` from a matrix, :func:`groups`,
:func:`all_to_all`, :func:`switched`, or :data:`UNLINKED`. The bandwidth per link comes from
:func:`topology.core.links.nvlink_port`, which has it by product.

**The CPUs** are sockets × cores × threads, and the NUMA nodes of a socket if it has several:
``"2x64x2/4"`` is two sockets with 64 cores of two threads each, in eight NUMA nodes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import combinations

from topology.core.devices import MIB, Bytes, Fabric, Gpu, GpuUuid, Nic, NodeName
from topology.core.graph import AllocatorConfig, NodeTopology, TopologyError
from topology.core.links import GBps, Link, LinkKind, Via, nvlink_port
from topology.core.numa import CpuSet, NumaConfig, NumaNode
from topology.core.shape import Shape

# The defaults of NVIDIA's device plugin for whole GPUs, and of a kubelet.
STOCK = AllocatorConfig(
    policy="best-effort", cpu_manager_policy="none", memory_manager_policy="None"
)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model."""

    product: str  # as NVML reports it
    mib: int  # NVML's total memory


@dataclass(frozen=True, slots=True)
class Wiring:
    """The NVLinks of a machine."""

    count: Callable[[int, int], int]  # the number of NVLinks of a pair of GPU indices
    via: Via = Via.DIRECT  # where they end


UNLINKED = Wiring(lambda a, b: 0)


def drawn(*rows: str) -> Wiring:
    """Return the wiring of a symmetric matrix with a row and a column for each GPU.

    A digit is the number of NVLinks, ``.`` is no link, and ``X`` is the GPU itself. Raises
    :class:`TopologyError` if the matrix is not symmetric.

    >>> drawn("X2.", "2X1", ".1X").count(1, 2)
    1
    """
    for a, row in enumerate(rows):
        if len(row) != len(rows) or any(row[b] != rows[b][a] for b in range(a)) or row[a] != "X":
            raise TopologyError(f"nvlink: row {a} of {rows} breaks the symmetry")
    return Wiring(lambda a, b: 0 if rows[a][b] == "." else int(rows[a][b]))


def groups(size: int, links: int) -> Wiring:
    """Return a wiring of groups of ``size`` neighbours, with ``links`` between any two of a group.

    NVLink bridges are groups of two.
    """
    return Wiring(lambda a, b: links if a // size == b // size else 0)


def all_to_all(links: int) -> Wiring:
    """Return a wiring with ``links`` between any two GPUs, without a switch."""
    return Wiring(lambda a, b: links)


def switched(links: int) -> Wiring:
    """Return a wiring of GPUs with ``links`` each to the NVSwitches.

    Each GPU reaches every other over all of these links.
    """
    return Wiring(lambda a, b: links, Via.SWITCH)


@dataclass(frozen=True)
class Machine:
    """A machine of the catalogue: the properties that all nodes of its kind share."""

    name: str
    description: str
    card: Card
    pcie: str  # its bus line
    numa: str  # a character per GPU by index: its NUMA node, or `-` if the platform names none
    buses: str  # PCI addresses, whose usual parts may be left out (`07` is `0000:07:00.0`)
    source: str
    nvlink: Wiring = UNLINKED
    # The reason if PCIe classes and NUMA nodes disagree: SYS within a NUMA node, or a nearer class
    # than SYS between two.
    numa_note: str = ""
    # Empty if they are unknown, or if the NUMA nodes are not numbered from 0 on, as a record needs.
    cpus: str = ""
    rack_scale: bool = False  # a tray of one multi-node NVLink fabric
    _shape: Shape | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        gpus = sorted(int(leaf) for leaf in self.leaves if leaf.isdecimal())
        if gpus != list(range(self.size)):
            raise TopologyError(f"{self.name}: pcie: GPUs {gpus} are not 0 … {self.size - 1}")
        for what, given in (("numa", len(self.numa)), ("buses", len(self.buses.split()))):
            if given != self.size:
                raise TopologyError(f"{self.name}: {what}: {given} for {self.size} GPUs")
        if self.cpus and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}(/[1-9]\d*)?", self.cpus):
            raise TopologyError(f"{self.name}: cpus: {self.cpus}, but 2x64x2/4 is such a value")

    @cached_property
    def size(self) -> int:
        """The number of GPUs."""
        return sum(leaf.isdecimal() for leaf in self.leaves)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The bus line's GPUs (decimal indices) and NICs (names), in its order."""
        return tuple(self.pcie.split()[::2])

    @cached_property
    def classes(self) -> dict[tuple[str, str], LinkKind]:
        """The PCIe class of every two leaves, in both orders."""
        joins = [LinkKind[word] for word in self.pcie.split()[1::2]]
        kinds: dict[tuple[str, str], LinkKind] = {}
        for i, j in combinations(range(len(self.leaves)), 2):
            a, b = self.leaves[i], self.leaves[j]
            kinds[a, b] = kinds[b, a] = min(joins[i:j])
        return kinds

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The link of every pair of GPUs."""
        port = nvlink_port(self.card.product)
        one_way = port.one_way if port is not None else GBps(0.0)
        links = []
        for a, b in combinations(range(self.size), 2):
            pcie, count = self.classes[str(a), str(b)], self.nvlink.count(a, b)
            nvlinks = (count, self.nvlink.via, one_way) if count else ()
            links.append(Link(a, b, pcie, *nvlinks))
        return tuple(links)

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        """The RDMA NICs, each with its distance to every GPU and the NUMA node it shares."""
        nics = []
        for name in self.leaves:
            if not name.isdecimal():
                kinds = [(i, self.classes[name, str(i)]) for i in range(self.size)]
                near = (self.numa_nodes[i] for i, kind in kinds if kind > LinkKind.SYS)
                nics.append(Nic(name, tuple(kinds), next(near, None)))
        return tuple(nics)

    @cached_property
    def numa_nodes(self) -> tuple[int | None, ...]:
        """The NUMA node of each GPU."""
        return tuple(None if node == "-" else int(node) for node in self.numa)

    @cached_property
    def pci_bus_ids(self) -> tuple[str, ...]:
        """The PCI address of each GPU, ``domain:bus:device.function``."""
        return tuple(_address(word) for word in self.buses.split())

    def kubelet(self, cpus: int | None = None, memory: int | None = None) -> AllocatorConfig:
        """Return :data:`STOCK` with the machine's NUMA nodes, as static managers count them.

        Pods may have at most so many of the ``cpus`` exclusively, in whole cores; None means all
        but one core. The ``memory`` in bytes is spread evenly. CPUs are numbered as by Linux on
        x86: first a thread of each core, then the second ones. The distances are usual ones.

        >>> from topology.machines import machine
        >>> numa = machine("dgx-h100").kubelet(cpus=220).numa
        >>> from topology.core.numa import cpu_list
        >>> [cpu_list(node.cpus) for node in numa.nodes], cpu_list(numa.allocatable)
        (['0-55,112-167', '56-111,168-223'], '2-111,114-223')
        """
        if not self.cpus:
            return STOCK
        sockets, cores, threads, of_socket = map(int, re.findall(r"\d+", f"{self.cpus}/1")[:4])
        total, per_node = sockets * cores, cores // of_socket

        def cpus_of(first: int, last: int) -> CpuSet:
            """Return the CPUs of the cores from ``first`` to before ``last``."""
            some = (1 << last) - (1 << first)
            return CpuSet(sum(some << thread * total for thread in range(threads)))

        numbers = range(sockets * of_socket)
        amounts = () if memory is None else (("memory", memory // len(numbers)),)
        nodes = tuple(
            NumaNode(cpus_of(n * per_node, (n + 1) * per_node), n // of_socket, amounts)
            for n in numbers
        )
        reserved = 1 if cpus is None else total - min(cpus // threads, total - 1)
        allocatable = cpus_of(reserved, total)
        distances = tuple(
            tuple(10 if a == b else 12 if a // of_socket == b // of_socket else 32 for b in numbers)
            for a in numbers
        )
        numa = NumaConfig(nodes, allocatable, allocatable, threads)
        return replace(STOCK, numa_distances=distances, numa=numa, full_cores_only=False)

    def topology(
        self, node: str, *, allocator: AllocatorConfig = STOCK, group: str = ""
    ) -> NodeTopology:
        """Return a node of this kind with the name ``node``.

        The same arguments give an equal node, and another name gives other UUIDs. Nodes of one
        machine share links, NICs and shape. Trays of a rack-scale machine with the same ``group``
        share one fabric. Its cluster UUID is made from the name of the group; on real machines
        a fabric manager assigns it.

        >>> from topology.machines import machine
        >>> node = machine("dgx1-v100").topology("train-00")
        >>> node.gpus[0].uuid, node.gpus[0].pci_bus_id
        ('GPU-358e7034-8793-28ab-a73d-32ee5a277218', '0000:06:00.0')
        >>> [link.kind.label for link in node.links[:4]]
        ['NVLINK', 'NVLINK', 'NVLINK', 'NVLINK']
        """
        memory = Bytes(self.card.mib * MIB)
        gpus = tuple(
            Gpu(i, GpuUuid(f"GPU-{uuid_of(f'{node}/{i}')}"), self.card.product, memory, numa, bus)
            for i, (numa, bus) in enumerate(zip(self.numa_nodes, self.pci_bus_ids, strict=True))
        )
        fabric = Fabric(uuid_of(f"{self.name}/{group}"), 1) if self.rack_scale else None
        node_topology = NodeTopology(
            NodeName(node), gpus, self.links, self.nics, allocator=allocator, fabric=fabric
        )
        if self._shape is None:
            object.__setattr__(self, "_shape", node_topology.shape)
        # All nodes of a machine have one shape. So it is not worked out for each of thousands.
        vars(node_topology)["shape"] = self._shape
        return node_topology


def _address(word: str) -> str:
    """Return a PCI address in full: ``07`` is ``0000:07:00.0``, ``10:1c.0`` is ``0000:10:1c.0``."""
    if ":" not in word:
        word += ":00.0"
    return word if word.count(":") == 2 else f"0000:{word}"


def uuid_of(text: str) -> str:
    """Return 128 bits of the text's SHA-256 in the form of a UUID.

    The same text always gives the same UUID, and another text gives another one.
    """
    digest = sha256(text.encode(errors="backslashreplace")).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
