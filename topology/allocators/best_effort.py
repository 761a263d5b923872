"""``best-effort``: how NVIDIA's plugin hands out whole GPUs.

The algorithm, as read from go-gpuallocator 0.6 (``besteffort_policy.go``) and seen in recorded
answers. The available GPUs, in an order that nobody controls, are filled up with blanks to a
multiple of the size and split into sets of that size in every possible way; all blanks lie in one
set. Of the splits that have a set without blanks around the required GPUs, the first with the
highest total score wins, and of its sets around the required ones the first with the highest score.

From that follows what may come. Put the sets of a best split one behind the other, the blank one
last: that is the first split the plugin looks at, so every split of the highest total can win, and
every set that ties for the best in it can come. Hence, with ``f(M)`` the best total over the splits
of ``M`` and ``h(M)`` the smallest possible best set among those splits, a set *S* may come from *A*
if and only if ``score(S) + f(A - S) = f(A)`` and ``h(A - S) <= score(S)``. Both are computed for
all masks of a shape at once by dynamic programming; splits are never listed.

Hazards, where the call may end without a usable answer:

``padded-set``
    The best set of a best split can be the one with blanks. The plugin dereferences a nil.
``unequal-links``
    A pair shows its NVLinks from one end only. The plugin panics.
``slice-corruption``
    With seven or eight sets (and eleven to sixteen) Go slices of different splits share memory: the
    last sets of the split that won are overwritten by others. What comes is then bounded, not
    known, and with required GPUs the answer may be empty, so the kubelet picks at random.

Where the PCIe class of a pair is unknown its score is an interval, and the outcomes a superset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.allocators.outcomes import Call, Outcomes, every_choice
from topology.devices import Mask, positions
from topology.graph import Shape
from topology.links import Link, LinkKind, Via

Ints = NDArray[np.int64]

MAX_GPUS = 16
"""The tables have 2ⁿ entries; above this the outcomes are every choice."""

PCIE_SCORE = {
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}
NVLINK_SCORE = 100
"""For each direct link of a pair; links into a switch count nothing."""

PADDED = "padded-set"
UNEQUAL = "unequal-links"
CORRUPTED = "slice-corruption"


class BestEffort:
    """NVIDIA's BestEffort policy over whole GPUs; anything else it is asked is ``any``."""

    name = "best-effort"
    monotone = False

    def outcomes(self, call: Call) -> Outcomes:
        """Exactly what may come, up to 16 GPUs with known PCIe classes.

        >>> from topology.machines import machine
        >>> shape = machine("dgx1-v100").topology("n").shape
        >>> [positions(s) for s in BestEffort().outcomes(Call(shape, 0b00011111, 3)).sets]
        [[1, 2, 3]]
        """
        if call.width > 1 or call.shape.size > MAX_GPUS:
            return every_choice(call, exact=False)
        return _outcomes(call)


BEST_EFFORT = BestEffort()


@dataclass(frozen=True, slots=True)
class _Table:
    """By mask: the score of the set, and of splitting the mask the best total and best set.

    A mask whose size is no multiple of the set size has its blank set among the split.
    """

    score: Ints
    total: Ints
    best: Ints


