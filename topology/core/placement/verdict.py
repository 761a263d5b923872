"""The verdict: can this node keep this request's constraints, whatever it hands out?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from math import comb

import numpy as np

from topology.core.admission import AFFINITY, TOO_MANY_NODES, Kubelet, admissions
from topology.core.admission import TOO_FEW as TOO_FEW_DEVICES
from topology.core.allocators import best_effort
from topology.core.belief import Availability, FreeState, Pending, belief, opaque, pending_order
from topology.core.budget import CHECK_STEPS, LARGE, SPENT, most_sets, outlook_steps
from topology.core.devices import Mask, positions
from topology.core.graph import UNKNOWN, Shape, numa_nodes, wide_rows
from topology.core.patterns import (
    Flags,
    Masks,
    Rows,
    are_cliques,
    are_connected,
    has_ring,
    have_rings,
    is_clique,
    is_connected,
    subset_masks,
)
from topology.core.pools import Pool, gpu_masks, gpus, total
from topology.core.remembering import remembered
from topology.core.requests import Constraints, Counts, GpuRequest, Pattern, Role, memory_text


class Verdict(Enum):
    """How sure it is that a node keeps a request's constraints, best first."""

    GUARANTEED = "guaranteed"
    """Every outcome under every mask of the belief satisfies it, also if running pods end."""
    EXPECTED = "expected"
    """The same, unless a running GPU pod ends in the moment before admission."""
    POSSIBLE = "possible"
    """Some outcome satisfies it."""
    IMPOSSIBLE = "impossible"
    """No outcome can, now; the hardware could."""
    NEVER = "never"
    """The hardware itself cannot."""

    @property
    def holds(self) -> bool:
        """Whether it is a promise."""
        return self in (Verdict.GUARANTEED, Verdict.EXPECTED)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a node is refused. The text depends on the request alone and never varies with time.

    ``resolvable`` says whether evicting pods could help.
    """

    reason: str
    resolvable: bool


@dataclass(frozen=True, slots=True)
class Assessment:
    """A verdict with what it rests on.

    ``sets`` are the GPUs that the running pod may have, over the whole belief, ascending, or None
    where they are too many to list; ``share`` is the part of the outcomes that satisfies the
    constraints; ``exact`` is false where some of them may be impossible. ``fits`` says whether
    enough devices are left at all. ``rejection`` is why a required pod is refused here; None where
    the verdict holds. ``hazards`` names the refusals that the node may answer with.
    """

    verdict: Verdict
    fits: bool
    rejection: Rejection | None = None
    sets: tuple[Mask, ...] | None = ()
    share: float = 0.0
    hazards: tuple[str, ...] = ()
    exact: bool = True


NOT_SERVED = Rejection("node does not serve the GPU resource asked for", resolvable=False)
TOO_FEW = Rejection("node has fewer GPUs than asked for", resolvable=False)
BUSY = Rejection("not enough free GPUs", resolvable=True)
SPLIT = Rejection("GPUs are split by MIG, which carries no topology", resolvable=False)
IN_PROGRESS = Rejection("another GPU placement on the node is in progress", resolvable=True)
NO_REPORT = Rejection("no topology report", resolvable=False)
STALE = Rejection("topology report is stale", resolvable=False)
NOT_READY = Rejection("topology report is not Ready", resolvable=False)
UNASKED = Rejection(
    "not guaranteed: the node's Topology Manager policy is unknown", resolvable=True
)
TOO_MUCH = Rejection("not guaranteed: too much to work out for this node", resolvable=True)
DRA_ONLY = Rejection("GPUs are advertised through DRA only", resolvable=False)
UNUSABLE = Rejection("topology record unusable", resolvable=False)


@dataclass(frozen=True, slots=True)
class _Test:
    """Constraints compiled for a shape: a set satisfies them if it passes every part."""

    allowed: Mask
    numa: tuple[Mask, ...] | None
    linked: Rows | None
    pattern: Pattern
    wide: Rows | None
    over_pairs: bool
    judged: dict[tuple[Mask, int], bool] | None
    """On a small shape the answers of :meth:`passes`: there are few sets, asked again and again."""

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes."""
        return 1000 if self.judged is None else 30_000

    def passes(self, mask: Mask, count: int) -> bool:
        """Whether a set of GPUs that holds ``count`` devices satisfies the constraints."""
        if self.judged is None:
            return self._passes(mask, count)
        found = self.judged.get((mask, count))
        if found is None:
            found = self.judged[mask, count] = self._passes(mask, count)
        return found

    def _passes(self, mask: Mask, count: int) -> bool:
        if mask & ~self.allowed:
            return False
        if count == 1:
            return True
        if self.over_pairs and mask.bit_count() < count:
            return False  # two shares of one GPU are no pair
        if self.numa is not None and not any(mask & ~node == 0 for node in self.numa):
            return False
        if self.linked is not None and not _PATTERNS[self.pattern](self.linked, mask):
            return False
        return self.wide is None or has_ring(self.wide, mask)

    def passing(self, masks: Masks, count: int) -> tuple[Flags, bool]:
        """:meth:`passes` of each mask, and whether all answers are sure.

        Where a search for a ring was given up a set does not pass, and the answer is not sure.
        """
        good = masks & np.uint64(~self.allowed & _ALL) == 0
        if count == 1:
            return good, True
        if self.over_pairs:
            good &= np.bitwise_count(masks) >= count
        if self.numa is not None:
            good &= inside(self.numa, masks)
        sure = True
        if self.linked is not None and self.pattern is Pattern.PAIRWISE:
            good[good] = are_cliques(self.linked, masks[good])
        elif self.linked is not None and self.pattern is Pattern.CONNECTED:
            good[good] = are_connected(self.linked, masks[good])
        rings = [self.linked] if self.pattern is Pattern.RING else []
        for rows in (*rings, self.wide):
            if rows is not None:
                asked = good.copy()
                good[asked], known = have_rings(rows, masks[asked])
                sure &= known
        return good, sure


