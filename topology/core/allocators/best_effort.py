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

*Slice corruption* refuses nobody, it only makes the outcomes a superset. With seven or eight sets
(and eleven to sixteen) Go slices of different splits share memory: the last sets of the split that
won are overwritten by sets of others. Without required GPUs the answer is still a set of the size
that was asked for; with required ones it may be empty, and then the kubelet fills up with any.

Where the PCIe class of a pair is unknown its score is an interval, and the outcomes a superset.
Where the two GPUs of a pair count different numbers of NVLinks, the score depends on the order of
the two: any set may come.

Read and run: go-gpuallocator 0.2 to 0.6, which are the same in this, as NVIDIA's plugin up to
0.20.0 has them. An unknown version is taken for one of these. A newer one is taken to choose alike
and to have these defects or not, so hazards stay hazards and corrupted sets stay possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.allocators.outcomes import Call, Outcomes, every_choice
from topology.core.devices import Mask, positions
from topology.core.graph import Shape
from topology.core.links import Link, LinkKind, Via
from topology.core.patterns import picks
from topology.core.remembering import interruptible, remembered

Ints = NDArray[np.int32]

MAX_GPUS = 16
"""The tables have 2ⁿ entries; above this the outcomes are every choice."""

SMALL_GPUS = 8

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
        if call.width > 1:
            return every_choice(call, exact=False)
        if call.shape.size > MAX_GPUS:
            return every_choice(call, exact=False, hazards=_hazards_of_large(call))
        return _outcomes(call)


BEST_EFFORT = BestEffort()


