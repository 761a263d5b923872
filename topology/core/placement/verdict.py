"""The verdict: can this node keep this request's constraints, whatever it hands out?

A promise is *outstanding* while its pod is bound and not yet reported. It was given over everything
that might happen then. A pod that is bound later may be admitted first, so before a bind every
outstanding promise is tried again with the newcomer (:func:`endangers`).
"""

from dataclasses import dataclass, replace
from enum import Enum

from topology.core.admission import AFFINITY, TOO_MANY_NODES, Kubelet, opaque, widened
from topology.core.availability import Availability, Unacknowledged, coming, unacknowledged_order
from topology.core.budget import CHECK_STEPS, SPENT
from topology.core.devices import Mask
from topology.core.devicesets import DeviceSet
from topology.core.graph import UNKNOWN
from topology.core.memo import memoized
from topology.core.placement.constraints import compiled
from topology.core.placement.indifference import indifferent_to
from topology.core.placement.memory import has_memory, short_of_memory
from topology.core.placement.podoutcomes import Judgement, PodOutcomes, judged, pod_outcomes, spent
from topology.core.placement.rejections import (
    ALL_SICK,
    SICK,
    TOO_FEW_WHOLE,
    TOO_MUCH,
    UNASKED,
    Reason,
    Rejection,
    busy,
    certain_refusal,
    device_unit,
    hardware_rejection,
    set_of,
    too_few,
    unit_of,
)
from topology.core.requests import NO_CONSTRAINTS, GpuRequest


class Verdict(Enum):
    """How sure it is that a node keeps a request's constraints, best first."""

    # Every outcome under every possible free state satisfies it, also if running pods end.
    GUARANTEED = "guaranteed"
    EXPECTED = "expected"  # the same, unless a running GPU pod ends in the moment before admission
    NOT_GUARANTEED = "not-guaranteed"  # some outcome satisfies it
    NOT_NOW = "not-now"  # no outcome can, now; the hardware could
    NEVER = "never"  # the hardware itself cannot

    @property
    def holds(self) -> bool:
        """Whether it is a promise."""
        return self in (Verdict.GUARANTEED, Verdict.EXPECTED)


