"""``best-effort``: how NVIDIA's plugin hands out whole GPUs.

The algorithm is read from go-gpuallocator 0.6 (``besteffort_policy.go``) and seen in recorded
answers. The plugin lists the available GPUs, in an arbitrary order. It fills the list up with
blanks to a multiple of the size, and splits it into sets of that size in every possible way. All
blanks are in one set. The plugin considers the splits in which one set without blanks has all
required GPUs. Of these, the first split with the highest total score wins. Of its sets that have
the required GPUs, the plugin returns the first with the highest score.

The outcomes follow from that. List the GPUs set by set, for the sets of a best split, with the
blank set last. In that order the plugin considers this split first. So every split of the highest
total can win, and every set that ties for the best in it can come. Let ``f(M)`` be the best total
over the splits of ``M``, and ``h(M)`` the smallest possible score of the best set in those splits.
Then a set *S* may come from *A* if and only if ``score(S) + f(A - S) = f(A)`` and
``h(A - S) <= score(S)``. Both functions are computed for all masks of a shape at once, by dynamic
programming (:class:`Table`). Splits are never listed.

Two hazards may end the call without a usable answer:

``padded-set``
    The best set of a best split can be the one with blanks. The plugin dereferences a nil.
``unequal-links``
    A pair shows its NVLinks from one end only. The plugin panics.

*Slice corruption* refuses no pod. It only makes the outcomes a superset. With seven or eight sets
(and eleven to sixteen), Go slices of different splits share memory. Then sets of other splits
overwrite the last sets of the split that won. Without required GPUs the answer is still a set of
the requested size. With required GPUs the answer may be empty, and then the kubelet fills up with
any devices.

If the PCIe class of a pair is unknown, its score is an interval, and the outcomes are a superset.
If the two GPUs of a pair count different numbers of NVLinks, the score depends on the order of the
two GPUs, and any set may come.

Sources: go-gpuallocator 0.2 to 0.6, read and run. They choose alike, as NVIDIA's plugin up to
0.20.0 uses them. An unknown version is treated as one of these. A newer version is assumed to
choose alike, and to have these defects or not. So hazards stay hazards, and corrupted sets stay
possible.
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
        UNEQUAL: (
            "NVIDIA's device plugin fails because two GPUs report different link counts for "
            "each other"
        ),
    }
)


class BestEffort(NvidiaPlugin):
    """NVIDIA's BestEffort policy over whole GPUs. Any other call is answered like ``any``."""

    name = "best-effort"
    hazards = HAZARDS
    # The tables have 2ⁿ entries. On larger nodes the outcomes are every choice.
    answers_up_to = LARGE

    def outcomes(self, call: Call) -> Outcomes:
        """Return the outcomes. They are exact for up to 16 GPUs with known PCIe classes.

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
        """Yield the outcomes of each pool, without required GPUs."""
        counts = np.bitwise_count(pools)
        unequal, uneven = _unequal_rows(shape), _uneven_rows(shape)
        for count in np.flatnonzero(np.bincount(counts[counts >= size])).tolist():
            for some in chunks(pools[counts == count], comb(count, size)):
                yield from _answers(shape, some, size, unequal, uneven)

    def never_refuses(self, shape: Shape, size: int, counts: frozenset[int] | None) -> bool:
        """Check whether no set with blanks can win, whichever ``counts`` GPUs are available."""
        if size == 1:
            return True
        if not size <= shape.size <= LARGE:
            return False
        every = frozenset(range(shape.size + 1)) if counts is None else counts
        return not _bounded(shape, shape.all_gpus, size, every)

    def under(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """Return an allocator of any GPUs, with all refusals, if the available GPUs are unknown."""
        if not config.aligned_anyhow:
            return self
        return Unforeseen(ranked=True) if whole else ANYTHING


BEST_EFFORT = BestEffort()


@dataclass(frozen=True, slots=True)
class Unforeseen(NvidiaPlugin):
    """NVIDIA's plugin over whole GPUs, if it is unknown which GPUs it chooses from or how it ranks
    them.

    Any GPUs may come, and the plugin may fail as it may over any part of them.
    """

    ranked: bool  # whether the plugin's ranking of GPUs is known

    name = "any"
    monotone = True
    hazards = HAZARDS

    def refusals(self, shape: Shape, available: Mask, size: int) -> tuple[str, ...]:
        """Return the refusals that may come of choosing ``size`` of any part of these GPUs."""
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
    """Return the refusals that may come if the plugin chooses among ``counts`` of these GPUs.

    They follow from bounds on the scores of pairs. A set with blanks never wins if its pairs can
    only score less than those of any full set. Its GPUs are those that remain when the others are
    split into full sets. If the call has ``required`` GPUs, the full set around them may be lost.
    If the scores of pairs are unknown (``ranked`` is false), two GPUs beside the blanks may score
    more than any others.
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
    """Return the outcomes of one call on a node of up to 16 whole GPUs."""
    shape, available, required, size = call.shape, call.available, call.required, call.size
    if not required:
        parts = BEST_EFFORT.answers(shape, np.array([available], dtype=np.int32), size)
        return next((outcomes for part in parts for _, outcomes in part.by_pool()), Outcomes(()))
    if size == 1:
        # A single GPU scores nothing, so the first one in an arbitrary order wins.
        return every_choice(call, exact=True)
    if _has_pair(_unequal_rows(shape), available):
        return Outcomes((), hazards=(UNEQUAL,))
    count = available.bit_count()
    if _has_pair(_uneven_rows(shape), available) or _overwritten(-(-count // size)):
        # If sets are overwritten, the full set around the required GPUs may be lost, and only the
        # set with blanks be left.
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
    """Yield the outcomes of pools that all have the same number of GPUs, at least ``size``."""
    count = int(pools[0]).bit_count()
    sets = subsets_of(pools, count, size)
    unequal = _have_pair(unequal_rows, pools)
    uneven = _have_pair(uneven_rows, pools) & ~unequal
    odd = unequal | uneven
    if size > 1 and not odd.any():
        yield _ranked(shape, pools, sets, size)
        return
    none, every = np.zeros_like(sets, dtype=np.bool_), np.ones_like(sets, dtype=np.bool_)
    if size == 1:  # any GPU may come, as in `_outcomes`
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
    """Return the outcomes of such pools if the two GPUs of each pair agree about its NVLinks."""
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
        # At most `lost` sets of the winning split are overwritten by others. The best of the
        # remaining sets scores at least their average, when the lost ones score the most possible.
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
    """Return, for each pool, whether a set with blanks can be the best of a best split.

    A tie counts.
    """
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
    """Return, for each pool, whether it has a pair of this adjacency."""
    flags = np.zeros(len(pools), dtype=np.bool_)
    for p, row in enumerate(rows):
        if row:
            flags |= (pools >> p & 1 != 0) & (pools & row != 0)
    return flags


def _has_pair(rows: Rows, available: Mask) -> bool:
    return bool(_have_pair(rows, np.array([available], dtype=np.uint64))[0])


@memoized
def _unequal_rows(shape: Shape) -> Rows:
    """Return the pairs that show their NVLinks from one end only."""
    return shape.rows(frozenset(link for link in shape.distinct_links if link.one_sided))


@memoized
def _uneven_rows(shape: Shape) -> Rows:
    """Return the pairs whose ends count different numbers of NVLinks."""
    return shape.rows(frozenset(link for link in shape.distinct_links if link.uneven))


def _overwritten(splits: int) -> int:
    """Return how many of the last sets of a stored split can be overwritten.

    Go's append moves to new memory when one, two, four, eight … sets are full. All splits with the
    same beginning share the memory of the sets that are appended after that. The other sets
    determine the last one.
    """
    moved = max(n for n in (1, 2, 3, 5, 9, 17, 33, 65) if n <= splits)
    shared = splits - moved
    return shared if shared > 1 else 0


# The tables have the best splits of every set of GPUs of a machine into sets of one size. The score
# of a set is the sum over its pairs, the score of a split the sum over its sets. If the number of
# GPUs is not a multiple of the size, each split has one smaller set. Blanks fill this set up.

PCIE_SCORE = {
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}
NVLINK_SCORE = 100  # for each direct link of a pair; links into a switch score nothing


@dataclass(frozen=True, slots=True)
class Table:
    """By mask: the score of the set, and the best total and the best set of the splits of the mask.

    If the number of a mask's GPUs is not a multiple of the set size, the blank set is one of the
    sets of each split. Totals and best sets are computed when they are needed; ``done`` has the
    numbers of GPUs whose masks are computed.
    """

    score: Ints
    total: Ints
    best: Ints
    done: set[int]


def tables(shape: Shape, size: int, count: int) -> tuple[Table, Table]:
    """Return the tables for the lowest and the highest scores of the pairs.

    Both are one object if the scores agree.
    """
    low, high = _empty_tables(shape, size)
    _fill_for(low, size, count)
    if high is not low:
        _fill_for(high, size, count)
    return low, high


@memoized
def _empty_tables(shape: Shape, size: int) -> tuple[Table, Table]:
    n = range(shape.size)
    pairs = [
        tuple(tuple(_pair_score(shape, p, q, highest) for q in n) for p in n)
        for highest in (False, True)
    ]
    scores = [_set_scores(each, shape.size) for each in pairs]
    low, high = (Table(s, np.zeros_like(s), np.zeros_like(s), set()) for s in scores)
    return low, low if pairs[0] == pairs[1] else high


@memoized
def score_bounds(shape: Shape) -> tuple[int, int]:
    """Return the least and the most that a pair may score."""
    pairs = list(combinations(range(shape.size), 2))
    return (
        min(_pair_score(shape, p, q, False) for p, q in pairs),
        max(_pair_score(shape, p, q, True) for p, q in pairs),
    )


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
    # The NVLinks hide the PCIe class, as in the text of nvidia-smi.
    bounds = (LinkKind.NODE, LinkKind.BOARD) if a == b else (LinkKind.SYS, LinkKind.SYS)
    return score + PCIE_SCORE[bounds[highest]]


def _fill_for(table: Table, size: int, count: int) -> None:
    """Fill a table for masks of ``count`` GPUs, and for the masks that remain without full sets."""
    # Without the blank set, a multiple of the size is left.
    for members in (*range(0, count, size), *range(count % size, count + 1, size)):
        if members not in table.done:
            interruptible()
            _fill(table, size, members)
            table.done.add(members)  # last, so that a thread that sees it finds the masks filled


def _fill(table: Table, size: int, count: int) -> None:
    """Fill the masks of ``count`` GPUs from those with one set less."""
    score, total, best = table.score, table.total, table.best
    masks = masks_by_count(len(score).bit_length() - 1)[count]
    if count < size:
        total[masks] = best[masks] = score[masks]
        return
    # The lowest GPU is in a full set or in the set with blanks.
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
    """Return the masks in parts, so that a matrix of a part and ``width`` columns is small."""
    step = max(1, _AT_ONCE // width)
    return (masks[at : at + step] for at in range(0, len(masks), step))


def _set_scores(pairs: tuple[tuple[int, ...], ...], n: int) -> Ints:
    """Return the score of every mask, the sum over its pairs."""
    score = np.zeros(1, dtype=np.int32)
    for p in range(n):
        with_p = np.zeros(1, dtype=np.int32)
        for q in range(p):
            with_p = np.concatenate([with_p, with_p + pairs[p][q]])
        score = np.concatenate([score, score + with_p])
    return score


@memoized
def masks_by_count(n: int) -> tuple[Ints, ...]:
    """Return every mask of ``n`` GPUs, as one array for each number of GPUs from 0 to ``n``."""
    masks = np.arange(1 << n, dtype=np.int32)
    counts = np.bitwise_count(masks)
    return tuple(masks[counts == c] for c in range(n + 1))


def subsets_of(masks: Ints, members: int, size: int) -> Ints:
    """Return, for each mask with ``members`` GPUs, its C(members, size) subsets: a matrix of masks.

    It is a product of matrices. With 16 GPUs every sum is exact in a float of 32 bits.
    """
    bits = np.empty((len(masks), members), dtype=np.float32)
    left = masks.copy()
    for i in range(members):
        lowest = left & -left
        bits[:, i] = lowest
        left ^= lowest
    # numpy's BLAS library also computes on unused lanes of the processor's registers. Their content
    # is arbitrary and can raise the processor's "invalid" flag. No number here is invalid.
    with np.errstate(invalid="ignore"):
        sums = bits @ _picks(members, size)
    if not np.isfinite(sums).all():
        raise FloatingPointError("a sum of powers of two is no number: the processor is broken")
    return sums.astype(np.int32)


@memoized
def _picks(members: int, size: int) -> NDArray[np.float32]:
    """Return a members × C(members, size) matrix of 0 and 1, with a column for every choice."""
    many = comb(members, size)
    chosen = np.array(list(combinations(range(members), size)), dtype=np.intp).reshape(many, size)
    matrix = np.zeros((members, many), dtype=np.float32)
    matrix[chosen.T, np.arange(many)] = 1
    return matrix