@lru_cache(maxsize=65536)
def _outcomes(call: Call) -> Outcomes:
    shape, available, size = call.shape, call.available, call.size
    if size == 1:
        # Every GPU alone scores nothing: the first in an order that nobody controls.
        return every_choice(call, exact=True)
    if _has_unequal_links(shape, available):
        return Outcomes((), hazards=(UNEQUAL,))
    splits = -(-available.bit_count() // size)
    lost = _overwritten(splits)
    if lost and call.required:
        return every_choice(call, exact=False, hazards=(CORRUPTED,))
    low = _table(shape, size, False)
    high = low if _scores_known(shape) else _table(shape, size, True)
    sets = _subsets(available & ~call.required, size - call.required.bit_count()) | call.required
    rest = available & ~sets
    least = int((low.score[sets] + low.total[rest]).max())
    chosen = high.score[sets] + high.total[rest] >= least
    if lost:
        # At most `lost` sets of the winning split are not its own; the best of the others
        # scores at least what is left for each of them when those score all they can.
        most = int(high.score[_subsets(available, size)].max())
        chosen = high.score[sets] * (splits - lost) >= least - lost * most
    elif not call.required:
        if low is high:
            chosen &= low.best[rest] <= low.score[sets]
        else:
            chosen &= high.score[sets] * splits >= least
    hazards: tuple[str, ...] = (CORRUPTED,) if lost else ()
    if not call.required and _blank_set_can_win(available, size, low, high, least, splits):
        hazards += (PADDED,)
    found = tuple(sorted(int(s) for s in sets[chosen]))
    return Outcomes(found, exact=low is high and not lost, hazards=hazards)


def _blank_set_can_win(
    available: Mask, size: int, low: _Table, high: _Table, least: int, splits: int
) -> bool:
    """Whether a set with blanks can be the best of a best split; a tie counts."""
    blank = available.bit_count() % size
    if not blank:
        return False
    sets = _subsets(available, blank)
    rest = available & ~sets
    wins = high.score[sets] + high.total[rest] >= least
    if low is high:
        return bool((wins & (low.best[rest] <= low.score[sets])).any())
    return bool((wins & (high.score[sets] * splits >= least)).any())


def _has_unequal_links(shape: Shape, available: Mask) -> bool:
    members = positions(available)
    pairs = (shape.links[p][q] for p, q in combinations(members, 2))
    return any(link is not None and link.one_sided for link in pairs)


def _overwritten(splits: int) -> int:
    """How many of the last sets of a remembered split can be overwritten.

    Go's append moves to new memory when one, two, four, eight … sets are full; what is appended
    after that is shared by every split with the same beginning, and the last set is fixed by the
    others.
    """
    moved = max(n for n in (1, 2, 3, 5, 9, 17, 33, 65) if n <= splits)
    shared = splits - moved
    return shared if shared > 1 else 0


@lru_cache(maxsize=1024)
def _scores_known(shape: Shape) -> bool:
    return _pair_scores(shape, False) == _pair_scores(shape, True)


def _pair_scores(shape: Shape, highest: bool) -> tuple[tuple[int, ...], ...]:
    n = range(shape.size)
    return tuple(tuple(_pair_score(shape, p, q, highest) for q in n) for p in n)


def _pair_score(shape: Shape, p: int, q: int, highest: bool) -> int:
    if p == q:
        return 0
    link = shape.links[p][q] or Link(0, 0)
    direct = link.nvlinks if link.via is Via.DIRECT else 0
    score = NVLINK_SCORE * direct
    if link.pcie is not LinkKind.UNKNOWN:
        return score + PCIE_SCORE[link.pcie]
    a, b = shape.numa[p], shape.numa[q]
    if not direct or a is None or b is None:
        return score + PCIE_SCORE[LinkKind.BOARD] * highest
    # The class is hidden behind the NVLinks, as in the text of nvidia-smi.
    bounds = (LinkKind.NODE, LinkKind.BOARD) if a == b else (LinkKind.SYS, LinkKind.SYS)
    return score + PCIE_SCORE[bounds[highest]]


@lru_cache(maxsize=64)
def _table(shape: Shape, size: int, highest: bool) -> _Table:
    n = shape.size
    score = _set_scores(_pair_scores(shape, highest), n)
    total = np.zeros(1 << n, dtype=np.int64)
    best = np.zeros(1 << n, dtype=np.int64)
    by_count = _masks_by_count(n)
    for count in range(1, n + 1):
        masks = by_count[count]
        blank = count % size
        if count < size:
            total[masks] = best[masks] = score[masks]
            continue
        low = masks & -masks
        rest = masks ^ low
        totals, bests = [], []
        for others in {size - 1, blank - 1} - {-1}:
            # The lowest GPU is in a full set, or in the one with blanks.
            sets = _spread(rest, count - 1, others) | low[:, None]
            behind = masks[:, None] ^ sets
            totals.append(score[sets] + total[behind])
            bests.append(np.maximum(score[sets], best[behind]))
        sums = np.concatenate(totals, axis=1)
        most = sums.max(axis=1)
        total[masks] = most
        tops = np.concatenate(bests, axis=1)
        best[masks] = np.where(sums == most[:, None], tops, np.iinfo(np.int64).max).min(axis=1)
    return _Table(score, total, best)


def _set_scores(pairs: tuple[tuple[int, ...], ...], n: int) -> Ints:
    """The score of every mask: the sum over its pairs."""
    score = np.zeros(1, dtype=np.int64)
    for p in range(n):
        with_p = np.zeros(1, dtype=np.int64)
        for q in range(p):
            with_p = np.concatenate([with_p, with_p + pairs[p][q]])
        score = np.concatenate([score, score + with_p])
    return score


@lru_cache(maxsize=MAX_GPUS + 1)
def _masks_by_count(n: int) -> tuple[Ints, ...]:
    masks = np.arange(1 << n, dtype=np.int64)
    counts = np.bitwise_count(masks)
    return tuple(masks[counts == c] for c in range(n + 1))


def _spread(masks: Ints, members: int, size: int) -> Ints:
    """For each mask with ``members`` GPUs, its C(members, size) subsets: a matrix of masks."""
    bits = np.empty((len(masks), members), dtype=np.int64)
    left = masks.copy()
    for i in range(members):
        bits[:, i] = left & -left
        left &= left - 1
    return bits @ _picks(members, size)


@lru_cache(maxsize=1024)
def _picks(members: int, size: int) -> Ints:
    """A members × C(members, size) matrix of 0 and 1: a column for every choice."""
    picks = np.zeros((members, comb(members, size)), dtype=np.int64)
    for column, chosen in enumerate(combinations(range(members), size)):
        picks[list(chosen), column] = 1
    return picks


def _subsets(mask: Mask, size: int) -> Ints:
    bits = np.array([1 << p for p in positions(mask)], dtype=np.int64)
    found: Ints = bits @ _picks(len(bits), size)
    return found
