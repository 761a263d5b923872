"""The score of a placement, from 0 to 10: its cost to the cluster and its quality for the pod.

The *guaranteed capacity* of a node is the number of GPUs for which guaranteed placements still fit.
For each class of requests it is the expected number of placements that can be guaranteed one after
the other, times the GPUs of the request. The expectation is over all sets that the node may hand
out. The classes are weighted by how often the cluster sees them. The *fragmentation cost* of
a placement is the guaranteed capacity that it takes away, expected over its outcomes and the
possible free states. A single GPU of a broken pair costs less than one that breaks a pair.

Scores compare the nodes of one request, as kube-scheduler's own normalised scores do.
:data:`GUARANTEED` and the other constants hold these magnitudes:

=============================================  ======================================
required, guaranteed                           6 … 10, lowest cost first
required, expected                             0 … 4, lowest cost first
preferred                                      round(7 · quality), and 0 … 3 by cost
plain                                          0 … 10, lowest cost first
the same, where other kubelets may refuse it   4 … 10, lowest cost first
the same, where this kubelet may refuse it     0 … 3, lowest cost first; 0 … 10 if all may
plain on a node without a usable report        5
preferred where the hardware never can         0
required or preferred without a usable report  0
refused                                        0
=============================================  ======================================

"Lowest cost first" means that the distinct costs are spread evenly over the range. At equal cost
the faster outcomes win, and then the fuller node. All MIG instances count alike. A placement of MIG
instances costs the number of unused GPUs on which it begins (:func:`opened_gpus`). If groups
request racks, the score of a pod without a group depends first on the rack that it would break into
(:attr:`Score.rack`), and then on the cost.

The *quality* of a preferred placement is the mean of two shares. The first is the share of the
outcomes that satisfy the constraints. The second is the bandwidth that the outcomes reach (best
ring, mean over outcomes), as a share of the best bandwidth that the hardware of any offered node
could give the request. The quality is halved if the kubelet may refuse the pod. A sick GPU that the
pod may get counts as such a refusal.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb, isinf
from typing import NamedTuple

from topology.core.admission import DeviceManager, ProviderAnswers, admissions, provider_answers
from topology.core.availability import Availability
from topology.core.budget import LARGE, SCORE_STEPS
from topology.core.devices import Mask, positions
from topology.core.devicesets import DeviceSet, choices, gpus, only, total
from topology.core.guaranteedcapacity import (
    RequestClass,
    follows_one_by_one,
    in_turn,
    mean_guaranteed_placements,
)
from topology.core.links import GBps, LinkKind
from topology.core.memo import hashed_once, memoized
from topology.core.patterns import find_ring, have_rings, subset_masks
from topology.core.placement import Assessment, Verdict
from topology.core.placement.constraints import expected_gpus
from topology.core.possiblestates import FreeState, possible_states
from topology.core.requests import Constraints, Counts, GpuRequest, device_count
from topology.core.shape import Shape, wide_rows


class Span(NamedTuple):
    """The range of scores of some nodes. The highest cost gets ``low``, the lowest ``high``.

    >>> Span(6, 10).middle
    8
    """

    low: int
    high: int

    @property
    def middle(self) -> int:
        """The score of a node whose cost takes too many steps to work out."""
        return (self.low + self.high) // 2


# The magnitudes of all scores, in the order of the table at the top.
MAX_SCORE = 10
GUARANTEED = Span(6, MAX_SCORE)
EXPECTED = Span(0, 4)
# The score of full quality for a preferred pod. The next constant is what the cost adds.
PREFERRED_QUALITY = 7
PREFERRED_COST = Span(0, 3)
PLAIN = Span(0, MAX_SCORE)
# The ranges for plain pods if some kubelets may refuse them: ``PLAIN_RISKY`` on the nodes of these
# kubelets, ``PLAIN_SURE`` on the others.
PLAIN_SURE = Span(4, MAX_SCORE)
PLAIN_RISKY = Span(0, 3)
PLAIN_WITHOUT_REPORT = 5

# Beyond these an answer is sampled or bounded.
MAX_FREE_STATES = 16  # if there are more possible states, the cost is worked out for a sample
# The most sets that are examined for the mean ring, and for the best ring of the hardware.
MAX_RINGS = 128
MAX_BANDWIDTHS = 8  # in shapes with more kinds of hops, only bounds of rings are worked out


RequestClasses = tuple[RequestClass, ...]
# Classes of requests, each with its fraction of all requests. The fractions add up to 1.
RequestMix = tuple[tuple[RequestClass, float], ...]

_NVLINK = Constraints(link=LinkKind.NVLINK)
# The request mix that is assumed until the cluster's own requests have been seen.
PRIOR: RequestMix = (
    (RequestClass(1), 0.4),
    (RequestClass(2, _NVLINK), 0.3),
    (RequestClass(4, _NVLINK), 0.2),
    (RequestClass(8), 0.1),
)


@hashed_once
@dataclass(frozen=True)
class Score:
    """The score of a node that passes filter for one request, before scores are normalized."""

    verdict: Verdict
    fragmentation_cost: float = 0.0  # in GPUs of guaranteed capacity
    ring: float = 0.0  # GB/s of the best ring, mean over the outcomes
    ceiling: float = 0.0  # GB/s of the best ring that the hardware could give
    passing_fraction: float = 0.0  # the part of the outcomes that satisfies the constraints
    devices_left: int = 0  # after the placement
    known: bool = True  # false without a usable report
    # False if the cost takes too many steps to work out. The node then gets a score in the middle.
    measured: bool = True
    # Whether the kubelet may refuse the pod, or give it a sick GPU.
    may_refuse: bool = False
    # The level of the rack that a pod without need of a rack would break into here. It is 0 on a
    # node in no rack. On other nodes it is higher if more of the rack is free.
    rack: int = 0


UNKNOWN = Score(Verdict.NOT_GUARANTEED, known=False)


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """A node's score before the request classes are weighted.

    It stays valid when the weights change.
    """

    score: Score
    # The guaranteed capacity of each class, in GPUs, that the placement takes away.
    losses: tuple[float, ...] = ()

    def weighed(self, mix: RequestMix) -> Score:
        """Return the score under the weights of ``mix``, whose classes are those of ``losses``."""
        if not self.losses:
            return self.score
        cost = sum(share * loss for (_, share), loss in zip(mix, self.losses, strict=True))
        return replace(self.score, fragmentation_cost=cost)


def placement_cost(
    kubelet: DeviceManager,
    availability: Availability,
    request: GpuRequest,
    assessed: Assessment,
    classes: RequestClasses,
) -> PlacementCost:
    """Return the cost and quality of a placement of the request on a node, before weighting.

    The cost is of ``classes``, in their order.
    """
    fraction = assessed.passing_fraction if assessed.verdict is not Verdict.NEVER else 0.0
    unweighed = Score(
        assessed.verdict,
        0.0,
        _mean_ring(kubelet.shape, assessed.sets),
        _best_ring_of_size(kubelet.shape, request.count),
        1.0 if assessed.verdict.holds else fraction,
        availability.devices_left - request.effective_count,
        may_refuse=bool(assessed.hazards) or _may_be_sick(availability, assessed),
    )
    if kubelet.shape.of_mig:
        return PlacementCost(
            replace(unweighed, fragmentation_cost=opened_gpus(kubelet, availability, request))
        )
    lost = losses(kubelet, availability, request, classes)
    if lost is None:
        return PlacementCost(replace(unweighed, measured=False))
    return PlacementCost(unweighed, lost)


def _may_be_sick(availability: Availability, assessed: Assessment) -> bool:
    """Check whether one of the GPUs that the pod may get is sick."""
    if not availability.sick:
        return False
    sets = assessed.sets
    return (
        bool(availability.sick & gpus(availability.free, availability.width))
        if sets is None
        else any(mask & availability.sick for mask in sets)
    )


def classes_of(mix: RequestMix) -> RequestClasses:
    """Return the classes of a mix, in its order."""
    return tuple(wanted for wanted, _ in mix)


def normalized_scores(request: GpuRequest, node_scores: Iterable[Score]) -> dict[Score, int]:
    """Return the normalized score of each node score, from 0 to 10 (see the table of this module).

    Normalized scores depend on the other nodes' scores.
    """
    distinct = set(node_scores)
    known = [m for m in distinct if m.known]
    others = dict.fromkeys(distinct - set(known), PLAIN_WITHOUT_REPORT if request.plain else 0)
    if request.plain:  # a node whose kubelet may refuse the pod comes after all the others
        sure = [m for m in known if not m.may_refuse]
        risky = [m for m in known if m.may_refuse]
        if not sure or not risky:
            return others | _spread(known, PLAIN)
        return others | _spread(sure, PLAIN_SURE) | _spread(risky, PLAIN_RISKY)
    if request.required:
        sure = [m for m in known if m.verdict is Verdict.GUARANTEED]
        rest = [m for m in known if m.verdict is not Verdict.GUARANTEED]
        return others | _spread(sure, GUARANTEED) | _spread(rest, EXPECTED)
    return others | _preferred_scores(known)


def _preferred_scores(known: list[Score]) -> dict[Score, int]:
    """Return the scores of a preferred pod's nodes: by quality, then by cost."""
    ceiling = max((m.ceiling for m in known), default=0.0)
    rated = {m: 0 for m in known if m.verdict is Verdict.NEVER}
    levels = defaultdict[int, list[Score]](list)
    for m in known:
        if m not in rated:
            reached = m.ring / ceiling if ceiling else m.passing_fraction
            quality = (m.passing_fraction + reached) / (4 if m.may_refuse else 2)
            levels[round(PREFERRED_QUALITY * quality)].append(m)
    low, high = PREFERRED_COST
    for base, group in levels.items():
        rated |= _spread(group, Span(base + low, base + high))
    return rated


