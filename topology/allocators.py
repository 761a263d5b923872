"""What kubelet and device plugin may hand out: from a free mask and a size, the outcomes.

An allocator is a *named policy* that a node reports. It never answers with one set but with every
set that the node may choose, or a superset of them that says so: a superset is sound, a subset is
a bug. For now there is one, :class:`Any`, which assumes nothing; a node that names a policy we do
not model is judged by it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Protocol

from topology.devices import Mask, positions
from topology.graph import Shape, subsets

MAX_SETS = 20_000
"""Above so many sets they are not listed: C(16, 8) = 12,870 is."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Everything that may be handed out for ``size`` devices.

    ``sets`` lists the possible sets of distinct GPUs, ascending; ``None`` means "any ``size`` of
    ``free``", too many to list. ``exact`` is false where some listed set may be impossible.
    ``hazards`` names ways in which the node may refuse although devices are free.
    """

    free: Mask
    size: int
    sets: tuple[Mask, ...] | None
    exact: bool = True
    hazards: tuple[str, ...] = ()


class Allocator(Protocol):
    """One device plugin's way to choose.

    ``monotone`` promises that a larger free mask never loses an outcome: then the largest mask of
    a belief speaks for all, and a pod that comes first can only narrow what a later one gets.
    """

    name: str
    monotone: bool

    def outcomes(
        self, shape: Shape, free: Mask, size: int, units: tuple[int, ...] | None = None
    ) -> Outcomes:
        """Every set that may come when ``size`` devices are asked of ``free``.

        ``units`` gives the free devices per position where one GPU is advertised several times
        (time-slicing, MPS); then sets may have fewer members than ``size``. The caller sees to it
        that enough devices are free.
        """
        ...


class Any:
    """Every subset of the free GPUs may come: sound for any plugin, and the least one can know."""

    name = "any"
    monotone = True

    def outcomes(
        self, shape: Shape, free: Mask, size: int, units: tuple[int, ...] | None = None
    ) -> Outcomes:
        """All subsets of ``free`` with ``size`` members; of shared GPUs also smaller ones.

        >>> from topology.machines import machine
        >>> Any().outcomes(machine("dgx1-v100").topology("n").shape, 0b111, 2).sets
        (3, 5, 6)
        """
        if units is None:
            if comb(free.bit_count(), size) > MAX_SETS:
                return Outcomes(free, size, None)
            return _subsets(free, size)
        return _shared_subsets(free, size, units)


@lru_cache(maxsize=4096)
def _subsets(free: Mask, size: int) -> Outcomes:
    return Outcomes(free, size, tuple(subsets(free, size)))


@lru_cache(maxsize=4096)
def _shared_subsets(free: Mask, size: int, units: tuple[int, ...]) -> Outcomes:
    members = sorted((units[p] for p in positions(free)), reverse=True)
    fewest = next((n for n in range(1, len(members) + 1) if sum(members[:n]) >= size), 1)
    spans = range(fewest, min(size, len(members)) + 1)
    if sum(comb(len(members), n) for n in spans) > MAX_SETS:
        return Outcomes(free, size, None, exact=False)
    found = [s for n in spans for s in subsets(free, n) if _holds(s, size, units)]
    return Outcomes(free, size, tuple(found))


def _holds(mask: Mask, size: int, units: Sequence[int]) -> bool:
    return sum(units[p] for p in positions(mask)) >= size


ANY = Any()
ALLOCATORS: dict[str, Allocator] = {ANY.name: ANY}


def allocator(policy: str) -> Allocator:
    """The model of a policy; one that is not modelled is judged by :data:`ANY`."""
    return ALLOCATORS.get(policy, ANY)
