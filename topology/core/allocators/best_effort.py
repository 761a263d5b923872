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
all masks of a shape at once, by dynamic programming (:class:`Table`); splits are never listed.

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
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topology.core.allocators.nvidia import NvidiaPlugin
from topology.core.allocators.protocol import (
    ANYTHING,
    Allocator,
    Answers,
    Call,
    Ints,
    Outcomes,
    every_choice,
    of_every_pool,
)
from topology.core.budget import LARGE, SMALL
from topology.core.devices import Mask
from topology.core.graph import AllocatorConfig
from topology.core.links import Link, LinkKind, Via
from topology.core.memo import interruptible, memoized
from topology.core.patterns import Flags, Rows
from topology.core.shape import Shape

PADDED = "padded-set"
UNEQUAL = "unequal-links"
HAZARDS = MappingProxyType(
    {
        PADDED: "NVIDIA's device plugin fails when it chooses among the free GPUs",
        UNEQUAL: "NVIDIA's device plugin fails: two GPUs count the links between them differently",
    }
)


class BestEffort(NvidiaPlugin):
    """NVIDIA's BestEffort policy over whole GPUs; anything else it is asked is ``any``."""

    name = "best-effort"
    hazards = HAZARDS
    answers_up_to = LARGE  # its tables have 2ⁿ entries; above this the outcomes are every choice

    def outcomes(self, call: Call) -> Outcomes:
        """Exactly what may come, up to 16 GPUs with known PCIe classes.

        >>> from topology.core.devices import positions
        >>> from topology.machines import machine
        >>> shape = machine("dgx1-v100").topology("n").shape
        >>> [positions(s) for s in BestEffort().outcomes(Call(shape, 0b00011111, 3)).sets]
        [[1, 2, 3]]
        """
        if call.width > 1:
            return every_choice(call, exact=False)
        if call.shape.size > LARGE:
            counts = frozenset((call.available.bit_count(),))
            required = call.required != 0
            hazards = _bounded(call.shape, call.available, call.size, counts, required=required)
            return every_choice(call, exact=False, hazards=hazards)
        if call.shape.size <= SMALL and not call.required:
            return of_every_pool(self, call.shape, call.size)[call.available] or Outcomes(())
        return _outcomes(call)

    def answers(self, shape: Shape, pools: Ints, size: int) -> Iterator[Answers]:
        """Everything that may come of each pool, without required GPUs."""
        counts = np.bitwise_count(pools)
        unequal, uneven = _unequal_rows(shape), _uneven_rows(shape)
        for count in np.flatnonzero(np.bincount(counts[counts >= size])).tolist():
            for some in chunks(pools[counts == count], comb(count, size)):
                yield from _answers(shape, some, size, unequal, uneven)

    def never_refuses(self, shape: Shape, size: int, counts: frozenset[int] | None) -> bool:
        """Whether no set with blanks can win, whichever so many GPUs are available."""
        if size == 1:
            return True
        if not size <= shape.size <= LARGE:
            return False
        every = frozenset(range(shape.size + 1)) if counts is None else counts
        return not _bounded(shape, shape.all_gpus, size, every)

    def told(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """Any GPUs, with its refusals, where nobody knows which GPUs it is asked about."""
        if not config.aligned_anyhow:
            return self
        return Unforeseen(ranked=True) if whole else ANYTHING


BEST_EFFORT = BestEffort()


@dataclass(frozen=True, slots=True)
class Unforeseen(NvidiaPlugin):
    """NVIDIA's plugin over whole GPUs if nobody knows which GPUs it is asked about, or how it ranks
    them. Any may come, and it may fail as over any part of them."""

    ranked: bool  # whether it is known how it ranks them

    name = "any"
    monotone = True
    hazards = HAZARDS

    def outcomes(self, call: Call) -> Outcomes:
        """Every choice, with every refusal that may come."""
        hazards = self.refusals(call.shape, call.available, call.size)
        return every_choice(call, exact=True, hazards=hazards)

    def refusals(self, shape: Shape, available: Mask, size: int) -> tuple[str, ...]:
        """The refusals that may come of asking for so many of any part of these GPUs."""
        counts = frozenset(range(available.bit_count() + 1))
        return _bounded(shape, available, size, counts, required=True, ranked=self.ranked)


@memoized
def _bounded(
    shape: Shape,
    available: Mask,
    size: int,
    counts: frozenset[int],
    *,
    required: bool = False,
    ranked: bool = True,
) -> tuple[str, ...]:
    """The refusals that may come when the plugin chooses among so many (``counts``) of these GPUs,
    from bounds on what their pairs score.

    A set with blanks never wins if its pairs can score less than those of any full set. It holds
    the GPUs that remain when the others are split into full sets. If the plugin has to choose
    certain GPUs (``required``), the full set around them may be lost. If nobody knows what pairs
    score (``ranked`` is false), two GPUs beside the blanks may score more than any others.
    """
    splits = {(n % size, -(-n // size)) for n in counts if n >= size}
    if size == 1 or not splits:
        return ()
    if _has_pair(_unequal_rows(shape), available):
        return (UNEQUAL,)
    uneven = _has_pair(_uneven_rows(shape), available)
    least, most = score_bounds(shape)
    for beside, sets in splits:
        outscored = comb(beside, 2) * most < comb(size, 2) * least if ranked else beside == 1
        unsure = uneven or (required and _overwritten(sets))
        if beside and (unsure or not outscored):
            return (PADDED,)
    return ()


@memoized
def _outcomes(call: Call) -> Outcomes:
    """What may come of one call on a node of up to 16 whole GPUs."""
    shape, available, required, size = call.shape, call.available, call.required, call.size
    if not required:
        parts = BEST_EFFORT.answers(shape, np.array([available], dtype=np.int32), size)
        return next((outcomes for part in parts for _, outcomes in part.by_pool()), Outcomes(()))
    if size == 1:
        # Every GPU alone scores nothing: the first in an order that nobody controls.
        return every_choice(call, exact=True)
    if _has_pair(_unequal_rows(shape), available):
        return Outcomes((), hazards=(UNEQUAL,))
    count = available.bit_count()
    if _has_pair(_uneven_rows(shape), available) or _overwritten(-(-count // size)):
        # In the latter case the full set around the required GPUs may be lost, and the one with
        # blanks be left.
        return every_choice(call, exact=False, hazards=(PADDED,) if count % size else ())
    low, high = tables(shape, size, count)
    others = np.array([available & ~required], dtype=np.int32)
    missing = size - required.bit_count()
    sets = subsets_of(others, count - required.bit_count(), missing)[0] | required
    rest = available & ~sets
    least = int((low.score[sets] + low.total[rest]).max())
    chosen = high.score[sets] + high.total[rest] >= least
    listed = tuple(np.sort(sets[chosen]).tolist())
    return Outcomes(listed, exact=low is high)


def _answers(
    shape: Shape, pools: Ints, size: int, unequal_rows: Rows, uneven_rows: Rows
) -> Iterator[Answers]:
    """Everything that may come of pools with as many GPUs each, at least ``size``."""
    count = int(pools[0]).bit_count()
    sets = subsets_of(pools, count, size)
    unequal = _have_pair(unequal_rows, pools)
    uneven = _have_pair(uneven_rows, pools) & ~unequal
    odd = unequal | uneven
    if size > 1 and not odd.any():
        yield _ranked(shape, pools, sets, size)
        return
    none, every = np.zeros_like(sets, dtype=np.bool_), np.ones_like(sets, dtype=np.bool_)
    if size == 1:  # as for one call
        yield Answers(pools, sets, every, True, PADDED, none[:, 0])
        return
    if unequal.any():
        failed = none[unequal]
        yield Answers(pools[unequal], sets[unequal], failed, True, UNEQUAL, ~failed[:, 0])
    if uneven.any():
        refused = (every if count % size else none)[uneven, 0]
        yield Answers(pools[uneven], sets[uneven], every[uneven], False, PADDED, refused)
    if not odd.all():
        yield _ranked(shape, pools[~odd], sets[~odd], size)


def _ranked(shape: Shape, pools: Ints, sets: Ints, size: int) -> Answers:
    """The same where the two GPUs of each pair agree about its NVLinks."""
    count = int(pools[0]).bit_count()
    splits = -(-count // size)
    lost = _overwritten(splits)
    low, high = tables(shape, size, count)
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
    padded = _blank_sets_can_win(pools, count, size, low, high, least)
    return Answers(pools, sets, chosen, low is high and not lost, PADDED, padded)


def _blank_sets_can_win(
    pools: Ints, count: int, size: int, low: Table, high: Table, least: Ints
) -> Flags:
    """For each pool, whether a set with blanks can be the best of a best split; a tie counts."""
    blank = count % size
    if not blank:
        return np.zeros(len(pools), dtype=np.bool_)
    sets = subsets_of(pools, count, blank)
    rest = pools[:, None] ^ sets
    wins = high.score[sets] + high.total[rest] >= least
    if low is high:
        return np.asarray((wins & (low.best[rest] <= low.score[sets])).any(axis=1))
    splits = -(-count // size)
    return np.asarray((wins & (high.score[sets] * splits >= least)).any(axis=1))


def _have_pair(rows: Rows, pools: NDArray[np.integer[Any]]) -> Flags:
    """For each pool, whether it has a pair of this adjacency."""
    flags = np.zeros(len(pools), dtype=np.bool_)
    for p, row in enumerate(rows):
        if row:
            flags |= (pools >> p & 1 != 0) & (pools & row != 0)
    return flags


def _has_pair(rows: Rows, available: Mask) -> bool:
    return bool(_have_pair(rows, np.array([available], dtype=np.uint64))[0])


@memoized
def _unequal_rows(shape: Shape) -> Rows:
    """The pairs that show their NVLinks from one end only."""
    return shape.rows(frozenset(link for link in shape.distinct_links if link.one_sided))


@memoized
def _uneven_rows(shape: Shape) -> Rows:
    """The pairs whose ends count different numbers of NVLinks."""
    return shape.rows(frozenset(link for link in shape.distinct_links if link.uneven))


def _overwritten(splits: int) -> int:
    """How many of the last sets of a remembered split can be overwritten.

    Go's append moves to new memory when one, two, four, eight … sets are full. All splits with the
    same beginning share what is appended after that. The others determine the last set.
    """
    moved = max(n for n in (1, 2, 3, 5, 9, 17, 33, 65) if n <= splits)
    shared = splits - moved
    return shared if shared > 1 else 0


# The best splits of every set of GPUs of a machine into sets of one size. A set scores the sum over
# its pairs, a split the sum over its sets. If the number of GPUs is no multiple of the size, splits
# have one smaller set, the one that blanks fill up.

PCIE_SCORE = {
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}
NVLINK_SCORE = 100  # for each direct link of a pair; links into a switch count nothing


@dataclass(frozen=True, slots=True)
class Table:
    """By mask: the score of the set, and of splitting the mask the best total and best set.

    A mask whose size is no multiple of the set size has its blank set among the split. Totals and
    best sets are filled in when they are asked for, ``done`` says for masks of how many GPUs.
    """

    score: Ints
    total: Ints
    best: Ints
    done: set[int]


def tables(shape: Shape, size: int, count: int) -> tuple[Table, Table]:
    """The tables for the lowest and the highest scores that pairs may have; one if they agree."""
    low, high = _empty_tables(shape, size)
    _fill_for(low, size, count)
    if high is not low:
        _fill_for(high, size, count)
    return low, high


@memoized
def _empty_tables(shape: Shape, size: int) -> tuple[Table, Table]:
    scores = [_pair_scores(shape, highest) for highest in (False, True)]
    low, high = (_empty_table(each, shape.size) for each in scores)
    return low, low if scores[0] == scores[1] else high


@memoized
def score_bounds(shape: Shape) -> tuple[int, int]:
    """The least and the most that a pair may score."""
    pairs = list(combinations(range(shape.size), 2))
    return (
        min(_pair_score(shape, p, q, False) for p, q in pairs),
        max(_pair_score(shape, p, q, True) for p, q in pairs),
    )


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


def _fill_for(table: Table, size: int, count: int) -> None:
    """Fill a table in for masks of ``count`` GPUs and for what full sets leave of them."""
    # Where the blank set is taken away, whole sets are left.
    for members in (*range(0, count, size), *range(count % size, count + 1, size)):
        if members not in table.done:
            interruptible()
            _fill(table, size, members)
            table.done.add(members)  # last: a thread that sees it finds the masks filled


def _empty_table(pairs: tuple[tuple[int, ...], ...], n: int) -> Table:
    score = _set_scores(pairs, n)
    return Table(score, np.zeros_like(score), np.zeros_like(score), set())


def _fill(table: Table, size: int, count: int) -> None:
    """Fill in the masks of ``count`` GPUs from those with one set less."""
    score, total, best = table.score, table.total, table.best
    masks = masks_by_count(len(score).bit_length() - 1)[count]
    if count < size:
        total[masks] = best[masks] = score[masks]
        return
    # The lowest GPU is in a full set, or in the one with blanks.
    kinds = sorted({size - 1, count % size - 1} - {-1})
    for some in chunks(masks, sum(comb(count - 1, others) for others in kinds)):
        low = some & -some
        tops = np.full(len(some), -1, dtype=np.int64)
        for others in kinds:
            sets = subsets_of(some ^ low, count - 1, others) | low[:, None]
            behind = some[:, None] ^ sets
            own = score[sets]
            # The highest total first, then the lowest best set.
            key = (own + total[behind]).astype(np.int64) << 32
            key |= _HIGHEST - np.maximum(own, best[behind])
            np.maximum(tops, key.max(axis=1), out=tops)
        total[some] = tops >> 32
        best[some] = _HIGHEST - (tops & _HIGHEST)


_HIGHEST = np.int64((1 << 32) - 1)
_AT_ONCE = 1 << 15  # elements of a matrix that stay in the processor's cache


def chunks(masks: Ints, width: int) -> Iterator[Ints]:
    """The masks in parts, so that a matrix of a part and ``width`` columns is small."""
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


@memoized
def masks_by_count(n: int) -> tuple[Ints, ...]:
    """Every mask of ``n`` GPUs: an array for each number of GPUs in it, from 0 to ``n``."""
    masks = np.arange(1 << n, dtype=np.int32)
    counts = np.bitwise_count(masks)
    return tuple(masks[counts == c] for c in range(n + 1))


def subsets_of(masks: Ints, members: int, size: int) -> Ints:
    """For each mask with ``members`` GPUs, its C(members, size) subsets: a matrix of masks.

    A product of matrices: with 16 GPUs every sum is exact in a float of 32 bits.
    """
    bits = np.empty((len(masks), members), dtype=np.float32)
    left = masks.copy()
    for i in range(members):
        lowest = left & -left
        bits[:, i] = lowest
        left ^= lowest
    # The library under numpy computes on unused lanes of the processor's registers, too. What they
    # happen to hold can raise the processor's flag for "invalid"; no number here is one.
    with np.errstate(invalid="ignore"):
        sums = bits @ _picks(members, size)
    if not np.isfinite(sums).all():
        raise FloatingPointError("a sum of powers of two is no number: the processor is broken")
    return sums.astype(np.int32)


@memoized
def _picks(members: int, size: int) -> NDArray[np.float32]:
    """A members × C(members, size) matrix of 0 and 1: a column for every choice."""
    many = comb(members, size)
    chosen = np.array(list(combinations(range(members), size)), dtype=np.intp).reshape(many, size)
    matrix = np.zeros((members, many), dtype=np.float32)
    matrix[chosen.T, np.arange(many)] = 1
    return matrix
