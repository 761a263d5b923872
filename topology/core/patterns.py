"""Tests of patterns over joined pairs (clique, connected, ring), for one set of GPUs or for many.

To find a ring through many GPUs is a hard problem. Up to :data:`TABLE_GPUS` GPUs the answer is
exact. Beyond that, a search takes :data:`RING_STEPS` steps and then gives up with None. Many masks
are passed as an array of ``uint64``, one mask each.
"""

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.devices import Mask, positions
from topology.core.memo import memoized
from topology.core.requests import Pattern

Rows = tuple[Mask, ...]  # an adjacency: `rows[p]` is the mask of the positions joined to `p`
Masks = NDArray[np.uint64]
Flags = NDArray[np.bool_]

TABLE_GPUS = 16  # up to this many GPUs, a table of all masks says exactly which have a ring
RING_STEPS = 500  # the most steps of a search for a ring


def is_clique(rows: Rows, mask: Mask) -> bool:
    """Check whether every pair in ``mask`` is joined. O(k)."""
    return all(mask & ~rows[p] == 1 << p for p in positions(mask))


def is_connected(rows: Rows, mask: Mask) -> bool:
    """Check whether joined pairs connect all GPUs of ``mask``. O(k)."""
    seen = frontier = mask & -mask
    while frontier:
        reached = 0
        for p in positions(frontier):
            reached |= rows[p]
        frontier = reached & mask & ~seen
        seen |= frontier
    return seen == mask


@memoized
def find_ring(rows: Rows, mask: Mask) -> bool | None:
    """Return whether joined pairs form a ring through all of ``mask``; None if the search gave up.

    A ring of one GPU always exists, and a ring of two is the pair. A larger ring is a Hamiltonian
    cycle. Cheap tests come first (too few neighbours; Dirac's theorem), and then a search.
    """
    k = mask.bit_count()
    if k <= 2:
        return is_clique(rows, mask)
    within = [rows[p] & mask for p in positions(mask)]
    fewest = min(row.bit_count() for row in within)
    if fewest < 2 or not is_connected(rows, mask):
        return False
    if 2 * fewest >= k:
        return True
    ring = _search(rows, mask)
    if ring is None and k <= TABLE_GPUS:
        return bool(_rings(_compressed(rows, mask))[-1])
    if ring is None and any(not is_connected(rows, mask ^ 1 << p) for p in positions(mask)):
        return False
    return ring


def _search(rows: Rows, mask: Mask) -> bool | None:
    """Search for a ring depth first, from the GPU with the fewest neighbours.

    The result is None after :data:`RING_STEPS` steps.
    """
    start = min(positions(mask), key=lambda p: (rows[p] & mask).bit_count())
    home = rows[start]
    path = [(start, mask ^ 1 << start)]
    waiting = [_next(rows, home, path[0][1])]
    for _ in range(RING_STEPS):
        while waiting and not waiting[-1]:
            waiting.pop()
            path.pop()
        if not waiting:
            return False
        p = waiting[-1].pop()
        left = path[-1][1] ^ 1 << p
        if not left:
            if home >> p & 1:
                return True
            continue
        # Every GPU left needs two neighbours on the rest of the ring, and one of the GPUs left has
        # to be joined to the start.
        ends = 1 << p | 1 << start
        dead = not left & home or any(
            (rows[q] & (left | ends)).bit_count() < 2 for q in positions(left)
        )
        path.append((p, left))
        waiting.append([] if dead else _next(rows, rows[p], left))
    return None


def _next(rows: Rows, near: Mask, left: Mask) -> list[int]:
    """Return the positions at which a path may continue, the best last."""
    return sorted(positions(near & left), key=lambda q: (-(rows[q] & left).bit_count(), -q))


def _compressed(rows: Rows, mask: Mask) -> Rows:
    """Return the adjacency of the GPUs of ``mask`` alone, with new positions from 0."""
    members = positions(mask)
    return tuple(sum(1 << i for i, q in enumerate(members) if rows[p] >> q & 1) for p in members)


