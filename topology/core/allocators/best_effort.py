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
all masks of a shape at once (:mod:`.splits`); splits are never listed.

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
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.allocators.outcomes import Call, Outcomes, every_choice
from topology.core.allocators.splits import (
    Ints,
    Table,
    chunks,
    masks_by_count,
    score_bounds,
    subsets_of,
    tables,
)
from topology.core.devices import Mask, positions
from topology.core.remembering import remembered
from topology.core.shape import Shape

MAX_GPUS = 16
"""The tables have 2ⁿ entries; above this the outcomes are every choice."""

SMALL_GPUS = 8

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
    counts = frozenset((call.available.bit_count(),))
    return _bounded(call.shape, call.available, call.size, counts, required=call.required != 0)


@remembered
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
    by bounds of what their pairs score.

    A set with blanks never wins where its pairs can score less than those of any full set. What is
    left when so many are split into sets of the size stands beside the blanks. Of GPUs that the
    plugin has to choose (``required``) the full set may be lost. Where it is not known what the
    pairs score (``ranked`` is false) two GPUs beside the blanks may score more than any others.
    """
    found = {(n % size, -(-n // size)) for n in counts if n >= size}
    if size == 1 or not found:
        return ()
    if _has_unequal_links(shape, available):
        return (UNEQUAL,)
    uneven = _has_pair(_uneven_rows(shape), available)
    least, most = score_bounds(shape)
    for beside, splits in found:
        outscored = comb(beside, 2) * most < comb(size, 2) * least if ranked else beside == 1
        unsure = uneven or (required and _overwritten(splits))
        if beside and (unsure or not outscored):
            return (PADDED,)
    return ()


@remembered
def refuses_nobody(shape: Shape, size: int, pools: frozenset[int] | None = None) -> bool:
    """Whether a container that asks for ``size`` GPUs, and must get none in particular, gets so
    many whichever are available, as long as they are enough.

    ``pools`` are how many may be available; None stands for any number.
    """
    if size > shape.size:
        return False
    counts = frozenset(range(shape.size + 1)) if pools is None else pools
    return not _bounded(shape, shape.all_gpus, size, counts)


@dataclass(frozen=True, slots=True)
class Unforeseen:
    """NVIDIA's plugin over whole GPUs where nobody knows which of them it is asked about, or how it
    ranks them (``ranked`` is false): any may come, and it may fail as it may over any part of them.
    """

    ranked: bool

    name = "any"
    monotone = True

    def outcomes(self, call: Call) -> Outcomes:
        """Every choice, with every refusal that may come."""
        hazards = self.refusals(call.shape, call.available, call.size)
        return every_choice(call, exact=True, hazards=hazards)

    def refusals(self, shape: Shape, available: Mask, size: int) -> tuple[str, ...]:
        """The refusals that may come of asking for so many of any part of these GPUs."""
        counts = frozenset(range(available.bit_count() + 1))
        return _bounded(shape, available, size, counts, required=True, ranked=self.ranked)


@remembered
def _outcomes(call: Call) -> Outcomes:
    shape, available, size = call.shape, call.available, call.size
    if shape.size <= SMALL_GPUS and not call.required:
        return of_every_pool(shape, size)[available] or Outcomes(())
    return _of_one_pool(call)


def _of_one_pool(call: Call) -> Outcomes:
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
        found = answers(shape, np.array([available], dtype=np.int32), size)
        listed = tuple(np.sort(found.sets[0][found.chosen[0]]).tolist())
        return Outcomes(listed, found.exact, found.hazards)
    splits = -(-available.bit_count() // size)
    if _overwritten(splits):
        # The full set around the required GPUs may be lost, and the one with blanks be left.
        blank = available.bit_count() % size
        return every_choice(call, exact=False, hazards=(PADDED,) if blank else ())
    low, high = tables(shape, size, available.bit_count())
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
    sets = subsets_of(pools, count, size)
    if size == 1:
        chosen = np.ones(sets.shape, dtype=np.bool_)
        return Answers(sets, chosen, np.zeros(len(pools), dtype=np.bool_), True)
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
    padded = _blank_sets_can_win(pools, count, size, low, high, least, splits)
    return Answers(sets, chosen, padded, low is high and not lost)


def answers_of(shape: Shape, pools: Ints, size: int) -> Iterator[Answers]:
    """:func:`answers` in parts that do not take much memory at once."""
    return (
        answers(shape, some, size) for some in chunks(pools, comb(int(pools[0]).bit_count(), size))
    )


@remembered
def of_every_pool(shape: Shape, size: int) -> tuple[Outcomes | None, ...]:
    """By mask: the outcomes of every pool of a machine of at most :data:`SMALL_GPUS` GPUs.

    None for a pool that has fewer GPUs than are asked for. All pools at once cost little more than
    one.
    """
    found: list[Outcomes | None] = [None] * (1 << shape.size)
    for masks in masks_by_count(shape.size)[size:]:
        odd = np.zeros(len(masks), dtype=np.bool_)
        if size > 1:
            odd = unequal(shape, masks) | uneven(shape, masks)
        for mask in masks[odd].tolist():
            found[mask] = _of_one_pool(Call(shape, mask, size))
        if odd.all():
            continue
        known = answers(shape, masks[~odd], size)
        rows = np.where(known.chosen, known.sets, np.int32(1 << shape.size))
        rows.sort(axis=1)  # what may come first
        counts = known.chosen.sum(axis=1)
        for mask, row, count, padded in zip(
            masks[~odd].tolist(), rows.tolist(), counts.tolist(), known.padded, strict=True
        ):
            hazards = (PADDED,) if padded else ()
            found[mask] = Outcomes(tuple(row[:count]), known.exact, hazards)
    return tuple(found)


def _blank_sets_can_win(
    pools: Ints, count: int, size: int, low: Table, high: Table, least: Ints, splits: int
) -> NDArray[np.bool_]:
    """For each pool, whether a set with blanks can be the best of a best split; a tie counts."""
    blank = count % size
    if not blank:
        return np.zeros(len(pools), dtype=np.bool_)
    sets = subsets_of(pools, count, blank)
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


def _subsets(mask: Mask, size: int) -> Ints:
    found: Ints = subsets_of(np.array([mask], dtype=np.int32), mask.bit_count(), size)[0]
    return found
