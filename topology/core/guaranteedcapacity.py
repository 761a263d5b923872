"""Guaranteed capacity: how many placements of a class can be guaranteed one after the other.

A score needs the capacity of the free devices after every outcome of a placement. So this module
works out the capacity of many device sets at once. Under the policy ``any`` it has a closed form.
On nodes of more than eight GPUs, and where GPUs are shared, it follows only one outcome of each
placement. On smaller nodes it follows all outcomes and returns the expected value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.core.admission import DeviceManager, admissions
from topology.core.allocators import Allocator, Ints, of_every_pool
from topology.core.budget import LARGE, SCORE_STEPS, SMALL
from topology.core.devices import Mask
from topology.core.devicesets import DeviceSet, gpu_masks, total
from topology.core.memo import hashed_once, memoized
from topology.core.patterns import (
    ALL,
    Flags,
    Masks,
    Rows,
    are_cliques,
    have_pattern,
    subset_masks,
)
from topology.core.placement.constraints import compiled, inside
from topology.core.placement.podoutcomes import PodOutcomes, judged
from topology.core.requests import NO_CONSTRAINTS, Constraints, Pattern, Role
from topology.core.shape import Shape


@hashed_once
@dataclass(frozen=True)
class RequestClass:
    """A class of requests that have the same guaranteed capacity on every node."""

    count: int
    constraints: Constraints = NO_CONSTRAINTS


def mean_guaranteed_placements(
    kubelet: DeviceManager, pools: Sequence[DeviceSet], wanted: RequestClass
) -> tuple[float | None, int]:
    """Return the mean of :func:`guaranteed_placements` over device sets of equal size.

    The second value is the number of steps that it took. The mean is None if the budget is spent.
    """
    devices = total(pools[0], kubelet.width)
    if devices < wanted.count:
        return 0.0, 1
    if wanted.constraints == NO_CONSTRAINTS and wanted.count == 1:
        return float(devices), 1
    if kubelet.monotone:
        masks = gpu_masks(pools, kubelet.shape.size, kubelet.width)
        good = int(_every_set_passes(kubelet, masks, wanted).sum())
        return devices // wanted.count * good / len(pools), 1
    if kubelet.answers_at_once and kubelet.shape.size > SMALL:
        each = _followed(kubelet, np.array(pools, dtype=np.int32), wanted)
        return int(each.sum()) / len(pools), 1
    if follows_one_by_one(kubelet):
        orders = map(kubelet.allocator.in_turn, pools)
        return sum([in_turn(kubelet, order, wanted) for order in orders]) / len(pools), 1
    if kubelet.shape.size <= SMALL and kubelet.width == 1:
        # There are at most 256 device sets, and each is worked out once.
        if kubelet.answers_at_once and kubelet.refuses_several is False:
            known = _expected_of_every_pool(kubelet.allocator, kubelet.shape, wanted)
            return sum([known[free] for free in pools]) / len(pools), 1
        return sum(_expected(kubelet, free, wanted) for free in pools) / len(pools), 1
    sums, steps = 0, 0
    for free in pools:
        promised, cost = _one_after_the_other(kubelet, free, wanted)
        steps += cost
        if steps > SCORE_STEPS:
            return None, steps
        sums += promised
    return sums / len(pools), steps


def guaranteed_placements(kubelet: DeviceManager, free: DeviceSet, wanted: RequestClass) -> float:
    """Return how many placements of one class can be guaranteed one after the other, as expected.

    The result is 0 if the budget is spent.
    """
    return mean_guaranteed_placements(kubelet, (free,), wanted)[0] or 0.0


# A monotone allocator: if every set in the free devices passes, every set in a part of them does.


def _every_set_passes(kubelet: DeviceManager, masks: Masks, wanted: RequestClass) -> Flags:
    """Return, for each mask of free GPUs, whether every set of the class's size passes.

    On more than 16 GPUs, and on shared ones, rings and connected sets pass only if all pairs do.
    """
    shape, count = kubelet.shape, wanted.count
    test = compiled(shape, wanted.constraints, 0, kubelet.replicas)
    good: Flags = masks & np.uint64(~test.allowed & ALL) == 0
    on_different = kubelet.shared and (test.over_pairs or test.apart is not None)
    if test.whole or (count > 1 and (on_different or kubelet.refuses_several is not False)):
        good[:] = False  # the GPUs may be too many or too few, or the plugin may refuse
    if count == 1:
        return good
    for groups in (test.numa, test.one_gpu):
        if groups is not None:
            good &= inside(groups, masks)
    for rows, pattern in ((test.linked, test.pattern), (test.wide, Pattern.RING)):
        if rows is None:
            continue
        passed = are_cliques(rows, masks)
        beyond_pairs = pattern is not Pattern.PAIRWISE and count > 2 and not passed.all()
        if beyond_pairs and shape.size <= LARGE and kubelet.width == 1:
            passed |= ~_holding_a_bad_set(rows, pattern, count)[masks]
        good &= passed
    return good


@memoized
def _holding_a_bad_set(rows: Rows, pattern: Pattern, count: int) -> Flags:
    """Return, for every mask of at most 16 GPUs, whether a set inside it lacks the pattern.

    The sets are those of ``count`` GPUs.
    """
    sets = subset_masks((1 << len(rows)) - 1, count)
    good = have_pattern(rows, pattern, sets)[0]
    bad = np.zeros(1 << len(rows), dtype=np.bool_)
    bad[sets[~good]] = True
    for p in range(len(rows)):
        halves = bad.reshape(-1, 2, 1 << p)
        halves[:, 1, :] |= halves[:, 0, :]
    return bad


# An allocator whose order of devices is fixed. There are as many orders as nodes, so caching the
# capacity of each order would cost more than working it out.


def follows_one_by_one(kubelet: DeviceManager) -> bool:
    """Check whether the order in which the node hands out its devices is known."""
    return kubelet.allocator.choice_known and kubelet.width == 1 and kubelet.shape.size <= SMALL


def in_turn(kubelet: DeviceManager, devices: Sequence[Mask], wanted: RequestClass) -> int:
    """Return how many placements can be guaranteed if devices are handed out in this order."""
    count = wanted.count
    if wanted.constraints == NO_CONSTRAINTS:
        return len(devices) // count
    good = compiled(kubelet.shape, wanted.constraints, 0, kubelet.replicas).good_sets(count)
    ends = range(count, len(devices) + 1, count)
    for placements, end in enumerate(ends):
        if sum(devices[end - count : end]) not in good:
            return placements
    return len(ends)


# An allocator that answers for many device sets at once, on more than eight GPUs.


@memoized
def _known(allocator: Allocator, shape: Shape, wanted: RequestClass) -> NDArray[np.int8]:
    """Return the guaranteed placements found so far, by mask of free GPUs; -1 if not yet found.

    The array is cached, and :func:`_followed` fills it in.
    """
    return np.full(1 << shape.size, -1, dtype=np.int8)


@memoized
def _passing(shape: Shape, wanted: RequestClass) -> Flags:
    """Return whether each mask of the class's size passes, by mask; other masks are false."""
    passing = np.zeros(1 << shape.size, dtype=np.bool_)
    sets = subset_masks(shape.all_gpus, wanted.count)
    passing[sets] = compiled(shape, wanted.constraints, 0, 1).passing(sets, wanted.count)[0]
    return passing


