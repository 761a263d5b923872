"""All outcomes of a pod on a node, over all possible free states together.

A verdict depends on two properties of them: whether every set meets the constraints, and whether
some set does (:func:`judged`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topology.core.admission import (
    TOO_FEW,
    DeviceManager,
    ProviderAnswers,
    admissions,
    provider_answers,
)
from topology.core.allocators import of_every_pool
from topology.core.availability import Availability
from topology.core.budget import (
    POD_OUTCOMES_STEPS,
    POD_OUTCOMES_STEPS_OF_LARGER,
    SMALL,
    SPENT,
    most_sets,
)
from topology.core.devices import Mask
from topology.core.devicesets import DeviceSet, gpu_masks, gpus, total
from topology.core.memo import memoized
from topology.core.patterns import is_clique
from topology.core.placement.constraints import CompiledConstraints, passing_choices
from topology.core.possiblestates import FreeState, possible_states
from topology.core.requests import Counts, Exclusive, Role


@dataclass(frozen=True, slots=True)
class PodOutcomes:
    """All sets of devices that the pod may get, over all possible free states together."""

    # The devices that the running pod may have, ascending. None if they are too many sets to list.
    # Then any `count` devices of `free` may come.
    sets: tuple[DeviceSet, ...] | None
    hazards: tuple[str, ...]  # refusals that may come
    exact: bool  # false if some set may be impossible
    free: DeviceSet
    count: int
    steps: int = 0  # the cost of the evaluation

    def gpus(self, kubelet: DeviceManager) -> tuple[Mask, ...] | None:
        """Return the sets as masks of GPUs, without the devices on each GPU."""
        if self.sets is None or kubelet.width == 1:
            return self.sets
        return tuple(sorted({gpus(pool, kubelet.width) for pool in self.sets}))

    def surely_has(self, some: Mask, kubelet: DeviceManager) -> bool:
        """Check whether every set that may come has one of ``some`` GPUs."""
        sets = self.gpus(kubelet)
        if sets is None:
            return bool(self.count) and not gpus(self.free, kubelet.width) & ~some
        return bool(sets) and all(mask & some for mask in sets)


@memoized
def pod_outcomes(
    kubelet: DeviceManager,
    availability: Availability,
    counts: Counts,
    only_gpu_plugin: bool,
    exclusive: Exclusive = Exclusive.NOTHING,
    *,
    endings: bool = False,
) -> PodOutcomes:
    """Return the outcomes of a pod with these containers.

    With ``endings`` running pods may end first. ``availability`` is an
    :meth:`~topology.core.availability.Availability.outcome_key`. Availabilities that have the same
    key have the same outcomes.
    """
    one = len(counts) == 1 and not kubelet.aligns  # a pod may end after its hint was merged
    count = sum(n for role, n in counts if role is not Role.INIT)
    possible = possible_states(kubelet, availability, endings=endings, one_container=one)
    widest = availability.widest(endings=endings)
    if possible.free_states is None:
        return PodOutcomes(None, (SPENT,), False, widest, count, possible.steps)
    answers = provider_answers(
        kubelet,
        availability.numa_free_for(kubelet, endings=endings),
        counts,
        only_gpu_plugin=only_gpu_plugin,
        exclusive=exclusive,
    )
    hazards: set[str] = set()
    sets: tuple[DeviceSet, ...] | None
    only_plugin = kubelet.answers_at_once and not answers.hazards
    if one and counts[0][0] is not Role.INIT and only_plugin:
        steps = 20 + len(possible.free_states) // 8
        at_once = _looked_up if kubelet.shape.size <= SMALL else _all_at_once
        sets, exact = at_once(kubelet, possible.free_states, count, hazards)
    else:
        sets, exact, steps = _one_by_one(kubelet, possible.free_states, counts, answers, hazards)
    steps += possible.steps + answers.steps
    return PodOutcomes(sets, tuple(sorted(hazards)), exact, widest, count, steps)


# The next functions return the outcomes over all free states: the sets, and whether every set is
# known to be possible. They add refusals to `hazards`.


def _one_by_one(
    kubelet: DeviceManager,
    possible: tuple[FreeState, ...],
    counts: Counts,
    answers: ProviderAnswers,
    hazards: set[str],
) -> tuple[tuple[DeviceSet, ...] | None, bool, int]:
    """Return the outcomes found state by state, and the steps that this took."""
    sets: set[DeviceSet] | None = set()
    small = kubelet.shape.size <= SMALL
    exact, steps, budget = True, 0, POD_OUTCOMES_STEPS if small else POD_OUTCOMES_STEPS_OF_LARGER
    for done, state in enumerate(possible, 1):
        admitted = admissions(kubelet, state.free, counts, answers, releasing=state.later)
        hazards.update(admitted.hazards)
        exact &= admitted.exact
        steps += admitted.steps
        if steps > budget or steps * len(possible) > 2 * budget * done:
            # At this rate all states would take twice the budget, so give up at once.
            hazards.add(SPENT)
            return None, False, steps
        if admitted.sets is None:
            sets = None
        elif sets is not None:
            sets.update(admitted.sets)
            if len(sets) > most_sets(kubelet.shape.size, kubelet.width):
                sets = None
    return None if sets is None else tuple(sorted(sets)), exact and sets is not None, steps


def _looked_up(
    kubelet: DeviceManager, possible: tuple[FreeState, ...], count: int, hazards: set[str]
) -> tuple[tuple[DeviceSet, ...], bool]:
    """Return the outcomes for one container on a small node, by a look-up of each free state."""
    by_pool = of_every_pool(kubelet.allocator, kubelet.shape, count)
    known = (by_pool[state.free] for state in possible)
    outcomes = [one for one in known if one is not None]
    if len(outcomes) < len(possible):
        hazards.add(TOO_FEW)
    hazards.update(*(one.hazards for one in outcomes))
    # On so small a node the sets are always listed.
    sets = set[DeviceSet]().union(*(one.sets or () for one in outcomes))
    return tuple(sorted(sets)), all(one.exact for one in outcomes)


def _all_at_once(
    kubelet: DeviceManager, possible: tuple[FreeState, ...], count: int, hazards: set[str]
) -> tuple[tuple[DeviceSet, ...], bool]:
    """Return the outcomes on a larger node. The allocator evaluates all pools together."""
    pools = np.array([state.free for state in possible], dtype=np.int32)
    came = np.zeros(1 << kubelet.shape.size, dtype=np.bool_)
    if (np.bitwise_count(pools) < count).any():
        hazards.add(TOO_FEW)
    exact = True
    for part in kubelet.allocator.answers(kubelet.shape, pools, count):
        came[part.sets[part.chosen]] = True
        hazards.update(part.hazards)
        exact &= part.exact
    return tuple(np.flatnonzero(came).tolist()), exact


class Judgement(NamedTuple):
    """How many of a pod's outcomes meet the constraints. A refusal is an outcome too."""

    every: bool  # whether every outcome meets them
    some: bool  # whether some outcome does
    passing_fraction: float  # the fraction of the sets that does
    sure: bool = True  # false if a search for a ring was given up
    steps: int = 0  # the cost of the outcomes; set by `keeps` only


