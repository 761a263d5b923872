"""The outlook of a pod on a node: everything that may be handed out over a belief, as one.

A verdict asks two things of it: whether every set passes the constraints, and whether some does
(:func:`judged`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topology.core.admission import TOO_FEW, Kubelet, Others, admissions, others_on
from topology.core.allocators import of_every_pool
from topology.core.availability import Availability
from topology.core.belief import FreeState, belief
from topology.core.budget import SMALL, SPENT, most_sets, outlook_steps
from topology.core.devices import Mask
from topology.core.patterns import is_clique
from topology.core.placement.constraints import CompiledConstraints, passing_share
from topology.core.pools import Pool, gpu_masks, gpus, total
from topology.core.remembering import remembered
from topology.core.requests import Counts, Exclusive, Role


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everything that may be handed out over a belief, as one.

    ``sets`` are the pools of devices that the running pod may have, ascending, or None where they
    are too many to list: then any ``count`` of ``free`` may come. ``hazards`` names the refusals
    that it may meet, ``exact`` is false where some set may be impossible, and ``steps`` is what it
    cost to work out.
    """

    sets: tuple[Pool, ...] | None
    hazards: tuple[str, ...]
    exact: bool
    free: Pool
    count: int
    steps: int = 0

    def gpus(self, kubelet: Kubelet) -> tuple[Mask, ...] | None:
        """The sets as GPUs, whichever of their devices it would be."""
        if self.sets is None or kubelet.width == 1:
            return self.sets
        return tuple(sorted({gpus(found, kubelet.width) for found in self.sets}))


@remembered
def outlook(
    kubelet: Kubelet,
    now: Availability,
    counts: Counts,
    only_gpu_plugin: bool,
    exclusive: Exclusive = Exclusive.NOTHING,
    *,
    endings: bool = False,
) -> Outlook:
    """What may come of a pod with these containers; with ``endings`` running pods may end first.

    ``now`` is an :meth:`~topology.core.availability.Availability.outcome_key`: availabilities which
    differ in nothing else have one answer.
    """
    one = len(counts) == 1 and not kubelet.aligns  # a pod may end after its hint was merged
    count = sum(n for role, n in counts if role is not Role.INIT)
    believed = belief(kubelet, now, endings=endings, one_container=one)
    widest = now.widest(endings=endings)
    if believed.free_states is None:
        return Outlook(None, (SPENT,), False, widest, count, believed.steps)
    others = others_on(
        kubelet,
        now.room_for(kubelet, endings=endings),
        counts,
        only_gpu_plugin=only_gpu_plugin,
        exclusive=exclusive,
    )
    only_plugin = kubelet.answers_at_once and not others.hazards
    if one and counts[0][0] is not Role.INIT and only_plugin:
        at_once = _looked_up if kubelet.shape.size <= SMALL else _all_at_once
        found = at_once(kubelet, believed.free_states, count)
    else:
        found = _one_by_one(kubelet, believed.free_states, counts, others)
    exact = found.exact and found.sets is not None
    steps = found.steps + believed.steps + others.steps
    return Outlook(found.sets, found.hazards, exact, widest, count, steps)


class _Found(NamedTuple):
    """What was found over all free states of a belief; the fields are those of the outlook."""

    sets: tuple[Pool, ...] | None
    hazards: tuple[str, ...]
    exact: bool
    steps: int


def _one_by_one(
    kubelet: Kubelet,
    believed: tuple[FreeState, ...],
    counts: Counts,
    others: Others,
) -> _Found:
    hazards: set[str] = set()
    sets: set[Pool] | None = set()
    exact, steps, budget = True, 0, outlook_steps(kubelet.shape.size)
    for done, state in enumerate(believed, 1):
        found = admissions(
            kubelet,
            state.free,
            counts,
            others,
            releasing=state.later,
        )
        hazards.update(found.hazards)
        exact &= found.exact
        steps += found.steps
        if steps > budget or steps * len(believed) > 2 * budget * done:
            # At this pace it would be spent twice over: given up at once.
            return _Found(None, spent(tuple(hazards)), False, steps)
        if found.sets is None:
            sets = None
        elif sets is not None:
            sets.update(found.sets)
            if len(sets) > most_sets(kubelet.shape.size, kubelet.width):
                sets = None
    listed = None if sets is None else tuple(sorted(sets))
    return _Found(listed, tuple(sorted(hazards)), exact, steps)


