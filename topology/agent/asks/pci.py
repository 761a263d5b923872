"""The PCI tree from sysfs: where GPUs and RDMA NICs sit, and how near two of them are.

The kernel shows a device's place as a path of bridges:
``/sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/…``. The classes are those of ``nvidia-smi topo
-m``, and two devices' class follows from where their paths part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from topology.agent.decides.observed import Unseen
from topology.core.links import LinkKind

Place = tuple[str, ...]
"""From the PCI root down to the device itself."""


@dataclass(frozen=True, slots=True)
class PciTree:
    """Places and NUMA nodes by PCI address; NICs by name with theirs."""

    places: Mapping[str, Place] = field(default_factory=dict)
    numa: Mapping[str, int] = field(default_factory=dict)
    nics: Mapping[str, tuple[Place, int | None]] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()

    def between(self, bus: str, other: str) -> LinkKind:
        """The class of two PCI addresses; UNKNOWN where one of them is not in the tree."""
        a, b = self.places.get(bus), self.places.get(other)
        if a is None or b is None:
            return LinkKind.UNKNOWN
        return pcie_class(a, b, self.numa.get(bus), self.numa.get(other))


def pcie_class(a: Place, b: Place, numa_a: int | None, numa_b: int | None) -> LinkKind:
    """The class of two places.

    Under different roots it is SYS, or NODE where both are known to be on one NUMA node. Below one
    root and no common bridge it is PHB. Below a common bridge it is PIX where neither has more than
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


def read(sys: Path) -> PciTree:
    """The tree of a sysfs mount. Never raises: what cannot be read is unseen."""
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
    nics: dict[str, tuple[Place, int | None]] = {}
    try:
        cards = sorted((sys / "class/infiniband").iterdir(), key=lambda p: _natural(p.name))
    except FileNotFoundError:
        cards = []  # no RDMA here: nothing is hidden
    except OSError as error:
        cards = []
        unseen.append(Unseen("RDMA NICs", error.strerror or str(error)))
    for card in cards:
        place = _place(card / "device")
        if place is None:
            unseen.append(Unseen("place of an RDMA NIC", "not on PCI", card.name))
        else:
            nics[card.name] = (place, _numa(card / "device"))
    return PciTree(places, numa, nics, tuple(unseen))


def _place(link: Path) -> Place | None:
    try:
        parts = link.resolve(strict=True).parts
    except OSError:
        return None
    roots = [i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    return parts[roots[0] :] if roots else None


def _numa(device: Path) -> int | None:
    """The NUMA node; the kernel writes -1 where the platform does not say."""
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