@dataclass(frozen=True, slots=True)
class Assessment:
    """A verdict with what it rests on."""

    verdict: Verdict
    fits: bool  # whether enough devices are left at all
    rejection: Rejection | None = None  # why a required pod is refused; None if the verdict holds
    # The GPUs that the running pod may have, over all possible free states, ascending. None where
    # they are too many to list.
    sets: tuple[Mask, ...] | None = ()
    share: float = 0.0  # the part of the outcomes that satisfies the constraints
    hazards: tuple[str, ...] = ()  # the refusals that the node may answer with
    exact: bool = True  # false where some set may be impossible
    refusal: Rejection | None = None  # why the kubelet surely refuses; None if it may admit
    # Why no such pod may come, whatever it requires: memory of a shared GPU could be exceeded.
    memory: Rejection | None = None

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes; memories share it."""
        told = (self.rejection, self.refusal, self.memory)
        reasons = sum([len(each.reason) for each in told if each is not None])
        return 400 + 50 * len(self.sets or ()) + 100 * len(self.hazards) + reasons


# Before a pod for which any devices will do, so many earlier pods are followed exactly. If more may
# come first, it is asked whether the pod is safe with any devices: that answers most questions.
FOLLOWED = 2


def assess(kubelet: Kubelet, now: Availability, request: GpuRequest) -> Assessment:
    """The verdict of a node in this state for this request.

    Pure, and remembered by its arguments: a request over thousands of nodes costs one evaluation
    per distinct state, or :func:`chosen` devices. If GPUs are shared, it also judges whether their
    memory is enough for every pod that may come there (:mod:`.memory`), plain pods included.
    """
    alone = chosen(kubelet, now, request) if kubelet.allocator.settled else None
    return _assessed(kubelet, now, request) if alone is None else _assessed(*alone, request)


def chosen(
    kubelet: Kubelet, now: Availability, request: GpuRequest
) -> tuple[Kubelet, Availability] | None:
    """The node as if nothing were free but the devices that the pod gets, where these are settled
    and nobody comes or goes: all that its verdict depends on. None elsewhere.

    Where too few are left, it gets none: no order and no other device changes that.
    """
    size = request.effective_count
    if not kubelet.allocator.settled or request.exclusive or not size:
        return None
    if now.unacknowledged or now.releasing or now.victims or now.hidden:
        return None
    free = 0
    if size <= now.devices_left:
        free = (kubelet.outcomes(now.free, size).sets or (now.free,))[0]
    return kubelet.settled, Availability(free, sick=now.sick & free)


@memoized
def _assessed(kubelet: Kubelet, now: Availability, request: GpuRequest) -> Assessment:
    """The verdict and the memory of what is shared."""
    assessed = _assess(kubelet, now, request)
    if not assessed.fits:
        return assessed
    memory = short_of_memory(kubelet, now, request)
    if memory is None:
        return assessed
    if not (assessed.verdict.holds or request.plain):
        return replace(assessed, memory=memory)
    verdict = Verdict.NOT_GUARANTEED if has_memory(kubelet, now, request) else Verdict.NOT_NOW
    rejection = None if request.plain else memory
    return replace(assessed, verdict=verdict, rejection=rejection, memory=memory)


def _assess(kubelet: Kubelet, now: Availability, request: GpuRequest) -> Assessment:
    """The verdict without memory that is shared.

    Each question is asked only where those before it are answered:

    1. Has the hardware devices enough, and can it meet the constraints at all? If not: never.
    2. Are enough devices left? If not: not-now.
    3. What do the outcomes say if no running pod ends? If some fail: not-guaranteed, or not-now.
    4. And if running pods may end? If all still pass, or the choice is settled when we are asked:
       guaranteed, else expected.
    """
    shape = kubelet.shape
    if request.effective_count > kubelet.devices_on(shape.all_gpus):
        rejection = too_few(device_unit(kubelet))
        return Assessment(Verdict.NEVER, fits=False, rejection=rejection)
    if request.plain and request.effective_count > kubelet.devices_served:
        return Assessment(Verdict.NEVER, fits=False, rejection=TOO_FEW_WHOLE)
    fits = request.effective_count <= now.devices_left
    any_will_do = fits and not request.exclusive
    wide = widened(kubelet) if any_will_do else None
    if wide is None and any_will_do and len(now.unacknowledged) > FOLLOWED:
        wide = indifferent_to(kubelet, now, request.counts, request.constraints)
    if wide is not None:
        at_once = assess(wide, now, request)
        if at_once.verdict is Verdict.GUARANTEED:
            return replace(at_once, exact=False)
    if request.plain:
        return _assess_plain(kubelet, now, request, fits)
    hardware = hardware_rejection(kubelet, request)
    if hardware is not None:
        never = Assessment(Verdict.NEVER, fits=fits, rejection=hardware)
        if request.required or not fits:
            return never
        before = _outlook_of(kubelet, now, request, endings=False)
        refusal = certain_refusal(kubelet, now, request, before)
        return replace(never, hazards=before.hazards, refusal=refusal)
    if not fits:
        return Assessment(Verdict.NOT_NOW, fits=False, rejection=busy(device_unit(kubelet)))
    constraints = compiled(shape, request.constraints, now.sick, kubelet.replicas)
    before = _outlook_of(kubelet, now, request, endings=False)
    judgement = judged(kubelet, before, constraints)
    if not judgement.every:
        refusal = certain_refusal(kubelet, now, request, before)
        found = _not_promised(kubelet, now, request, before, judgement)
        return replace(found, refusal=refusal)
    survives = kubelet.allocator.settled
    if not survives:
        after = _outlook_of(kubelet, now, request, endings=True)
        survives = judged(kubelet, after, constraints).every
    verdict = Verdict.GUARANTEED if survives else Verdict.EXPECTED
    sets = before.gpus(kubelet)
    return Assessment(verdict, True, None, sets, judgement.share, before.hazards, before.exact)


def _assess_plain(
    kubelet: Kubelet, now: Availability, request: GpuRequest, fits: bool
) -> Assessment:
    """The verdict for a pod that asks for devices and nothing else. A sick one is not promised."""
    if not fits:
        return Assessment(Verdict.NOT_NOW, fits=False, rejection=busy(device_unit(kubelet)))
    before = _outlook_of(kubelet, now, request, endings=False)
    share = 1.0
    if now.sick:
        sound = compiled(kubelet.shape, NO_CONSTRAINTS, now.sick, kubelet.replicas)
        share = judged(kubelet, before, sound).share
    verdict = Verdict.NOT_GUARANTEED if before.hazards or share < 1 else Verdict.GUARANTEED
    refusal = certain_refusal(kubelet, now, request, before)
    sets = before.gpus(kubelet)
    return Assessment(verdict, True, None, sets, share, before.hazards, before.exact, refusal)


def sets_spoken_of(
    kubelet: Kubelet, now: Availability, request: GpuRequest, assessed: Assessment
) -> tuple[Mask, ...] | None:
    """The GPUs that the pod may have by its verdict, the likelier sets first; None: too many.

    The sets of ``assessed`` may come if no running pod ends. A guarantee to a pod with constraints
    holds even if some end: then the sets follow that come only of that.
    """
    settled = request.plain or kubelet.allocator.settled
    if assessed.verdict is not Verdict.GUARANTEED or settled or assessed.sets is None:
        return assessed.sets
    after = _outlook_of(kubelet, now, request, endings=True).gpus(kubelet)
    if after is None:
        return None
    known = set(assessed.sets)
    return (*assessed.sets, *(mask for mask in after if mask not in known))


def _outlook_of(
    kubelet: Kubelet, now: Availability, request: GpuRequest, *, endings: bool
) -> PodOutcomes:
    key = now.outcome_key(endings=endings, exclusive=request.exclusive)
    return pod_outcomes(
        kubelet, key, request.counts, request.only_gpu_plugin, request.exclusive, endings=endings
    )


def _not_promised(
    kubelet: Kubelet,
    now: Availability,
    request: GpuRequest,
    before: PodOutcomes,
    judgement: Judgement,
) -> Assessment:
    """The assessment where some outcome fails, or may fail for all we know, and why the node cannot
    promise now what its hardware could."""
    verdict = Verdict.NOT_GUARANTEED if judgement.some else Verdict.NOT_NOW
    sets, share, hazards = before.gpus(kubelet), judgement.share, before.hazards
    if not judgement.sure:
        return Assessment(verdict, True, TOO_MUCH, sets, share, spent(hazards))
    policy, text = kubelet.config.topology_manager_policy, request.constraints.text
    if (
        now.sick
        and judged(
            kubelet, before, compiled(kubelet.shape, request.constraints, 0, kubelet.replicas)
        ).every
    ):  # the constraints would hold if no GPU were sick
        rejection = SICK if judgement.some else ALL_SICK
    elif judgement.some and AFFINITY in hazards and policy == UNKNOWN:
        rejection = UNASKED
    elif SPENT in hazards or TOO_MANY_NODES in hazards:
        rejection = TOO_MUCH
    elif hazards and (judgement.share == 1 or not before.sets):
        words = "not guaranteed: the node's kubelet may refuse the pod"
        rejection = Rejection(words, True, Reason.KUBELET)
    elif not judgement.some and kubelet.allocator.settled:
        words = f"the next free GPUs are without {text}"
        rejection = Rejection(words, True, Reason.SCATTERED)
    elif not judgement.some:
        shared = kubelet.replicas > 1 and not kubelet.shape.of_mig
        some = set_of(request.count, "free ", "share" if shared else unit_of(kubelet.shape))
        rejection = Rejection(f"no {some} with {text}", True, Reason.SCATTERED)
    else:
        units = f"{unit_of(kubelet.shape)}s"
        words = f"not guaranteed: the node may hand out {units} without {text}"
        rejection = Rejection(words, True, Reason.NOT_GUARANTEED)
    return Assessment(verdict, True, rejection, sets, share, hazards, before.exact)


def endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator it cannot: what it leaves is a part of what the promise was given
    over. A pod in the middle of its admission is safe.
    """
    if kubelet.monotone or request.effective_count == 0 or not now.unacknowledged:
        return False
    return _endangers(kubelet, now, request)