_ALL = (1 << 64) - 1


SMALL = 8
"""GPUs; of so few there are at most 256 sets."""

FEW = 32
"""Sets that are judged one by one; more are judged together, which takes a while to set up."""


def inside(nodes: tuple[Mask, ...], masks: Masks) -> Flags:
    """For each mask, whether its GPUs are all on one of the NUMA nodes."""
    found = np.zeros(len(masks), dtype=np.bool_)
    for node in nodes:
        found |= masks & np.uint64(~node & _ALL) == 0
    return found


_PATTERNS = {
    Pattern.PAIRWISE: is_clique,
    Pattern.RING: has_ring,
    Pattern.CONNECTED: is_connected,
}


def satisfies(shape: Shape, constraints: Constraints, mask: Mask, *, sick: Mask = 0) -> bool:
    """Whether the GPUs of ``mask`` meet every constraint. A sick GPU meets none."""
    return _test(shape, constraints, sick).passes(mask, mask.bit_count())


def test_of(shape: Shape, constraints: Constraints) -> _Test:
    """The constraints compiled for a shape, all of its GPUs well."""
    return _test(shape, constraints, 0)


@remembered
def assess(kubelet: Kubelet, now: Availability, request: GpuRequest) -> Assessment:
    """The verdict of a node, in this moment, for this request.

    Pure, and remembered by its arguments: a request over thousands of nodes costs one evaluation
    per distinct state.
    """
    shape = kubelet.shape
    if request.effective_count > shape.size * kubelet.replicas:
        return Assessment(Verdict.NEVER, fits=False, rejection=TOO_FEW)
    fits = request.effective_count <= now.devices_left
    if request.plain:
        return _assess_plain(kubelet, now, request, fits)
    hardware = _hardware_rejection(shape, request, kubelet.replicas > 1)
    if hardware is not None:
        return Assessment(Verdict.NEVER, fits=fits, rejection=hardware)
    if not fits:
        return Assessment(Verdict.IMPOSSIBLE, fits=False, rejection=BUSY)
    test = _test(shape, request.constraints, now.sick)
    outlook = _outlook(
        kubelet, now.outcome_key(endings=False), request.counts, request.only_gpu_plugin
    )
    every, some, share, sure = _judge(kubelet, outlook, test)
    verdict, rejection = Verdict.POSSIBLE, None
    if not every:
        verdict = Verdict.POSSIBLE if some else Verdict.IMPOSSIBLE
        if not sure:
            return Assessment(
                verdict, True, TOO_MUCH, outlook.gpus(kubelet), share, _spent(outlook.hazards)
            )
        unknown = AFFINITY in outlook.hazards and kubelet.facts.topology_manager_policy == UNKNOWN
        rejection = UNASKED if unknown and some else _weak_rejection(request, outlook, some, share)
    else:
        later = now.outcome_key(endings=True)
        after = _outlook(kubelet, later, request.counts, request.only_gpu_plugin, endings=True)
        steady = _judge(kubelet, after, test)[0]
        verdict = Verdict.GUARANTEED if steady else Verdict.EXPECTED
    return Assessment(
        verdict, True, rejection, outlook.gpus(kubelet), share, outlook.hazards, outlook.exact
    )


