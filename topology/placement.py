"""The verdict: can this node keep this request's constraints, whatever it hands out?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from math import comb

from topology.allocators import MAX_SETS
from topology.belief import Availability, Pending, blind, moments, pending_order
from topology.devices import Mask, positions
from topology.graph import (
    UNKNOWN,
    Rows,
    Shape,
    has_ring,
    is_clique,
    is_connected,
    subsets,
    wide_rows,
)
from topology.kubelet import AFFINITY, Kubelet, admissions
from topology.pools import Pool, gpus, total
from topology.requests import Constraints, Counts, GpuRequest, Pattern, Role, memory_text


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
NOT_READY = Rejection("the node's agent cannot see who holds its GPUs", resolvable=False)
UNASKED = Rejection(
    "not guaranteed: the node's Topology Manager policy is unknown", resolvable=True
)
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

    def passes(self, mask: Mask, count: int) -> bool:
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


_PATTERNS = {
    Pattern.PAIRWISE: is_clique,
    Pattern.RING: has_ring,
    Pattern.CONNECTED: is_connected,
}


def satisfies(shape: Shape, constraints: Constraints, mask: Mask, *, sick: Mask = 0) -> bool:
    """Whether the GPUs of ``mask`` meet every constraint. A sick GPU meets none."""
    return _test(shape, constraints, sick).passes(mask, mask.bit_count())


@lru_cache(maxsize=65536)
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
    outlook = _outlook(kubelet, now.bare(endings=False), request.counts, request.alone)
    every, some, share = _judge(outlook, test, kubelet.width)
    verdict, rejection = Verdict.POSSIBLE, None
    if not every:
        verdict = Verdict.POSSIBLE if some else Verdict.IMPOSSIBLE
        unknown = AFFINITY in outlook.hazards and kubelet.facts.topology_manager_policy == UNKNOWN
        rejection = UNASKED if unknown and some else _weak_rejection(request, outlook, some, share)
    else:
        later = now.bare(endings=True)
        after = _outlook(kubelet, later, request.counts, request.alone, endings=True)
        steady = _judge(after, test, kubelet.width)[0]
        verdict = Verdict.GUARANTEED if steady else Verdict.EXPECTED
    return Assessment(
        verdict, True, rejection, outlook.gpus(kubelet), share, outlook.hazards, outlook.exact
    )


def _weak_rejection(request: GpuRequest, outlook: _Outlook, some: bool, share: float) -> Rejection:
    if outlook.hazards and (share == 1 or not outlook.sets):
        return Rejection("not guaranteed: the node's kubelet may refuse the pod", True)
    if not some:
        return Rejection(f"no {request.count} free GPUs with {request.constraints.text}", True)
    words = f"not guaranteed: the node may hand out GPUs without {request.constraints.text}"
    return Rejection(words, True)


@lru_cache(maxsize=65536)
def endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator none can: what is left after it is a part of what the promise was
    given over. A pod in the middle of its admission is past that.
    """
    if kubelet.monotone or request.effective_count == 0:
        return False
    newcomer = Pending(request.counts, alone=request.alone)
    for i, pod in enumerate(now.pending):
        if pod.promised == Constraints() or pod.started:
            continue
        others = pending_order((*now.pending[:i], *now.pending[i + 1 :], newcomer))
        if not keeps(kubelet, replace(now, pending=others), pod):
            return True
    return False


def keeps(kubelet: Kubelet, now: Availability, pod: Pending) -> bool:
    """Whether a promise holds in every moment of the belief; ``now`` is without the pod itself."""
    test = _test(kubelet.shape, pod.promised, now.sick)
    bare = _with_ghosts_alive(now).bare(endings=pod.steady)
    outlook = _outlook(kubelet, bare, pod.counts, pod.alone, endings=pod.steady)
    return _judge(outlook, test, kubelet.width)[0]


def _with_ghosts_alive(now: Availability) -> Availability:
    """The moment for a pod that is unreported: what has ended since may have been there then."""
    if not any(pod.ghost for pod in now.pending):
        return now
    pods = (replace(p, ghost=False, ending=True) if p.ghost else p for p in now.pending)
    return replace(now, pending=pending_order(pods))


def predicted(
    kubelet: Kubelet, now: Availability, pod: Pending
) -> tuple[tuple[Pool, ...] | None, tuple[str, ...]]:
    """Every set that an unreported pod may be seen with, and the refusals it may meet.

    ``now`` is the moment before the report, without the pod itself; running pods may have ended
    since. The sets include what the pod had ``shown`` already; None is anything.
    """
    kubelet = blind(kubelet) if pod.blind else kubelet
    bare = _with_ghosts_alive(now).bare(endings=True)
    outlook = _outlook(kubelet, bare, pod.counts, pod.alone, endings=True)
    if outlook.sets is None:
        return None, outlook.hazards
    return tuple(s + pod.shown for s in outlook.sets), outlook.hazards