@memoized
def _endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    newcomer = coming(request, kubelet.replicas)
    now = _with_terminated_alive(now)
    steps = 0
    for i, pod in enumerate(now.unacknowledged):
        if pod.promised == NO_CONSTRAINTS or pod.started:
            continue
        if i and pod == now.unacknowledged[i - 1]:
            continue  # what holds for the one holds for the other
        others = unacknowledged_order(
            (*now.unacknowledged[:i], *now.unacknowledged[i + 1 :], newcomer)
        )
        kept = keeps(kubelet, replace(now, unacknowledged=others), pod)
        steps += kept.steps + len(others)
        if not kept.every or steps > CHECK_STEPS:
            return True
    return False


def keeps(kubelet: Kubelet, now: Availability, pod: Unacknowledged) -> Judgement:
    """How far a pod gets what it was promised, over every free state; ``now`` is without it.

    It comes after every terminated or victim is gone. If that is too much to work out, the
    promise does not hold.
    """
    endings = pod.survives_endings
    wide = None
    if not pod.exclusive:
        wide = widened(kubelet) or indifferent_to(kubelet, now, pod.counts, pod.promised)
    if wide is not None:
        kept = keeps(wide, now, pod)
        if kept.every:
            return kept
    key = now.outcome_key(endings=endings, exclusive=pod.exclusive)
    foreseen = pod_outcomes(
        kubelet, key, pod.counts, pod.only_gpu_plugin, pod.exclusive, endings=endings
    )
    constraints = compiled(kubelet.shape, pod.promised, now.sick, kubelet.replicas)
    return judged(kubelet, foreseen, constraints)._replace(steps=foreseen.steps)


def predicted(
    kubelet: Kubelet, now: Availability, pod: Unacknowledged
) -> tuple[tuple[DeviceSet, ...] | None, tuple[str, ...]]:
    """Every set that an unacknowledged pod may be seen with, and the refusals it may meet.

    ``now`` is what was known before the report, without the pod itself; running pods may have ended
    since. The sets include what the pod had ``shown`` already; None stands for any devices.
    """
    kubelet = opaque(kubelet) if pod.opaque else kubelet
    key = _with_terminated_alive(now).outcome_key(endings=True, exclusive=pod.exclusive)
    foreseen = pod_outcomes(
        kubelet, key, pod.counts, pod.only_gpu_plugin, pod.exclusive, endings=True
    )
    if foreseen.sets is None:
        return None, foreseen.hazards
    return tuple(s + pod.shown for s in foreseen.sets), foreseen.hazards


def _with_terminated_alive(now: Availability) -> Availability:
    """What an unacknowledged pod may have met: pods that have terminated since were still there."""
    if not any(pod.terminated for pod in now.unacknowledged):
        return now
    pods = (
        replace(p, terminated=False, terminating=True) if p.terminated else p
        for p in now.unacknowledged
    )
    return replace(now, unacknowledged=unacknowledged_order(pods))
