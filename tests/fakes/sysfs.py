"""A sysfs mount with a machine's PCI tree: the folders and links that the kernel shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.machines import Machine


@dataclass(frozen=True, slots=True)
class Identity:
    """What the PCI bus says that a device is: vendor, model, and class (a 3D controller …)."""

    vendor: str
    device: str
    function: str


GPU = Identity("0x10de", "0x20b0", "0x030200")
NIC = Identity("0x15b3", "0x101b", "0x020700")


def write_sysfs(folder: Path, topology: NodeTopology, machine: Machine) -> None:
    """Lay the tree of ``machine`` out under ``folder``, with the bus addresses of ``topology``.

    Joins of the machine's bus line become bridges: SYS and NODE part PCI roots, PHB root ports, PXB
    switches below one switch, PIX ports of one switch.
    """
    joins = [LinkKind[word] for word in machine.pcie.split()[1::2]]
    domain = 0
    counters = [0, 0, 0]
    numa = _numa_of_leaves(machine)
    (folder / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for i, leaf in enumerate(machine.leaves):
        if i:
            kind = joins[i - 1]
            if kind <= LinkKind.NODE:
                domain, counters = domain + 1, [0, 0, 0]
            elif kind is LinkKind.PHB:
                counters = [counters[0] + 1, 0, 0]
            elif kind is LinkKind.PXB:
                counters = [counters[0], counters[1] + 1, 0]
            else:
                counters[2] += 1
        port, switch, slot = counters
        is_gpu = leaf.isdecimal()
        if is_gpu:
            bus = str(topology.gpus[int(leaf)].pci_bus_id)
        else:
            bus = f"00{0xA0 + i:02x}:{domain:02x}:00.0"
        place = (
            folder
            / f"devices/pci0000:{domain:02x}"
            / f"0000:{domain:02x}:{port + 1:02x}.0"
            / f"up{port}"
            / f"sw{port}-{switch}"
            / f"up{port}-{switch}"
            / f"down{port}-{switch}-{slot}"
            / bus
        )
        _write_device(place, numa[i], GPU if is_gpu else NIC)
        (folder / "bus/pci/devices" / bus).symlink_to(place)
        if not is_gpu:
            card = folder / "class/infiniband" / leaf
            card.mkdir(parents=True)
            (card / "device").symlink_to(place)


def write_gpus(folder: Path, topology: NodeTopology) -> None:
    """The GPUs of ``topology`` alone, each below a PCI root of its own."""
    (folder / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for gpu in topology.gpus:
        bus = str(gpu.pci_bus_id)
        place = folder / f"devices/pci0000:{gpu.index:02x}" / bus
        _write_device(place, gpu.numa_node, GPU)
        (folder / "bus/pci/devices" / bus).symlink_to(place)


def write_processors(
    folder: Path, nodes: Sequence[Sequence[Sequence[int]]], sockets: Sequence[int]
) -> None:
    """The CPUs of each core of each NUMA node, and the socket of each NUMA node.

    As on many machines, the cores of every socket are numbered from 0 on.
    """
    system = folder / "devices/system"
    for number, (cores, socket) in enumerate(zip(nodes, sockets, strict=True)):
        node = system / f"node/node{number}"
        node.mkdir(parents=True)
        cpus = [cpu for core in cores for cpu in core]
        (node / "cpulist").write_text(",".join(map(str, sorted(cpus))) + "\n")
        for core_id, core in enumerate(cores):
            for cpu in core:
                place = system / f"cpu/cpu{cpu}/topology"
                place.mkdir(parents=True)
                (place / "core_id").write_text(f"{core_id}\n")
                (place / "physical_package_id").write_text(f"{socket}\n")


def _write_device(place: Path, numa: int | None, identity: Identity) -> None:
    """A device's files, as far as NVIDIA's programs and ours read them."""
    place.mkdir(parents=True)
    (place / "numa_node").write_text(f"{-1 if numa is None else numa}\n")
    (place / "vendor").write_text(f"{identity.vendor}\n")
    (place / "device").write_text(f"{identity.device}\n")
    (place / "class").write_text(f"{identity.function}\n")
    (place / "config").write_bytes(bytes(256))
    (place / "resource").write_text("0x0 0x0 0x0\n")


def _numa_of_leaves(machine: Machine) -> list[int | None]:
    """The NUMA node of each leaf; a NIC has its neighbour's on this side of SYS."""
    joins = [LinkKind[word] for word in machine.pcie.split()[1::2]]
    found: list[int | None] = [
        machine.numa_nodes[int(leaf)] if leaf.isdecimal() else None for leaf in machine.leaves
    ]
    for _ in found:
        for (i, j), kind in zip(pairwise(range(len(found))), joins, strict=True):
            if kind > LinkKind.SYS:
                found[i] = found[j] if found[i] is None else found[i]
                found[j] = found[i] if found[j] is None else found[j]
    return found