def _spread(node_scores: list[Score], span: Span) -> dict[Score, int]:
    """Spread the nodes over the span, from the lowest cost to the highest.

    The lowest cost gets the highest score. If all costs are equal, all nodes get the highest score.
    A node whose cost is not measured gets the score in the middle.
    """

    def cost(m: Score) -> tuple[int, float, float, int]:
        return (m.rack, round(m.fragmentation_cost, 6), -round(m.ring, 3), m.devices_left)

    measured = [m for m in node_scores if m.measured]
    costs = sorted({cost(m) for m in measured})
    last = max(1, len(costs) - 1)
    width = span.high - span.low
    rank = {c: round(span.high - width * i / last) for i, c in enumerate(costs)}
    return {m: rank[cost(m)] if m.measured else span.middle for m in node_scores}


@memoized
def opened_gpus(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> float:
    """Return the expected number of unused GPUs on which a placement would begin.

    This is a cost, because an unused GPU can be cut into other instances, or be a whole GPU again.
    """
    shape, width = kubelet.shape, kubelet.width
    unused = tuple(
        gpu
        for gpu in shape.by_gpu
        if not gpu & availability.beside
        and total(only(availability.free, gpu, width), width) == kubelet.devices_on(gpu)
    )
    key = availability.outcome_key(endings=False, exclusive=request.exclusive)
    admitted = admissions(kubelet, key.free, request.counts)
    if kubelet.monotone or not admitted.sets:
        return expected_gpus(shape, availability.free, request.effective_count, width, unused)
    masks = [gpus(pool, width) for pool in admitted.sets]
    return sum(mask & gpu != 0 for mask in masks for gpu in unused) / len(masks)


def losses(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, classes: RequestClasses
) -> tuple[float, ...] | None:
    """Return the guaranteed capacity of each class that a placement takes away, as expected.

    The capacity is in GPUs. The result is None if it takes too many steps to work out.
    """
    known = follows_one_by_one(kubelet) and availability.settled
    if not known or request.has_init or request.exclusive:
        return _expected_losses(kubelet, availability, request, classes)
    devices = kubelet.allocator.in_turn(availability.free)
    left = devices[request.effective_count :]
    return tuple(
        float(each.count * (in_turn(kubelet, devices, each) - in_turn(kubelet, left, each)))
        for each in classes
    )


@memoized
def _expected_losses(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, classes: RequestClasses
) -> tuple[float, ...] | None:
    key = availability.outcome_key(endings=False, exclusive=request.exclusive)
    possible = possible_states(kubelet, key).free_states or (FreeState(availability.free),)
    answers = provider_answers(
        kubelet,
        key.numa_free_for(kubelet, endings=False),
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
    )
    enough = [s for s in possible if total(s.free, kubelet.width) >= request.effective_count]
    step = -(-len(enough) // MAX_FREE_STATES) or 1
    lost, steps = [], answers.steps
    for state in enough[::step]:
        at_state, cost = _losses_at(kubelet, state.free, request.counts, answers, classes)
        steps += cost
        if at_state is None or steps > SCORE_STEPS:
            return None
        lost.append(at_state)
    return tuple(sum(of_class) / len(lost) for of_class in zip(*lost, strict=True)) or (0.0,) * len(
        classes
    )


@memoized
def _losses_at(
    kubelet: DeviceManager,
    free: DeviceSet,
    counts: Counts,
    answers: ProviderAnswers,
    classes: RequestClasses,
) -> tuple[tuple[float, ...] | None, int]:
    taken, steps = _taken(kubelet, free, counts, answers)
    if not taken:
        return (0.0,) * len(classes), steps
    left = [free - way for way in taken]
    lost = []
    for wanted in classes:
        before, cost = mean_guaranteed_placements(kubelet, (free,), wanted)
        after, more = mean_guaranteed_placements(kubelet, left, wanted)
        steps += cost + more
        if before is None or after is None or steps > SCORE_STEPS:
            return None, steps
        lost.append(wanted.count * (before - after))
    return tuple(lost), steps


def _taken(
    kubelet: DeviceManager, free: DeviceSet, counts: Counts, answers: ProviderAnswers
) -> tuple[Sequence[DeviceSet], int]:
    """Return the device set that a pod may hold in the end, for each way of admission.

    The second value is the number of steps that it took.
    """
    admitted = admissions(kubelet, free, counts, answers)
    if admitted.sets is None:
        return (next(choices(free, device_count(counts), kubelet.width)),), admitted.steps
    if admitted.several is None:
        return admitted.sets, admitted.steps
    return [way.taken for way in admitted.several], admitted.steps


def best_ring(shape: Shape, mask: Mask) -> GBps:
    """Return the bandwidth of the best ring through ``mask`` in GB/s, both ways.

    A ring is as fast as its weakest hop. The result is infinite for one GPU, and 0 without a ring.
    A binary search over the distinct bandwidths finds the largest threshold at which the pairs
    still form a ring. It calls :func:`find_ring` at each step. If that gives up, the result is
    a lower bound.
    """
    if mask.bit_count() < 2:
        return GBps(float("inf"))
    values = _bandwidths(shape)
    good = bisect_left(values, True, key=lambda v: not find_ring(wide_rows(shape, v), mask))
    return values[good - 1] if good else GBps(0.0)


def _mean_ring(shape: Shape, sets: tuple[Mask, ...] | None) -> float:
    if not sets:
        return 0.0
    step = -(-len(sets) // MAX_RINGS)
    rings = [_ring(shape, mask) for mask in sets[::step]]
    return sum(rings) / len(rings)


@memoized
def _ring(shape: Shape, mask: Mask) -> float:
    """Return the bandwidth of the best ring through ``mask`` in GB/s; 0 for one GPU.

    It is an upper bound on nodes of more than 16 GPUs or with many kinds of links.
    """
    if _finds_rings(shape):
        carried = best_ring(shape, mask)
        return 0.0 if isinf(carried) else float(carried)
    members = positions(mask)
    links = [[shape.links[p][q] for q in members if q != p] for p in members]
    hops = [sorted((k.bandwidth if k else 0.0 for k in row), reverse=True) for row in links]
    # Each GPU has two hops in a ring, or one hop in a ring of two. A single GPU has none.
    return float(min(row[:2][-1] for row in hops)) if len(members) > 1 else 0.0


def _finds_rings(shape: Shape) -> bool:
    """Check whether the best rings of a shape are worked out exactly, and not only bounded."""
    return shape.size <= LARGE and len(_bandwidths(shape)) <= MAX_BANDWIDTHS


@memoized
def _bandwidths(shape: Shape) -> tuple[GBps, ...]:
    """Return the distinct bandwidths of the hops of this shape, ascending."""
    return tuple(sorted({link.bandwidth for link in shape.distinct_links}))


@memoized
def _best_ring_of_size(shape: Shape, count: int) -> float:
    """Return the bandwidth of the best ring through any ``count`` GPUs of the hardware.

    It is an upper bound if there are more than :data:`MAX_RINGS` sets of this size.
    """
    if not 2 <= count <= shape.size:
        return 0.0
    values = _bandwidths(shape)
    if comb(shape.size, count) > MAX_RINGS:
        return max(values, default=0.0)
    masks = subset_masks(shape.all_gpus, count)
    if not _finds_rings(shape):
        return max(_ring(shape, mask) for mask in masks.tolist())
    wide = (v for v in reversed(values) if have_rings(wide_rows(shape, v), masks)[0].any())
    return next(wide, 0.0)