def _weak_rejection(request: GpuRequest, outlook: _Outlook, some: bool, share: float) -> Rejection:
    if SPENT in outlook.hazards or TOO_MANY_NODES in outlook.hazards:
        return TOO_MUCH
    if outlook.hazards and (share == 1 or not outlook.sets):
        return Rejection("not guaranteed: the node's kubelet may refuse the pod", True)
    if not some:
        return Rejection(f"no {request.count} free GPUs with {request.constraints.text}", True)
    words = f"not guaranteed: the node may hand out GPUs without {request.constraints.text}"
    return Rejection(words, True)


@remembered
def endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator none can: what is left after it is a part of what the promise was
    given over. A pod in the middle of its admission is past that.
    """
    if kubelet.monotone or request.effective_count == 0:
        return False
    newcomer = Pending(request.counts, only_gpu_plugin=request.only_gpu_plugin)
    steps = 0
    for i, pod in enumerate(now.pending):
        if pod.promised == Constraints() or pod.started:
            continue
        others = pending_order((*now.pending[:i], *now.pending[i + 1 :], newcomer))
        kept, cost = _keeps(kubelet, replace(now, pending=others), pod)
        steps += cost + len(others)
        if not kept or steps > CHECK_STEPS:
            return True
    return False


def keeps(kubelet: Kubelet, now: Availability, pod: Pending) -> bool:
    """Whether a promise holds in every moment of the belief; ``now`` is without the pod itself.

    What is too much to work out does not hold.
    """
    return _keeps(kubelet, now, pod)[0]


def _keeps(kubelet: Kubelet, now: Availability, pod: Pending) -> tuple[bool, int]:
    test = _test(kubelet.shape, pod.promised, now.sick)
    bare = _with_departed_alive(now).outcome_key(endings=pod.survives_endings)
    outlook = _outlook(kubelet, bare, pod.counts, pod.only_gpu_plugin, endings=pod.survives_endings)
    return _judge(kubelet, outlook, test)[0], outlook.steps


def _with_departed_alive(now: Availability) -> Availability:
    """The moment for a pod that is unreported: what has ended since may have been there then."""
    if not any(pod.departed for pod in now.pending):
        return now
    pods = (replace(p, departed=False, ending=True) if p.departed else p for p in now.pending)
    return replace(now, pending=pending_order(pods))


def predicted(
    kubelet: Kubelet, now: Availability, pod: Pending
) -> tuple[tuple[Pool, ...] | None, tuple[str, ...]]:
    """Every set that an unreported pod may be seen with, and the refusals it may meet.

    ``now`` is the moment before the report, without the pod itself; running pods may have ended
    since. The sets include what the pod had ``shown`` already; None is anything.
    """
    kubelet = opaque(kubelet) if pod.opaque else kubelet
    bare = _with_departed_alive(now).outcome_key(endings=True)
    outlook = _outlook(kubelet, bare, pod.counts, pod.only_gpu_plugin, endings=True)
    if outlook.sets is None:
        return None, outlook.hazards
    return tuple(s + pod.shown for s in outlook.sets), outlook.hazards


def _assess_plain(
    kubelet: Kubelet, now: Availability, request: GpuRequest, fits: bool
) -> Assessment:
    if not fits:
        return Assessment(Verdict.IMPOSSIBLE, fits=False, rejection=BUSY)
    outlook = _outlook(
        kubelet, now.outcome_key(endings=False), request.counts, request.only_gpu_plugin
    )
    shown = Verdict.POSSIBLE if outlook.hazards else Verdict.GUARANTEED
    sets = outlook.gpus(kubelet)
    return Assessment(shown, True, None, sets, 1.0, outlook.hazards, outlook.exact)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """Everything that may be handed out over a belief, as one.

    ``sets`` is None where they are too many to list: then any ``count`` of ``free`` may come.
    """

    sets: tuple[Pool, ...] | None
    hazards: tuple[str, ...]
    exact: bool
    free: Pool
    count: int
    steps: int = 0

    def gpus(self, kubelet: Kubelet) -> tuple[Mask, ...] | None:
        if self.sets is None or kubelet.width == 1:
            return self.sets
        return tuple(sorted({gpus(found, kubelet.width) for found in self.sets}))


@remembered
def _outlook(
    kubelet: Kubelet,
    now: Availability,
    counts: Counts,
    only_gpu_plugin: bool,
    *,
    endings: bool = False,
) -> _Outlook:
    one = len(counts) == 1
    count = sum(n for role, n in counts if role is not Role.INIT)
    believed = belief(kubelet, now, endings=endings, one_container=one)
    widest = now.widest(endings=endings)
    if believed.free_states is None:
        return _Outlook(None, (SPENT,), False, widest, count, believed.steps)
    found: _Found | None = None
    if one and counts[0][0] is not Role.INIT and kubelet.whole_best_effort:
        found = _all_at_once(kubelet, believed.free_states, count)
    else:
        found = _one_by_one(kubelet, believed.free_states, counts, only_gpu_plugin)
    sets, hazards, exact, steps = found
    steps += believed.steps
    return _Outlook(sets, hazards, exact and sets is not None, widest, count, steps)


_Found = tuple[tuple[Pool, ...] | None, tuple[str, ...], bool, int]
"""Sets, hazards, whether they are exact, and the steps that it took."""


def _one_by_one(
    kubelet: Kubelet, believed: tuple[FreeState, ...], counts: Counts, only_gpu_plugin: bool
) -> _Found:
    hazards: set[str] = set()
    sets: set[Pool] | None = set()
    exact, steps, budget = True, 0, outlook_steps(kubelet.shape.size)
    for done, moment in enumerate(believed, 1):
        found = admissions(
            kubelet, moment.free, counts, only_gpu_plugin=only_gpu_plugin, releasing=moment.later
        )
        hazards.update(found.hazards)
        exact &= found.exact
        steps += found.steps
        if steps > budget or steps * len(believed) > 2 * budget * done:
            # At this pace it would be spent twice over: given up at once.
            return None, _spent(tuple(hazards)), False, steps
        if found.sets is None:
            sets = None
        elif sets is not None:
            sets.update(found.sets)
            if len(sets) > most_sets(kubelet.shape.size, kubelet.width):
                sets = None
    listed = None if sets is None else tuple(sorted(sets))
    return listed, tuple(sorted(hazards)), exact, steps


def _all_at_once(kubelet: Kubelet, believed: tuple[FreeState, ...], count: int) -> _Found:
    """The same for one container under ``best-effort``, where pools are asked about together."""
    shape = kubelet.shape
    pools = np.array([moment.free for moment in believed], dtype=np.int32)
    hazards: set[str] = set()
    came = np.zeros(1 << shape.size, dtype=np.bool_)
    exact = True
    sizes = np.bitwise_count(pools)
    if (sizes < count).any():
        hazards.add(TOO_FEW_DEVICES)
    if count > 1:
        torn = best_effort.unequal(shape, pools) & (sizes >= count)
        if torn.any():
            hazards.add(best_effort.UNEQUAL)
            pools, sizes = pools[~torn], sizes[~torn]
    for size in sorted({n for n in sizes.tolist() if n >= count}):
        for found in best_effort.answers_of(shape, pools[sizes == size], count):
            came[found.sets[found.chosen]] = True
            hazards.update(found.hazards)
            exact &= found.exact
    listed = tuple(np.flatnonzero(came).tolist())
    return listed, tuple(sorted(hazards)), exact, 20 + len(believed) // 8


def _spent(hazards: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*hazards, SPENT}))


def _judge(kubelet: Kubelet, outlook: _Outlook, test: _Test) -> tuple[bool, bool, float, bool]:
    """Whether every outcome passes, whether some does, the share that does; and if that is sure.

    A refusal is an outcome too. Sets that are not listed are judged soundly: all of them pass only
    if the widest pool is one clique of allowed GPUs (and not shared, where a pair may fall on one
    GPU), and some are taken to pass if enough GPUs are allowed.
    """
    count, width = outlook.count, kubelet.width
    if outlook.sets is None:
        free = gpus(outlook.free, width)
        parts = [rows for rows in (test.linked, test.wide) if rows is not None]
        every = (
            not free & ~test.allowed
            and not (width > 1 and test.over_pairs)
            and total(outlook.free, width) >= count
            and all(is_clique(rows, free) for rows in parts)
            and (test.numa is None or any(free & ~node == 0 for node in test.numa))
        )
        fewest = 1 if width > 1 and not test.over_pairs else count
        some = every or (free & test.allowed).bit_count() >= fewest
        return every and not outlook.hazards, some, 1.0 if every else 0.5 * some, True
    listed = len(outlook.sets)
    if not listed:
        return False, False, 0.0, True
    if listed <= FEW and kubelet.shape.size <= LARGE:  # quicker one by one, and rings are sure
        passed, sure = sum(test.passes(gpus(s, width), count) for s in outlook.sets), True
    else:
        good, sure = test.passing(gpu_masks(outlook.sets, kubelet.shape.size, width), count)
        passed = int(good.sum())
    every = 0 < passed == listed and not outlook.hazards
    return every, passed > 0 or not sure, passed / listed, sure


@remembered
def _test(shape: Shape, constraints: Constraints, sick: Mask) -> _Test:
    allowed = shape.all_gpus & ~sick
    for p in positions(allowed):
        if not _gpu_meets(shape, p, constraints):
            allowed &= ~(1 << p)
    numa = None
    if constraints.same_numa:
        numa = numa_nodes(shape)
    linked = None
    if constraints.link is not None or constraints.min_nvlinks is not None:
        level, count = constraints.link or 0, constraints.min_nvlinks or 0
        linked = shape.rows(
            frozenset(k for k in shape.distinct_links() if k.kind >= level and k.nvlinks >= count)
        )
    wide = None
    if constraints.min_bandwidth is not None:
        wide = wide_rows(shape, constraints.min_bandwidth)
    judged: dict[tuple[Mask, int], bool] | None = {} if shape.size <= SMALL else None
    return _Test(allowed, numa, linked, constraints.pattern, wide, constraints.over_pairs, judged)


def _gpu_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    return (
        _model_meets(shape, p, constraints)
        and (constraints.min_gpu_memory is None or shape.memory[p] >= constraints.min_gpu_memory)
        and (constraints.nic is None or shape.nic[p] >= constraints.nic)
    )


def _model_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    return not constraints.models or shape.products[p] in _meant(shape, constraints.models)


@remembered
def _meant(shape: Shape, globs: tuple[str, ...]) -> frozenset[str]:
    """The products of a node that some glob means; each product is tried once."""
    return frozenset(
        name for name in set(shape.products) if any(fnmatchcase(name, glob) for glob in globs)
    )


def _hardware_rejection(shape: Shape, request: GpuRequest, shared: bool) -> Rejection | None:
    """Why no set of this hardware could ever do, naming the key that rules it out.

    Where GPUs are ``shared``, keys that do not speak about pairs can be met by one GPU.
    """
    wanted = request.constraints
    count = 1 if shared and not wanted.over_pairs else request.count
    return _ruled_out(shape, wanted, count)


@remembered
def _ruled_out(shape: Shape, wanted: Constraints, count: int) -> Rejection | None:
    if any(shape.mig):
        return SPLIT
    everything = range(shape.size)
    if sum(_model_meets(shape, p, wanted) for p in everything) < count:
        return Rejection(f"GPU model is not {wanted.models_text}", resolvable=False)
    least = wanted.min_gpu_memory
    if least is not None and sum(shape.memory[p] >= least for p in everything) < count:
        return Rejection(f"GPU memory is under {memory_text(least)}", resolvable=False)
    if wanted.nic is not None and sum(k >= wanted.nic for k in shape.nic) < count:
        words = f"no RDMA NIC within {wanted.nic.name.lower()} of {count} GPUs"
        return Rejection(words, resolvable=False)
    test = _test(shape, wanted, 0)
    if comb(test.allowed.bit_count(), count) > most_sets(shape.size, 1):
        return None  # not ruled out; trying them all would hold everybody up
    good, sure = test.passing(subset_masks(test.allowed, count), count)
    if sure and not good.any():
        words = f"hardware has no {count} GPUs with {wanted.text}"
        return Rejection(words, resolvable=False)
    return None