def _looked_up(kubelet: Kubelet, believed: tuple[FreeState, ...], count: int) -> _Found:
    """The same for one container on a small node of which every pool's outcomes are known."""
    known = of_every_pool(kubelet.allocator, kubelet.shape, count)
    hazards: set[str] = set()
    sets: set[Pool] = set()
    exact = True
    for state in believed:
        found = known[state.free]
        if found is None:
            hazards.add(TOO_FEW)
            continue
        sets.update(found.sets or ())  # so few are always listed
        hazards.update(found.hazards)
        exact &= found.exact
    return _Found(tuple(sorted(sets)), tuple(sorted(hazards)), exact, _steps_at_once(len(believed)))


def _all_at_once(kubelet: Kubelet, believed: tuple[FreeState, ...], count: int) -> _Found:
    """The same on a larger node, where the pools are asked about together."""
    pools = np.array([state.free for state in believed], dtype=np.int32)
    came = np.zeros(1 << kubelet.shape.size, dtype=np.bool_)
    hazards = {TOO_FEW} if (np.bitwise_count(pools) < count).any() else set()
    exact = True
    for found in kubelet.allocator.answers(kubelet.shape, pools, count):
        came[found.sets[found.chosen]] = True
        hazards.update(found.hazards)
        exact &= found.exact
    listed = tuple(np.flatnonzero(came).tolist())
    return _Found(listed, tuple(sorted(hazards)), exact, _steps_at_once(len(believed)))


def _steps_at_once(believed: int) -> int:
    """What it counts as to ask about so many free states together."""
    return 20 + believed // 8


def spent(hazards: tuple[str, ...]) -> tuple[str, ...]:
    """The hazards of a question that was given up."""
    return tuple(sorted({*hazards, SPENT}))


class Judgement(NamedTuple):
    """Of an outlook: whether ``every`` outcome passes, whether ``some`` does, the ``share`` of it.

    A refusal is an outcome too. ``sure`` is false where a search for a ring was given up.
    """

    every: bool
    some: bool
    share: float
    sure: bool = True


def judged(kubelet: Kubelet, found: Outlook, constraints: CompiledConstraints) -> Judgement:
    """How far an outlook meets the constraints."""
    if kubelet.shape.of_mig and kubelet.monotone and found.sets != () and found.count:
        # Any of the free instances may come, whether or not all choices are listed.
        some = passing_share(kubelet.shape, constraints, found.free, found.count, kubelet.width)
        return Judgement(some[0] and not found.hazards, *some[1:])
    if found.sets is None:
        return _judged_unlisted(kubelet, found, constraints)
    count, width = found.count, kubelet.width
    listed = len(found.sets)
    if not listed:
        return Judgement(False, False, 0.0)
    sure = True
    if constraints.known is not None:
        good = constraints.good_sets(count)
        masks = found.sets if width == 1 else [gpus(s, width) for s in found.sets]
        passed = sum(map(good.__contains__, masks))
    else:
        flags, sure = constraints.passing(gpu_masks(found.sets, kubelet.shape.size, width), count)
        passed = int(flags.sum())
    every = 0 < passed == listed and not found.hazards
    return Judgement(every, passed > 0 or not sure, passed / listed, sure)


def _judged_unlisted(
    kubelet: Kubelet, found: Outlook, constraints: CompiledConstraints
) -> Judgement:
    """A sound judgement where any devices may come.

    All of them pass only if the widest pool is one clique of allowed GPUs (and GPUs are not shared,
    where a pair may fall on one). Some are taken to pass if enough GPUs are allowed.
    """
    count, width = found.count, kubelet.width
    if constraints.one_gpu is not None or constraints.apart is not None or constraints.whole:
        return Judgement(False, True, 0.5)  # not followed
    free = gpus(found.free, width)
    parts = [rows for rows in (constraints.linked, constraints.wide) if rows is not None]
    every = (
        not free & ~constraints.allowed
        and not (width > 1 and constraints.over_pairs)
        and total(found.free, width) >= count
        and all(is_clique(rows, free) for rows in parts)
        and (constraints.numa is None or any(free & ~node == 0 for node in constraints.numa))
    )
    fewest = 1 if width > 1 and not constraints.over_pairs else count
    some = every or (free & constraints.allowed).bit_count() >= fewest
    return Judgement(every and not found.hazards, some, 1.0 if every else 0.5 * some)