def _assess_plain(
    kubelet: Kubelet, now: Availability, request: GpuRequest, fits: bool
) -> Assessment:
    if not fits:
        return Assessment(Verdict.IMPOSSIBLE, fits=False, rejection=BUSY)
    outlook = _outlook(kubelet, now.bare(endings=False), request.counts, request.alone)
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

    def gpus(self, kubelet: Kubelet) -> tuple[Mask, ...] | None:
        if self.sets is None or kubelet.width == 1:
            return self.sets
        return tuple(sorted({gpus(found, kubelet.width) for found in self.sets}))


@lru_cache(maxsize=16384)
def _outlook(
    kubelet: Kubelet,
    now: Availability,
    counts: Counts,
    alone: bool,
    *,
    endings: bool = False,
) -> _Outlook:
    one = len(counts) == 1
    count = sum(n for role, n in counts if role is not Role.INIT)
    belief = moments(kubelet, now, endings=endings, one_container=one)
    widest = now.widest(endings=endings)
    if belief is None:
        return _Outlook(None, (UNCERTAIN,), False, widest, count)
    hazards: set[str] = set()
    sets: set[Pool] | None = set()
    exact = True
    for moment in belief:
        found = admissions(kubelet, moment.free, counts, alone=alone, releasing=moment.later)
        hazards.update(found.hazards)
        exact &= found.exact
        if found.shown is None:
            sets = None
        elif sets is not None:
            sets |= found.shown
            if len(sets) > MAX_SETS:
                sets = None
    listed = None if sets is None else tuple(sorted(sets))
    return _Outlook(listed, tuple(sorted(hazards)), exact and sets is not None, widest, count)


UNCERTAIN = "too-much-at-once"
"""So many pods come and go that their orders are not followed."""


def _judge(outlook: _Outlook, test: _Test, width: int) -> tuple[bool, bool, float]:
    """Whether every outcome passes, whether some does, and the share that does.

    A refusal is an outcome too. Sets that are not listed are judged soundly: all of them pass only
    if the widest pool is one clique of allowed GPUs (and not shared, where a pair may fall on one
    GPU), and some are taken to pass if enough GPUs are allowed.
    """
    count = outlook.count
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
        return every and not outlook.hazards, some, 1.0 if every else 0.5 * some
    passed = sum(test.passes(gpus(found, width), count) for found in outlook.sets)
    listed = len(outlook.sets)
    every = 0 < passed == listed and not outlook.hazards
    return every, passed > 0, passed / listed if listed else 0.0


@lru_cache(maxsize=16384)
def _test(shape: Shape, constraints: Constraints, sick: Mask) -> _Test:
    allowed = shape.all_gpus & ~sick
    for p in positions(allowed):
        if not _gpu_meets(shape, p, constraints):
            allowed &= ~(1 << p)
    numa = None
    if constraints.same_numa:
        nodes = {n for n in shape.numa if n is not None}
        numa = tuple(
            sum(1 << p for p, at in enumerate(shape.numa) if at == node) for node in sorted(nodes)
        )
    linked = None
    if constraints.link is not None or constraints.min_nvlinks is not None:
        level, count = constraints.link or 0, constraints.min_nvlinks or 0
        linked = shape.rows(
            frozenset(k for k in shape.distinct_links() if k.kind >= level and k.nvlinks >= count)
        )
    wide = None
    if constraints.min_bandwidth is not None:
        wide = wide_rows(shape, constraints.min_bandwidth)
    return _Test(allowed, numa, linked, constraints.pattern, wide, constraints.over_pairs)


def _gpu_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    return (
        _model_meets(shape, p, constraints)
        and (constraints.min_gpu_memory is None or shape.memory[p] >= constraints.min_gpu_memory)
        and (constraints.nic is None or shape.nic[p] >= constraints.nic)
    )


def _model_meets(shape: Shape, p: int, constraints: Constraints) -> bool:
    name = shape.products[p]
    return not constraints.models or any(fnmatchcase(name, glob) for glob in constraints.models)


@lru_cache(maxsize=16384)
def _hardware_rejection(shape: Shape, request: GpuRequest, shared: bool) -> Rejection | None:
    """Why no set of this hardware could ever do, naming the key that rules it out.

    Where GPUs are ``shared``, keys that do not speak about pairs can be met by one GPU.
    """
    wanted = request.constraints
    count = 1 if shared and not wanted.over_pairs else request.count
    if any(shape.mig):
        return SPLIT
    everything = range(shape.size)
    if sum(_model_meets(shape, p, wanted) for p in everything) < count:
        return Rejection(f"GPU model is not {','.join(wanted.models)}", resolvable=False)
    least = wanted.min_gpu_memory
    if least is not None and sum(shape.memory[p] >= least for p in everything) < count:
        return Rejection(f"GPU memory is under {memory_text(least)}", resolvable=False)
    if wanted.nic is not None and sum(k >= wanted.nic for k in shape.nic) < count:
        words = f"no RDMA NIC within {wanted.nic.name.lower()} of {count} GPUs"
        return Rejection(words, resolvable=False)
    test = _test(shape, wanted, 0)
    if comb(test.allowed.bit_count(), count) > MAX_SETS:
        return None  # not ruled out; trying them all would hold everybody up
    if not any(test.passes(mask, count) for mask in subsets(test.allowed, count)):
        words = f"hardware has no {count} GPUs with {wanted.text}"
        return Rejection(words, resolvable=False)
    return None
