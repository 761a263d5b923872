"""The parts of sysfs that show a machine's PCI tree, with its GPUs and RDMA NICs, and its CPUs.

The kernel shows a device's place as a path of bridges:
``/sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/…``.

A core is what the kubelet counts as one: the CPUs of one NUMA node with the same ``core_id`` and
``physical_package_id`` (cadvisor, which describes the machine to the kubelet, reads these files).
"""

from collections import defaultdict
from pathlib import Path

from topology.agent.model.exclusive import MOST_NUMA_NODES
from topology.agent.model.observations import PciNic, PciTree, Place, Processors, Unseen
from topology.core.devices import positions
from topology.core.numa import CpuSet, cpu_set

FARTHEST = 255  # the kernel stores a distance between NUMA nodes in a byte
CPU_FACT = "CPUs by NUMA node"


def pci_tree(sys: Path) -> PciTree:
    """Return the PCI tree of a sysfs mount. Never raises; parts that cannot be read are unseen."""
    unseen: list[Unseen] = []
    places: dict[str, Place] = {}
    numa: dict[str, int] = {}
    try:
        devices = sorted((sys / "bus/pci/devices").iterdir())
    except OSError as error:
        devices = []
        unseen.append(Unseen("PCI tree", error.strerror or str(error)))
    for link in devices:
        if (place := _place(link)) is not None:
            places[link.name] = place
            if (node := _numa(link)) is not None:
                numa[link.name] = node
    nics: dict[str, PciNic] = {}
    try:
        cards = sorted((sys / "class/infiniband").iterdir(), key=lambda p: _natural(p.name))
    except FileNotFoundError:
        cards = []  # a machine without RDMA; nothing is hidden
    except OSError as error:
        cards = []
        unseen.append(Unseen("RDMA NICs", error.strerror or str(error)))
    for card in cards:
        place = _place(card / "device")
        if place is None:
            unseen.append(Unseen("PCI position of an RDMA NIC", "not on PCI", card.name))
        else:
            nics[card.name] = PciNic(place, _numa(card / "device"))
    return PciTree(places, numa, nics, tuple(unseen), _numa_distances(sys))


def _place(link: Path) -> Place | None:
    try:
        parts = link.resolve(strict=True).parts
    except (OSError, RuntimeError):  # before Python 3.13, RuntimeError if links go in a circle
        return None
    roots = [i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    return parts[roots[0] :] if roots else None


def _numa(device: Path) -> int | None:
    """Return the NUMA node; None if the platform does not say (then the kernel writes -1)."""
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _numa_distances(sys: Path) -> tuple[tuple[int, ...], ...] | None:
    """Return the kernel's row of distances for each NUMA node; None if one cannot be read."""
    rows: list[tuple[int, ...]] = []
    try:
        count = sum(
            p.name.removeprefix("node").isdecimal()
            for p in (sys / "devices/system/node").glob("node*")
        )
        for number in range(count):
            text = (sys / f"devices/system/node/node{number}/distance").read_text()
            rows.append(tuple(int(word) for word in text.split()))
    except (OSError, ValueError):
        return None
    known = 0 < count <= MOST_NUMA_NODES and all(len(row) == count for row in rows)
    plausible = all(0 <= distance <= FARTHEST for row in rows for distance in row)
    return tuple(rows) if known and plausible else None


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def processors(sys: Path) -> Processors | Unseen:
    """Return the CPUs of a sysfs mount that are online. Never raises."""
    try:
        return _processors(sys / "devices/system")
    except OSError as error:
        return Unseen(CPU_FACT, f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return Unseen(CPU_FACT, str(error))


def _processors(system: Path) -> Processors:
    names = [path.name.removeprefix("node") for path in system.glob("node/node*")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if not numbers or numbers != list(range(len(numbers))):
        raise ValueError("NUMA nodes are not numbered from 0 without gaps")
    nodes: list[CpuSet] = []
    sockets: list[int | None] = []
    cores: list[CpuSet] = []
    for number in numbers:
        cpus = cpu_set((system / f"node/node{number}/cpulist").read_text())
        by_core: defaultdict[tuple[int, int], int] = defaultdict(int)
        for cpu in positions(cpus):
            topology = system / f"cpu/cpu{cpu}/topology"
            package = int((topology / "physical_package_id").read_text())
            by_core[package, int((topology / "core_id").read_text())] |= 1 << cpu
        packages = {package for package, _ in by_core}
        nodes.append(cpus)
        # The kernel writes -1 if the platform does not say.
        sockets.append(packages.pop() if len(packages) == 1 and min(packages) >= 0 else None)
        cores += map(CpuSet, by_core.values())
    return Processors(tuple(nodes), tuple(sockets), tuple(cores))
