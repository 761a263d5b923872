"""A node's GPUs as a tree of cells, each split in two where the links are weakest."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from topology.core.devices import Mask, positions
from topology.core.shape import Shape

MOST_HALVES = 10_000


@cache
def cells(shape: Shape) -> tuple[Mask, ...]:
    """Every cell, the largest first.

    >>> from topology.machines import machine
    >>> dgx = machine("dgx1-v100").topology("n").shape
    >>> [f"{cell:08b}" for cell in cells(dgx)[:3]]
    ['11111111', '00001111', '11110000']
    """
    found: list[Mask] = []
    level = [shape.all_gpus]
    while level:
        found += level
        level = [half for cell in level if cell.bit_count() > 1 for half in _halves(shape, cell)]
    return tuple(found)


def _halves(shape: Shape, cell: Mask) -> tuple[Mask, Mask]:
    """The split into two with the most bandwidth inside the halves; the first of equal ones."""
    members = positions(cell)
    best: tuple[float, Mask] | None = None
    first, rest = members[0], members[1:]
    size = (len(members) + 1) // 2
    for tried, others in enumerate(combinations(rest, size - 1)):
        if tried == MOST_HALVES:
            break
        half = (1 << first) | sum(1 << p for p in others)
        inside = _bandwidth(shape, half) + _bandwidth(shape, cell & ~half)
        if best is None or inside > best[0]:
            best = (inside, half)
    assert best is not None
    return best[1], cell & ~best[1]


def _bandwidth(shape: Shape, mask: Mask) -> float:
    links = (shape.links[a][b] for a, b in combinations(positions(mask), 2))
    return float(sum(link.bandwidth for link in links if link is not None))


@cache
def free_cell(tree: tuple[Mask, ...], free: Mask, count: int) -> tuple[int, Mask] | None:
    """How large the free cell is that is taken or split, and the GPUs that it gives.

    The smallest free cell that holds ``count``; of a larger one the first part that does. None
    where no cell does.
    """
    whole = [cell for cell in tree if cell & ~free == 0 and cell.bit_count() >= count]
    if not whole:
        return None
    # A cell inside a larger free one is that one's part: taking it splits it.
    outer = [c for c in whole if not any(c != d and c & ~d == 0 for d in whole)]
    split = min(outer, key=lambda c: c.bit_count())
    inner = min((c for c in whole if c & ~split == 0), key=lambda c: c.bit_count())
    taken = sum(1 << p for p in positions(inner)[:count])
    return split.bit_count(), taken
