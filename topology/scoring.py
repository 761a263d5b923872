"""What a placement costs the cluster and gives the pod, as a score from 0 to 10.

*Worth* of a node: how many GPUs' worth of guaranteed placements still fit. For each kind of request
the number of placements that can be promised one after the other, expected over what the node may
hand out, times the request's GPUs, weighted by how often the cluster sees the kind. *Damage* of a
placement: the worth it takes away, expected over its outcomes and the belief. A single GPU taken
from a broken pair costs less than one that breaks a pair.

Scores compare the nodes of one request, as kube-scheduler's own normalised scores do:

=============================================  ======================================
required, guaranteed                           6 … 10, least damage first
required, expected                             0 … 4, least damage first
preferred                                      round(7 · quality), and 0 … 3 by damage
plain                                          0 … 10, least damage first
plain on a node without a usable report        5
preferred where the hardware never can         0
required or preferred without a usable report  0
refused                                        0
=============================================  ======================================

Least damage first: the distinct costs are spread evenly over the range; of equal damage the faster
outcomes win, then the fuller node. *Quality* of a preferred placement is the mean of two shares: of
the outcomes that satisfy the constraints, and of the bandwidth that they reach (best ring, mean
over outcomes) in the best that any offered node's hardware could give the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import comb, isinf

from topology.belief import Availability, Moment, moments
from topology.devices import Mask
from topology.graph import Shape, best_ring, subsets
from topology.kubelet import Admission, Kubelet, admissions
from topology.links import LinkKind
from topology.placement import Assessment, Verdict, satisfies
from topology.pools import Pool, choices, gpus, total
from topology.remembering import remembered
from topology.requests import NO_CONSTRAINTS, Constraints, GpuRequest, Role

MAX_SCORE = 10
UNKNOWN_PLAIN = 5

BRANCHING_GPUS = 8
"""On larger nodes the worth follows one outcome of each placement instead of all."""
MAX_MOMENTS = 16
MAX_RINGS = 128


@dataclass(frozen=True)
class Kind:
    """A kind of request, as far as worth is concerned."""

    count: int
    constraints: Constraints = NO_CONSTRAINTS
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.count, self.constraints)))

    def __hash__(self) -> int:
        return self._hash


Kinds = tuple[Kind, ...]
Mix = tuple[tuple[Kind, float], ...]
"""Kinds of requests and how often each comes; the weights add up to 1."""

_NVLINK = Constraints(link=LinkKind.NVLINK)
PRIOR: Mix = (
    (Kind(1), 0.4),
    (Kind(2, _NVLINK), 0.3),
    (Kind(4, _NVLINK), 0.2),
    (Kind(8), 0.1),
)
"""What a cluster is taken to be asked before it has been seen to be."""


@dataclass(frozen=True, slots=True)
class Merit:
    """What speaks for a node that passes filter.

    ``damage`` is in GPUs of worth; ``ring`` in GB/s, ``ceiling`` the best the hardware could give;
    ``left`` counts the devices left after the placement. ``known`` is false without a report.
    """

    verdict: Verdict
    damage: float = 0.0
    ring: float = 0.0
    ceiling: float = 0.0
    share: float = 0.0
    left: int = 0
    known: bool = True


UNKNOWN = Merit(Verdict.POSSIBLE, known=False)


@dataclass(frozen=True, slots=True)
class Prospect:
    """A merit before kinds are weighed, so that it outlives a change of their weights.

    ``losses`` are the GPUs' worth of each kind that the placement takes away (:func:`losses`).
    """

    merit: Merit
    losses: tuple[float, ...] = ()

    def weighed(self, mix: Mix) -> Merit:
        """The merit under these weights; ``mix`` has the kinds that the prospect was made of."""
        return replace(self.merit, damage=_weighed(self.losses, mix)) if self.losses else self.merit


def prospect(
    kubelet: Kubelet, now: Availability, request: GpuRequest, assessed: Assessment, kinds: Kinds
) -> Prospect:
    """What speaks for placing the request on a node in this state, whatever the weights."""
    share = assessed.share if assessed.verdict is not Verdict.NEVER else 0.0
    unweighed = Merit(
        assessed.verdict,
        0.0,
        _mean_ring(kubelet.shape, assessed.sets),
        _best_ring_of_size(kubelet.shape, request.count),
        1.0 if assessed.verdict.holds else share,
        now.devices_left - request.effective_count,
    )
    return Prospect(unweighed, losses(kubelet, now, request, kinds))


def merit(
    kubelet: Kubelet, now: Availability, request: GpuRequest, assessed: Assessment, mix: Mix
) -> Merit:
    """What speaks for placing the request on a node in this state."""
    return prospect(kubelet, now, request, assessed, kinds_of(mix)).weighed(mix)


def kinds_of(mix: Mix) -> Kinds:
    """The kinds of a mix, in its order."""
    return tuple(kind for kind, _ in mix)


def scores(request: GpuRequest, merits: Iterable[Merit]) -> dict[Merit, int]:
    """The score of each, 0 to 10, in comparison (see the table of this module)."""
    distinct = set(merits)
    known = [m for m in distinct if m.known]
    found = dict.fromkeys(distinct - set(known), UNKNOWN_PLAIN if request.plain else 0)
    if request.plain:
        return found | _spread(known, 0, MAX_SCORE)
    if request.required:
        sure = [m for m in known if m.verdict is Verdict.GUARANTEED]
        rest = [m for m in known if m.verdict is not Verdict.GUARANTEED]
        return found | _spread(sure, 6, MAX_SCORE) | _spread(rest, 0, 4)
    ceiling = max((m.ceiling for m in known), default=0.0)
    levels: dict[int, list[Merit]] = {}
    for m in known:
        reached = m.ring / ceiling if ceiling else m.share
        quality = 0.0 if m.verdict is Verdict.NEVER else (m.share + reached) / 2
        levels.setdefault(round(7 * quality), []).append(m)
    for base, group in levels.items():
        never = all(m.verdict is Verdict.NEVER for m in group)
        found |= _spread(group, base, base if never else base + 3)
    return found


def _spread(merits: list[Merit], low: int, high: int) -> dict[Merit, int]:
    """Scores from ``high`` for the least cost down to ``low``; all of one cost get ``high``."""

    def cost(m: Merit) -> tuple[float, float, int]:
        return (round(m.damage, 6), -round(m.ring, 3), m.left)

    costs = sorted({cost(m) for m in merits})
    last = max(1, len(costs) - 1)
    rank = {c: round(high - (high - low) * i / last) for i, c in enumerate(costs)}
    return {m: rank[cost(m)] for m in merits}


def damage(kubelet: Kubelet, now: Availability, request: GpuRequest, mix: Mix) -> float:
    """The worth that a placement is expected to take away, in GPUs."""
    return _weighed(losses(kubelet, now, request, kinds_of(mix)), mix)


def _weighed(lost: tuple[float, ...], mix: Mix) -> float:
    return sum(weight * loss for (_, weight), loss in zip(mix, lost, strict=True))


@remembered
def losses(
    kubelet: Kubelet, now: Availability, request: GpuRequest, kinds: Kinds
) -> tuple[float, ...]:
    """How many GPUs' worth of each kind a placement is expected to take away, unweighed."""
    belief = moments(kubelet, now.bare(endings=False)) or (Moment(now.free),)
    belief = tuple(m for m in belief if total(m.free, kubelet.width) >= request.effective_count)
    step = -(-len(belief) // MAX_MOMENTS) or 1
    lost = [_losses_at(kubelet, m.free, request, kinds) for m in belief[::step]]
    return tuple(sum(of_kind) / len(lost) for of_kind in zip(*lost, strict=True)) or (0.0,) * len(
        kinds
    )


@remembered
def _losses_at(
    kubelet: Kubelet, free: Pool, request: GpuRequest, kinds: Kinds
) -> tuple[float, ...]:
    ways = _ways(kubelet, free, request)
    if not ways:
        return (0.0,) * len(kinds)
    found = []
    for kind in kinds:
        after = sum(promises(kubelet, free - way.taken, kind) for way in ways) / len(ways)
        found.append(kind.count * (promises(kubelet, free, kind) - after))
    return tuple(found)


def _ways(kubelet: Kubelet, free: Pool, request: GpuRequest) -> tuple[Admission, ...]:
    ways = admissions(kubelet, free, request.counts, alone=request.alone).ways
    if ways is None:
        first = next(choices(free, request.effective_count, kubelet.width))
        return (Admission(first, first),)
    return ways


def worth(kubelet: Kubelet, free: Pool, mix: Mix) -> float:
    """GPUs' worth of guaranteed placements that still fit, weighted by how often each kind comes.

    >>> from topology.machines import machine
    >>> from topology.graph import AllocatorFacts
    >>> dgx = machine("dgx1-v100").topology("n").shape
    >>> node = Kubelet(dgx, AllocatorFacts("best-effort"))
    >>> round(worth(node, 0b11111111, PRIOR), 2), round(worth(node, 0b1111, PRIOR), 2)
    (8.0, 3.6)
    """
    return sum(weight * kind.count * promises(kubelet, free, kind) for kind, weight in mix)


@remembered
def promises(kubelet: Kubelet, free: Pool, kind: Kind) -> float:
    """How many placements of one kind can be promised one after the other, expected."""
    if total(free, kubelet.width) < kind.count:
        return 0.0
    if kind.constraints == NO_CONSTRAINTS and kind.count == 1:
        return float(total(free, kubelet.width))
    found = admissions(kubelet, free, ((Role.APP, kind.count),))
    ways = found.ways
    if found.hazards or not ways:
        return 0.0
    shape, width = kubelet.shape, kubelet.width
    if kind.constraints != NO_CONSTRAINTS and not all(
        satisfies(shape, kind.constraints, gpus(way.shown, width)) for way in ways
    ):
        return 0.0
    if shape.size > BRANCHING_GPUS or width > 1:
        ways = ways[:1]
    return 1.0 + sum(promises(kubelet, free - way.taken, kind) for way in ways) / len(ways)


def _mean_ring(shape: Shape, sets: tuple[Mask, ...] | None) -> float:
    if not sets:
        return 0.0
    step = -(-len(sets) // MAX_RINGS)
    rings = [_ring(shape, found) for found in sets[::step]]
    return sum(rings) / len(rings)


@remembered
def _ring(shape: Shape, mask: Mask) -> float:
    carried = best_ring(shape, mask)
    return 0.0 if isinf(carried) else float(carried)


@remembered
def _best_ring_of_size(shape: Shape, count: int) -> float:
    """The best ring through any ``count`` GPUs of the hardware, or a bound where they are many."""
    if not 2 <= count <= shape.size:
        return 0.0
    if comb(shape.size, count) > MAX_RINGS:
        return max((float(link.bandwidth) for link in shape.distinct_links()), default=0.0)
    return max(_ring(shape, mask) for mask in subsets(shape.all_gpus, count))