def _followed(kubelet: DeviceManager, pools: Ints, wanted: RequestClass) -> NDArray[np.int8]:
    """Return the guaranteed placements of each device set.

    Only the lowest outcome of each placement is followed.
    """
    shape, count = kubelet.shape, wanted.count
    known, passing = _known(kubelet.allocator, shape, wanted), _passing(shape, wanted)
    unknown = np.unique(pools[known[pools] < 0])
    levels = []
    while len(unknown):
        left = np.full_like(unknown, -1)  # the GPUs left of each mask after a guaranteed placement
        for part in kubelet.allocator.answers(shape, unknown, count):
            promised = ~part.refused & (passing[part.sets] | ~part.chosen).all(axis=1)
            masks, sets = part.pools[promised], part.sets[promised]
            lowest = np.where(part.chosen[promised], sets, 1 << 30).min(axis=1)
            left[np.searchsorted(unknown, masks)] = masks ^ lowest
        levels.append((unknown, left))
        onward = np.unique(left[left >= 0])
        unknown = onward[known[onward] < 0]
    for masks, left in reversed(levels):
        known[masks] = np.where(left >= 0, 1 + known[np.maximum(left, 0)], 0)
    return known[pools]


# The same on at most eight GPUs: a table of all device sets.


@memoized
def _expected_of_every_pool(
    allocator: Allocator, shape: Shape, wanted: RequestClass
) -> tuple[float, ...]:
    """Return the guaranteed placements by mask, expected over the outcomes of each placement."""
    good = compiled(shape, wanted.constraints, 0, 1).good_sets(wanted.count)
    expected: list[float] = []
    for free, outcomes in enumerate(of_every_pool(allocator, shape, wanted.count)):
        ways = () if outcomes is None or outcomes.hazards else outcomes.sets or ()
        if ways and good.issuperset(ways):  # a smaller mask is left, whose value is known already
            expected.append(1.0 + sum([expected[free - way] for way in ways]) / len(ways))
        else:
            expected.append(0.0)
    return tuple(expected)


# All other nodes, one device set at a time.


@memoized
def _expected(kubelet: DeviceManager, free: DeviceSet, wanted: RequestClass) -> float:
    if free.bit_count() < wanted.count:
        return 0.0
    ways = _promised_ways(kubelet, free, wanted)[0]
    if not ways:
        return 0.0
    return 1.0 + sum(_expected(kubelet, free - way, wanted) for way in ways) / len(ways)


@memoized
def _one_after_the_other(
    kubelet: DeviceManager, free: DeviceSet, wanted: RequestClass
) -> tuple[int, int]:
    """Return the guaranteed placements along the lowest outcome of each, and the steps taken."""
    placements, steps = 0, 0
    while total(free, kubelet.width) >= wanted.count and steps <= SCORE_STEPS:
        ways, cost = _promised_ways(kubelet, free, wanted)
        steps += cost
        if not ways:
            break
        free -= ways[0]
        placements += 1
    return placements, steps


def _promised_ways(
    kubelet: DeviceManager, free: DeviceSet, wanted: RequestClass
) -> tuple[tuple[DeviceSet, ...], int]:
    """Return the outcomes of a placement if all of them pass, else none; and the steps taken."""
    admitted = admissions(kubelet, free, ((Role.APP, wanted.count),))
    if admitted.hazards or not admitted.sets:
        return (), admitted.steps
    if wanted.constraints != NO_CONSTRAINTS:
        test = compiled(kubelet.shape, wanted.constraints, 0, kubelet.replicas)
        foreseen = PodOutcomes(admitted.sets, (), admitted.exact, free, wanted.count)
        if not judged(kubelet, foreseen, test).every:
            return (), admitted.steps
    return admitted.sets, admitted.steps
