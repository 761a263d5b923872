"""The PCI tree as a value: where GPUs and RDMA NICs sit, and how near two of them are.

:mod:`~topology.agent.asks.pci` reads it from sysfs. The classes are those of ``nvidia-smi topo
-m``, and two devices' class follows from where their paths part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topology.agent.decides.observed import Unseen
from topology.core.links import LinkKind

Place = tuple[str, ...]
"""From the PCI root down to the device itself."""


@dataclass(frozen=True, slots=True)
class PciNic:
    """Where an RDMA NIC sits; ``numa`` is None where the platform does not say."""

    place: Place
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class PciTree:
    """Places and NUMA nodes by PCI address, and the RDMA NICs by name.

    ``numa_distances`` has a row for each NUMA node of the machine by its number; None where they
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
