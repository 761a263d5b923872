"""The verdict: can this node keep this request's constraints, whatever it hands out?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from math import comb

from topology.allocators import MAX_SETS, Allocator, Outcomes, allocator
from topology.belief import Availability, Pending, free_masks
from topology.devices import Mask, positions
from topology.graph import Rows, Shape, has_ring, is_clique, is_connected, subsets, wide_rows
from topology.requests import Constraints, GpuRequest, Pattern, memory_text


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

    ``sets`` are the possible GPU sets under the widest mask of the belief, ascending, or None
    where they are too many to list; ``share`` is the part of them that satisfies the constraints.
    ``fits`` says whether enough devices are left at all. ``rejection`` is why a required pod is
    refused here; None where the verdict holds.
    """

    verdict: Verdict
    fits: bool
    rejection: Rejection | None = None
    sets: tuple[Mask, ...] | None = ()
    share: float = 0.0
    hazards: tuple[str, ...] = ()


NOT_SERVED = Rejection("node does not serve the GPU resource asked for", resolvable=False)
TOO_FEW = Rejection("node has fewer GPUs than asked for", resolvable=False)
BUSY = Rejection("not enough free GPUs", resolvable=True)
SPLIT = Rejection("GPUs are split by MIG, which carries no topology", resolvable=False)
IN_PROGRESS = Rejection("another GPU placement on the node is in progress", resolvable=True)
NO_REPORT = Rejection("no topology report", resolvable=False)
STALE = Rejection("topology report is stale", resolvable=False)
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
def assess(shape: Shape, now: Availability, request: GpuRequest, policy: str = "any") -> Assessment:
    """The verdict of a node of this shape, in this moment, for this request.

    ``policy`` names the node's allocator. Pure, and remembered by its arguments: a request over
    thousands of nodes costs one evaluation per distinct state.
    """
    chooser = allocator(policy)
    count = request.count
    if now.units is None and request.effective_count > shape.size:
        return Assessment(Verdict.NEVER, fits=False, rejection=TOO_FEW)
    fits = request.effective_count <= now.devices_left
    if request.plain:
        return _assess_plain(chooser, shape, now, request, fits)
    hardware = _hardware_rejection(shape, request, now.units is not None)
    if hardware is not None:
        return Assessment(Verdict.NEVER, fits=fits, rejection=hardware)
    if not fits:
        return Assessment(Verdict.IMPOSSIBLE, fits=False, rejection=BUSY)
    test = _test(shape, request.constraints, now.sick)
    masks = free_masks(chooser, shape, now)
    outcomes = _union(chooser, shape, masks, now, count)
    shared = now.units is not None
    every, some, share = _judge(outcomes, test, shared)
    verdict, rejection = Verdict.POSSIBLE, None
    if not some:
        verdict = Verdict.IMPOSSIBLE
        rejection = Rejection(f"no {count} free GPUs with {request.constraints.text}", True)
    elif not every or masks is None or outcomes.hazards:
        words = f"not guaranteed: the node may hand out GPUs without {request.constraints.text}"
        rejection = Rejection(words, True)
    else:
        later = free_masks(chooser, shape, now, endings=True)
        after = _union(chooser, shape, later, now, count)
        steady = later is not None and not after.hazards and _judge(after, test, shared)[0]
        verdict = Verdict.GUARANTEED if steady else Verdict.EXPECTED
    return Assessment(verdict, True, rejection, outcomes.sets, share, outcomes.hazards)


@lru_cache(maxsize=65536)
def endangers(shape: Shape, now: Availability, request: GpuRequest, policy: str = "any") -> bool:
    """Whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator none can: what is left after it is a part of what the promise was
    given over.
    """
    chooser = allocator(policy)
    if chooser.monotone:
        return False
    newcomer = Pending(request.count, request.effective_count)
    for i, pod in enumerate(now.pending):
        if pod.promised == Constraints():
            continue
        others = now.pending[:i] + now.pending[i + 1 :]
        masks = free_masks(
            chooser, shape, replace(now, pending=tuple(sorted((*others, newcomer), key=_order)))
        )
        if masks is None:
            return True
        test = _test(shape, pod.promised, now.sick)
        for mask in masks:
            if mask.bit_count() < pod.size:
                return True
            if not _judge(chooser.outcomes(shape, mask, pod.size), test)[0]:
                return True
    return False


def _order(pod: Pending) -> tuple[int, int, str]:
    return (pod.size, pod.held, pod.promised.text)


def pending_order(pods: list[Pending]) -> tuple[Pending, ...]:
    """Pending pods in the one order that equal moments share."""
    return tuple(sorted(pods, key=_order))


def _assess_plain(
    chooser: Allocator, shape: Shape, now: Availability, request: GpuRequest, fits: bool
) -> Assessment:
    if not fits:
        return Assessment(Verdict.IMPOSSIBLE, fits=False, rejection=BUSY)
    masks = free_masks(chooser, shape, now)
    outcomes = _union(chooser, shape, masks, now, request.count)
    return Assessment(Verdict.GUARANTEED, True, None, outcomes.sets, 1.0, hazards=outcomes.hazards)


def _union(
    chooser: Allocator,
    shape: Shape,
    masks: tuple[Mask, ...] | None,
    now: Availability,
    count: int,
) -> Outcomes:
    """The outcomes under every mask of a belief that leaves enough GPUs, as one."""
    if masks is None:
        return Outcomes(now.widest, count, None, exact=False)
    if len(masks) == 1:
        return chooser.outcomes(shape, masks[0], count, now.units)
    parts = [chooser.outcomes(shape, m, count) for m in masks if m.bit_count() >= count]
    hazards = tuple(sorted({h for part in parts for h in part.hazards}))
    exact = all(part.exact for part in parts)
    if any(part.sets is None for part in parts):
        return Outcomes(now.widest, count, None, exact=False, hazards=hazards)
    sets = tuple(sorted({s for part in parts for s in part.sets or ()}))
    return Outcomes(now.widest, count, sets, exact=exact, hazards=hazards)


def _judge(outcomes: Outcomes, test: _Test, shared: bool = False) -> tuple[bool, bool, float]:
    """Whether every outcome passes, whether some does, and the share that does.

    Sets that are not listed are judged soundly: all of them pass only if the whole free mask is
    one clique of allowed GPUs (and not ``shared``, where a pair may fall on one GPU), and some are
    taken to pass if enough GPUs are allowed.
    """
    if outcomes.sets is None:
        free, count = outcomes.free, outcomes.size
        parts = [rows for rows in (test.linked, test.wide) if rows is not None]
        every = (
            not free & ~test.allowed
            and not (shared and test.over_pairs)
            and outcomes.free.bit_count() >= count
            and all(is_clique(rows, free) for rows in parts)
            and (test.numa is None or any(free & ~node == 0 for node in test.numa))
        )
        some = every or (free & test.allowed).bit_count() >= count
        return every, some, 1.0 if every else 0.5 * some
    passed = sum(test.passes(mask, outcomes.size) for mask in outcomes.sets)
    total = len(outcomes.sets)
    return 0 < passed == total, passed > 0, passed / total if total else 0.0


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
