"""The best splits of every set of GPUs of a machine into sets of one size, by dynamic programming.

The scores are those of ``best-effort`` (:mod:`.best_effort`): a set scores the sum over its pairs,
a split the sum over its sets. A set of GPUs whose number is no multiple of the size has one smaller
set in its splits, the one that blanks fill up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.allocators.protocol import Ints
from topology.core.links import Link, LinkKind, Via
from topology.core.patterns import picks
from topology.core.remembering import interruptible, remembered
from topology.core.shape import Shape

PCIE_SCORE = {
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}
NVLINK_SCORE = 100  # For each direct link of a pair; links into a switch count nothing


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
    low = _table(shape, size, False, count)
    return low, low if _scores_known(shape) else _table(shape, size, True, count)


@remembered
def _scores_known(shape: Shape) -> bool:
    return _pair_scores(shape, False) == _pair_scores(shape, True)


@remembered
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


def _table(shape: Shape, size: int, highest: bool, count: int) -> Table:
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
def _empty_table(shape: Shape, size: int, highest: bool) -> Table:
    score = _set_scores(_pair_scores(shape, highest), shape.size)
    return Table(score, np.zeros_like(score), np.zeros_like(score), set())


def _fill(table: Table, size: int, count: int) -> None:
    """Fill in the masks of ``count`` GPUs from those with a set less."""
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
_AT_ONCE = 1 << 15  # Elements of a matrix that stay in the processor's cache


def chunks(masks: Ints, width: int) -> Iterator[Ints]:
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
def masks_by_count(n: int) -> tuple[Ints, ...]:
    """Every mask of ``n`` GPUs, in a row for each number of GPUs in it, from 0 to ``n``."""
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
        found = bits @ _picks(members, size)
    if not np.isfinite(found).all():
        raise FloatingPointError("a sum of powers of two is no number: the processor is broken")
    return found.astype(np.int32)


@remembered
def _picks(members: int, size: int) -> NDArray[np.float32]:
    """A members × C(members, size) matrix of 0 and 1: a column for every choice."""
    matrix = np.zeros((members, comb(members, size)), dtype=np.float32)
    chosen = picks(members, size)
    matrix[chosen.T, np.arange(len(chosen))] = 1
    return matrix