def judged(
    kubelet: DeviceManager, foreseen: PodOutcomes, constraints: CompiledConstraints
) -> Judgement:
    """Return how many of a pod's outcomes meet the constraints."""
    any_may_come = kubelet.shape.of_mig and kubelet.monotone and not constraints.whole
    if any_may_come and foreseen.sets != () and foreseen.count:
        # Any of the free instances may come, whether or not all choices are listed.
        some = passing_choices(
            kubelet.shape, constraints, foreseen.free, foreseen.count, kubelet.width
        )
        return Judgement(some[0] and not foreseen.hazards, *some[1:])
    if foreseen.sets is None:
        return _judged_unlisted(kubelet, foreseen, constraints)
    count, width = foreseen.count, kubelet.width
    listed = len(foreseen.sets)
    if not listed:
        return Judgement(False, False, 0.0)
    sure = True
    if constraints.known is not None:
        good = constraints.good_sets(count)
        masks = foreseen.sets if width == 1 else [gpus(s, width) for s in foreseen.sets]
        passed = sum(map(good.__contains__, masks))
    else:
        flags, sure = constraints.passing(
            gpu_masks(foreseen.sets, kubelet.shape.size, width), count
        )
        passed = int(flags.sum())
    every = 0 < passed == listed and not foreseen.hazards
    return Judgement(every, passed > 0 or not sure, passed / listed, sure)


def _judged_unlisted(
    kubelet: DeviceManager, foreseen: PodOutcomes, constraints: CompiledConstraints
) -> Judgement:
    """Return a sound judgement if any devices may come.

    All sets pass only if the widest pool is one clique of allowed GPUs, and GPUs are not shared
    (two shares of a pair may be on one GPU). Some sets are assumed to pass if enough GPUs are
    allowed.
    """
    count, width = foreseen.count, kubelet.width
    if constraints.one_gpu is not None or constraints.apart is not None or constraints.whole:
        return Judgement(False, True, 0.5)  # not followed
    free = gpus(foreseen.free, width)
    parts = [rows for rows in (constraints.linked, constraints.wide) if rows is not None]
    every = (
        not free & ~constraints.allowed
        and not (width > 1 and constraints.over_pairs)
        and total(foreseen.free, width) >= count
        and all(is_clique(rows, free) for rows in parts)
        and (constraints.numa is None or any(free & ~node == 0 for node in constraints.numa))
    )
    fewest = 1 if width > 1 and not constraints.over_pairs else count
    some = every or (free & constraints.allowed).bit_count() >= fewest
    return Judgement(every and not foreseen.hazards, some, 1.0 if every else 0.5 * some)