@memoized
def _rings(rows: Rows) -> Flags:
    """Return, for every mask of at most 16 GPUs, whether it has a ring.

    ``ends[m]`` is a mask. It has the last GPUs of all paths that start at the lowest GPU of ``m``
    and visit every GPU of ``m`` once.
    """
    n = len(rows)
    masks = np.arange(1 << n, dtype=np.uint32)
    counts = np.bitwise_count(masks)
    low = masks & (~masks + np.uint32(1))
    ends = np.where(counts == 1, masks, 0).astype(np.uint32)
    for size in range(2, n + 1):
        of_size = masks[counts == size]
        above = of_size ^ low[of_size]
        last = np.zeros(len(of_size), dtype=np.uint32)
        for p in range(1, n):
            bit = np.uint32(1 << p)
            had = above & bit != 0
            before = of_size[had] ^ bit
            last[had] |= np.where(ends[before] & np.uint32(rows[p]) != 0, bit, 0).astype(np.uint32)
        ends[of_size] = last
    home = np.zeros(1 << n, dtype=np.uint32)
    for p in range(n):
        home[low == 1 << p] = rows[p]
    ring: Flags = ends & home != 0
    ring[counts <= 1] = True
    return ring


# The same tests for many masks at once.


def subset_masks(mask: Mask, size: int) -> Masks:
    """Return every subset of ``mask`` with ``size`` members, ascending."""
    bits = np.array([1 << p for p in positions(mask)], dtype=np.uint64)
    if not 0 <= size <= len(bits):
        return np.zeros(0, dtype=np.uint64)
    chosen = bits[_picks(len(bits), size)]
    subsets: Masks = np.bitwise_or.reduce(chosen, axis=1) if size else np.zeros(1, dtype=np.uint64)
    return np.sort(subsets)


@memoized
def _picks(members: int, size: int) -> NDArray[np.uint8]:
    """Return a row for every choice of ``size`` out of ``members`` numbers: the chosen numbers."""
    flat = [i for chosen in combinations(range(members), size) for i in chosen]
    return np.array(flat, dtype=np.uint8).reshape(comb(members, size), size)


def are_cliques(rows: Rows, masks: Masks) -> Flags:
    """Return :func:`is_clique` of each mask."""
    good = np.ones(len(masks), dtype=np.bool_)
    for p in _members(masks):
        apart = np.uint64(~(rows[p] | 1 << p) & ALL)
        good &= (masks & np.uint64(1 << p) == 0) | (masks & apart == 0)
    return good


def are_connected(rows: Rows, masks: Masks) -> Flags:
    """Return :func:`is_connected` of each mask."""
    members = _members(masks)
    seen = masks & (~masks + np.uint64(1))
    while True:
        reached = seen.copy()
        for p in members:
            reached |= np.where(seen & np.uint64(1 << p) != 0, masks & np.uint64(rows[p]), 0)
        if (reached == seen).all():
            return np.asarray(seen == masks)
        seen = reached


def have_pattern(rows: Rows, pattern: Pattern, masks: Masks) -> tuple[Flags, bool]:
    """Return whether each mask has the pattern, and whether all these answers are exact."""
    if pattern is Pattern.RING:
        return have_rings(rows, masks)
    every = are_cliques if pattern is Pattern.PAIRWISE else are_connected
    return every(rows, masks), True


def have_rings(rows: Rows, masks: Masks) -> tuple[Flags, bool]:
    """Return whether each mask surely has a ring, and whether all these answers are exact.

    In shapes of more than 16 GPUs the number of searches is limited. The masks that remain count as
    masks without a ring, and the answers are then not exact.
    """
    # The number of neighbours decides most masks without a search.
    sizes = np.bitwise_count(masks)
    fewest = np.full(len(masks), 64, dtype=np.uint8)
    for p in _members(masks):
        near = np.bitwise_count(masks & np.uint64(rows[p]))
        np.minimum(fewest, near, out=fewest, where=masks & np.uint64(1 << p) != 0)
    good = (sizes <= 1) | ((sizes == 2) & (fewest == 1)) | ((sizes > 2) & (2 * fewest >= sizes))
    undecided = np.flatnonzero(~good & (fewest >= 2) & (sizes > 2))
    if len(rows) <= TABLE_GPUS and len(undecided) > _TABLE_PAYS:
        return _rings(rows)[masks], True
    sure, failed = True, 0
    for tried, i in enumerate(undecided):
        if tried >= _MOST_SEARCHES or failed >= _MOST_IN_VAIN:
            return good, False
        ring = find_ring(rows, int(masks[i]))
        good[i] = ring is True
        failed += ring is None
        sure &= ring is not None
    return good, sure


ALL = (1 << 64) - 1
_TABLE_PAYS = 8
_MOST_SEARCHES = 64
_MOST_IN_VAIN = 2


def _members(masks: Masks) -> list[int]:
    return positions(int(np.bitwise_or.reduce(masks))) if len(masks) else []
