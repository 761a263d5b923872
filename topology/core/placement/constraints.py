"""Constraints compiled for a shape: which sets of its GPUs satisfy them.

A constraint speaks about links, models, memory; a set of GPUs is a mask. Compiling works out once
per shape which GPUs are allowed at all and which pairs are joined well enough, so that trying a set
costs a few operations on integers; many sets are tried at once as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from topology.core.devices import Mask, positions
from topology.core.graph import Shape, numa_nodes, wide_rows
from topology.core.patterns import (
    Flags,
    Masks,
    Rows,
    are_cliques,
    are_connected,
    has_ring,
    have_rings,
    is_clique,
    is_connected,
)
from topology.core.remembering import remembered
from topology.core.requests import Constraints, Pattern

SMALL = 8
"""GPUs; of so few there are at most 256 sets."""
_ALL = (1 << 64) - 1


_PATTERNS = {
    Pattern.PAIRWISE: is_clique,
    Pattern.RING: has_ring,
    Pattern.CONNECTED: is_connected,
}


@dataclass(frozen=True, slots=True)
class CompiledConstraints:
    """Constraints compiled for a shape: a set satisfies them if it passes every part."""

    allowed: Mask
    numa: tuple[Mask, ...] | None
    linked: Rows | None
    pattern: Pattern
    wide: Rows | None
    over_pairs: bool
    judged: dict[tuple[Mask, int], bool] | None
    """On a small shape the answers of :meth:`passes`: there are few sets, asked again and again."""

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes."""
        return 1000 if self.judged is None else 30_000

    def passes(self, mask: Mask, count: int) -> bool:
        """Whether a set of GPUs that holds ``count`` devices satisfies the constraints."""
        if self.judged is None:
            return self._passes(mask, count)
        found = self.judged.get((mask, count))
        if found is None:
            found = self.judged[mask, count] = self._passes(mask, count)
        return found

    def _passes(self, mask: Mask, count: int) -> bool:
        if mask & ~self.allowed:
            return False
        if count == 1:
            return True
        if self.over_pairs and mask.bit_count() < count:
            return False  # two shares of one GPU are no pair
        if self.numa is not None and not any(mask & ~node == 0 for node in self.numa):
            return False
        if self.linked is not None and not _PATTERNS[self.pattern](self.linked, mask):
            return False
        return self.wide is None or has_ring(self.wide, mask)

    def passing(self, masks: Masks, count: int) -> tuple[Flags, bool]:
        """:meth:`passes` of each mask, and whether all answers are sure.

        Where a search for a ring was given up a set does not pass, and the answer is not sure.
        """
        good = masks & np.uint64(~self.allowed & _ALL) == 0
        if count == 1:
            return good, True
        if self.over_pairs:
            good &= np.bitwise_count(masks) >= count
        if self.numa is not None:
            good &= inside(self.numa, masks)
        sure = True
        if self.linked is not None and self.pattern is Pattern.PAIRWISE:
            good[good] = are_cliques(self.linked, masks[good])
        elif self.linked is not None and self.pattern is Pattern.CONNECTED:
            good[good] = are_connected(self.linked, masks[good])
        rings = [self.linked] if self.pattern is Pattern.RING else []
        for rows in (*rings, self.wide):
            if rows is not None:
                asked = good.copy()
                good[asked], known = have_rings(rows, masks[asked])
                sure &= known
        return good, sure


def inside(nodes: tuple[Mask, ...], masks: Masks) -> Flags:
    """For each mask, whether its GPUs are all on one of the NUMA nodes."""
    found = np.zeros(len(masks), dtype=np.bool_)
    for node in nodes:
        found |= masks & np.uint64(~node & _ALL) == 0
    return found


def satisfies(shape: Shape, constraints: Constraints, mask: Mask, *, sick: Mask = 0) -> bool:
    """Whether the GPUs of ``mask`` meet every constraint. A sick GPU meets none."""
    return compiled(shape, constraints, sick).passes(mask, mask.bit_count())


@remembered
def compiled(shape: Shape, constraints: Constraints, sick: Mask) -> CompiledConstraints:
    """The constraints compiled for a shape of which some GPUs are sick."""
    allowed = shape.all_gpus & ~sick
    for p in positions(allowed):
        if not _gpu_meets(shape, p, constraints):
            allowed &= ~(1 << p)
    numa = None
    if constraints.same_numa:
        numa = numa_nodes(shape)
    linked = None
    if constraints.link is not None or constraints.min_nvlinks is not None:
        level, count = constraints.link or 0, constraints.min_nvlinks or 0
        linked = shape.rows(
            frozenset(k for k in shape.distinct_links() if k.kind >= level and k.nvlinks >= count)
        )
    wide = None
    if constraints.min_bandwidth is not None:
        wide = wide_rows(shape, constraints.min_bandwidth)
    judged: dict[tuple[Mask, int], bool] | None = {} if shape.size <= SMALL else None
    return CompiledConstraints(
        allowed, numa, linked, constraints.pattern, wide, constraints.over_pairs, judged
    )


def _gpu_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    return (
        model_meets(shape, p, constraints)
        and (constraints.min_gpu_memory is None or shape.memory[p] >= constraints.min_gpu_memory)
        and (constraints.nic is None or shape.nic[p] >= constraints.nic)
    )


def model_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    """Whether the product of the GPU at a position is one that the constraints allow."""
    return not constraints.models or shape.products[p] in _products_meant(shape, constraints.models)


@remembered
def _products_meant(shape: Shape, globs: tuple[str, ...]) -> frozenset[str]:
    """The products of a node that some glob means; each product is tried once."""
    return frozenset(
        name for name in set(shape.products) if any(fnmatchcase(name, glob) for glob in globs)
    )