def _hazards_of_large(call: Call) -> tuple[str, ...]:
    """The refusals that may come on a node for which there are no tables."""
    shape, available, size = call.shape, call.available, call.size
    if size == 1:
        return ()
    if _has_unequal_links(shape, available):
        return (UNEQUAL,)
    count = available.bit_count()
    blank = count % size
    least, most = _score_bounds(shape)
    unsure = call.required and _overwritten(-(-count // size))
    unsure = unsure or _has_pair(_uneven_rows(shape), available)
    if blank and (unsure or comb(blank, 2) * most >= comb(size, 2) * least):
        return (PADDED,)
    return ()


@remembered
def _score_bounds(shape: Shape) -> tuple[int, int]:
    """The least and the most that a pair may score."""
    pairs = list(combinations(range(shape.size), 2))
    return (
        min(_pair_score(shape, p, q, False) for p, q in pairs),
        max(_pair_score(shape, p, q, True) for p, q in pairs),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """By mask: the score of the set, and of splitting the mask the best total and best set.

    A mask whose size is no multiple of the set size has its blank set among the split. Totals and
    best sets are filled in when they are asked for, ``done`` says for masks of how many GPUs.
    """

    score: Ints
    total: Ints
    best: Ints
    done: set[int]


@remembered
def _outcomes(call: Call) -> Outcomes:
    shape, available, size = call.shape, call.available, call.size
    if size == 1:
        # Every GPU alone scores nothing: the first in an order that nobody controls.
        return every_choice(call, exact=True)
    if _has_unequal_links(shape, available):
        return Outcomes((), hazards=(UNEQUAL,))
    if _has_pair(_uneven_rows(shape), available):
        blank = available.bit_count() % size
        return every_choice(call, exact=False, hazards=(PADDED,) if blank else ())
    if not call.required:
        if shape.size <= SMALL_GPUS:
            return _of_small(shape, size)[available] or Outcomes(())
        found = answers(shape, np.array([available], dtype=np.int32), size)
        listed = tuple(np.sort(found.sets[0][found.chosen[0]]).tolist())
        return Outcomes(listed, found.exact, found.hazards)
    splits = -(-available.bit_count() // size)
    if _overwritten(splits):
        # The full set around the required GPUs may be lost, and the one with blanks be left.
        blank = available.bit_count() % size
        return every_choice(call, exact=False, hazards=(PADDED,) if blank else ())
    low, high = _tables(shape, size, available.bit_count())
    sets = _subsets(available & ~call.required, size - call.required.bit_count()) | call.required
    rest = available & ~sets
    least = int((low.score[sets] + low.total[rest]).max())
    chosen = high.score[sets] + high.total[rest] >= least
    listed = tuple(np.sort(sets[chosen]).tolist())
    return Outcomes(listed, exact=low is high)


@dataclass(frozen=True, slots=True)
class Answers:
    """What may come of many pools at once, each of as many GPUs.

    ``sets`` has a row for each pool with every set of the size asked for, ``chosen`` says which may
    come, ``padded`` for each pool whether the set with blanks may win.
    """

    sets: Ints
    chosen: NDArray[np.bool_]
    padded: NDArray[np.bool_]
    exact: bool

    @property
    def hazards(self) -> tuple[str, ...]:
        """The hazards of any of the pools."""
        return (PADDED,) * bool(self.padded.any())


def answers(shape: Shape, pools: Ints, size: int) -> Answers:
    """Everything that may come of each pool, without required GPUs.

    All pools have the same number of GPUs, at least ``size``, and no pair whose two ends disagree
    about its NVLinks (:func:`unequal`, :func:`uneven`).
    """
    count = int(pools[0]).bit_count()
    sets = _spread(pools, count, size)
    if size == 1:
        chosen = np.ones(sets.shape, dtype=np.bool_)
        return Answers(sets, chosen, np.zeros(len(pools), dtype=np.bool_), True)
    splits = -(-count // size)
    lost = _overwritten(splits)
    low, high = _tables(shape, size, count)
    rest = pools[:, None] ^ sets
    scores = low.score[sets]
    sums = scores + low.total[rest]
    least = sums.max(axis=1)[:, None]
    best = scores if low is high else high.score[sets]
    if lost:
        # At most `lost` sets of the winning split are not its own; the best of the others
        # scores at least what is left for each of them when those score all they can.
        most = best.max(axis=1)[:, None]
        chosen = best * (splits - lost) >= least - lost * most
    elif low is high:
        chosen = (sums == least) & (low.best[rest] <= scores)
    else:
        chosen = (best + high.total[rest] >= least) & (best * splits >= least)
    padded = _blank_sets_can_win(pools, count, size, low, high, least, splits)
    return Answers(sets, chosen, padded, low is high and not lost)


def answers_of(shape: Shape, pools: Ints, size: int) -> Iterator[Answers]:
    """:func:`answers` in parts that do not take much memory at once."""
    return (
        answers(shape, some, size) for some in _chunks(pools, comb(int(pools[0]).bit_count(), size))
    )


@remembered
def _of_small(shape: Shape, size: int) -> tuple[Outcomes | None, ...]:
    """The outcomes of every mask of a small machine without unequal links: all at once is cheap."""
    found: list[Outcomes | None] = [None] * (1 << shape.size)
    for masks in _masks_by_count(shape.size)[size:]:
        known = answers(shape, masks, size)
        for mask, sets, chosen, padded in zip(
            masks.tolist(), known.sets, known.chosen, known.padded, strict=True
        ):
            hazards = (PADDED,) * bool(padded)
            listed = tuple(np.sort(sets[chosen]).tolist())
            found[mask] = Outcomes(listed, known.exact, hazards)
    return tuple(found)


def _blank_sets_can_win(
    pools: Ints, count: int, size: int, low: _Table, high: _Table, least: Ints, splits: int
) -> NDArray[np.bool_]:
    """For each pool, whether a set with blanks can be the best of a best split; a tie counts."""
    blank = count % size
    if not blank:
        return np.zeros(len(pools), dtype=np.bool_)
    sets = _spread(pools, count, blank)
    rest = pools[:, None] ^ sets
    wins = high.score[sets] + high.total[rest] >= least
    if low is high:
        return np.asarray((wins & (low.best[rest] <= low.score[sets])).any(axis=1))
    return np.asarray((wins & (high.score[sets] * splits >= least)).any(axis=1))


def unequal(shape: Shape, pools: Ints) -> NDArray[np.bool_]:
    """For each pool, whether one of its pairs shows its NVLinks from one end only."""
    return _have_pair(_unequal_rows(shape), pools)


def uneven(shape: Shape, pools: Ints) -> NDArray[np.bool_]:
    """For each pool, whether the ends of one of its pairs count different numbers of NVLinks."""
    return _have_pair(_uneven_rows(shape), pools)


def _have_pair(rows: tuple[Mask, ...], pools: Ints) -> NDArray[np.bool_]:
    """For each pool, whether it has a pair of this adjacency."""
    found = np.zeros(len(pools), dtype=np.bool_)
    for p, row in enumerate(rows):
        if row:
            found |= (pools >> p & 1 != 0) & (pools & row != 0)
    return found


@remembered
def _unequal_rows(shape: Shape) -> tuple[Mask, ...]:
    return shape.rows(frozenset(link for link in shape.distinct_links() if link.one_sided))


@remembered
def _uneven_rows(shape: Shape) -> tuple[Mask, ...]:
    return shape.rows(frozenset(link for link in shape.distinct_links() if link.uneven))


def _tables(shape: Shape, size: int, count: int) -> tuple[_Table, _Table]:
    """The tables for the lowest and the highest scores that pairs may have; one if they agree."""
    low = _table(shape, size, False, count)
    return low, low if _scores_known(shape) else _table(shape, size, True, count)


def _has_unequal_links(shape: Shape, available: Mask) -> bool:
    return _has_pair(_unequal_rows(shape), available)


def _has_pair(rows: tuple[Mask, ...], available: Mask) -> bool:
    return any(rows[p] & available for p in positions(available)) if any(rows) else False


def _overwritten(splits: int) -> int:
    """How many of the last sets of a remembered split can be overwritten.

    Go's append moves to new memory when one, two, four, eight … sets are full; what is appended
    after that is shared by every split with the same beginning, and the last set is fixed by the
    others.
    """
    moved = max(n for n in (1, 2, 3, 5, 9, 17, 33, 65) if n <= splits)
    shared = splits - moved
    return shared if shared > 1 else 0


@remembered
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


def _table(shape: Shape, size: int, highest: bool, count: int) -> _Table:
    """The table, right for masks of ``count`` GPUs, and what is left of them set by set."""
    table = _empty_table(shape, size, highest)
    # Where the blank set is taken away, whole sets are left.
    for members in (*range(0, count, size), *range(count % size, count + 1, size)):
        if members not in table.done:
            interruptible()
            _fill(table, size, members)
            table.done.add(members)  # last: a thread that sees it finds the masks filled
    return table


@remembered
def _empty_table(shape: Shape, size: int, highest: bool) -> _Table:
    score = _set_scores(_pair_scores(shape, highest), shape.size)
    return _Table(score, np.zeros_like(score), np.zeros_like(score), set())


def _fill(table: _Table, size: int, count: int) -> None:
    """Fill in the masks of ``count`` GPUs from those with a set less."""
    score, total, best = table.score, table.total, table.best
    masks = _masks_by_count(len(score).bit_length() - 1)[count]
    if count < size:
        total[masks] = best[masks] = score[masks]
        return
    # The lowest GPU is in a full set, or in the one with blanks.
    kinds = sorted({size - 1, count % size - 1} - {-1})
    for some in _chunks(masks, sum(comb(count - 1, others) for others in kinds)):
        low = some & -some
        tops = np.full(len(some), -1, dtype=np.int64)
        for others in kinds:
            sets = _spread(some ^ low, count - 1, others) | low[:, None]
            behind = some[:, None] ^ sets
            own = score[sets]
            # The highest total first, then the lowest best set.
            key = (own + total[behind]).astype(np.int64) << 32
            key |= _HIGHEST - np.maximum(own, best[behind])
            np.maximum(tops, key.max(axis=1), out=tops)
        total[some] = tops >> 32
        best[some] = _HIGHEST - (tops & _HIGHEST)


_HIGHEST = np.int64((1 << 32) - 1)
_AT_ONCE = 1 << 15
"""Elements of a matrix that stay in the processor's cache."""


def _chunks(masks: Ints, width: int) -> Iterator[Ints]:
    """The masks in parts whose matrices of so many columns are small."""
    step = max(1, _AT_ONCE // width)
    return (masks[at : at + step] for at in range(0, len(masks), step))


def _set_scores(pairs: tuple[tuple[int, ...], ...], n: int) -> Ints:
    """The score of every mask: the sum over its pairs."""
    score = np.zeros(1, dtype=np.int32)
    for p in range(n):
        with_p = np.zeros(1, dtype=np.int32)
        for q in range(p):
            with_p = np.concatenate([with_p, with_p + pairs[p][q]])
        score = np.concatenate([score, score + with_p])
    return score


@remembered
def _masks_by_count(n: int) -> tuple[Ints, ...]:
    masks = np.arange(1 << n, dtype=np.int32)
    counts = np.bitwise_count(masks)
    return tuple(masks[counts == c] for c in range(n + 1))


def _spread(masks: Ints, members: int, size: int) -> Ints:
    """For each mask with ``members`` GPUs, its C(members, size) subsets: a matrix of masks.

    A product of matrices: with 16 GPUs every sum is exact in a float of 32 bits.
    """
    bits = np.empty((len(masks), members), dtype=np.float32)
    left = masks.copy()
    for i in range(members):
        lowest = left & -left
        bits[:, i] = lowest
        left ^= lowest
    found: Ints = (bits @ _picks(members, size)).astype(np.int32)
    return found


@remembered
def _picks(members: int, size: int) -> NDArray[np.float32]:
    """A members × C(members, size) matrix of 0 and 1: a column for every choice."""
    matrix = np.zeros((members, comb(members, size)), dtype=np.float32)
    chosen = picks(members, size)
    matrix[chosen.T, np.arange(len(chosen))] = 1
    return matrix


def _subsets(mask: Mask, size: int) -> Ints:
    found: Ints = _spread(np.array([mask], dtype=np.int32), mask.bit_count(), size)[0]
    return found
