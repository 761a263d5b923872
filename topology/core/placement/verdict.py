"""The verdict: does every outcome of a request on this node meet the request's constraints?

A promise is *outstanding* while its pod is bound and not yet reported. The verdict took into
account everything that might happen at that time. But the kubelet may admit a pod that is bound
later first. So before a bind, every outstanding promise is checked again together with the new pod
(:func:`endangers`).
"""

from dataclasses import dataclass, replace
from enum import Enum

from topology.core.admission import AFFINITY, TOO_MANY_NODES, DeviceManager, opaque, widened
from topology.core.availability import Availability, Unacknowledged, coming, unacknowledged_order
from topology.core.budget import CHECK_STEPS, SPENT
from topology.core.devices import Mask
from topology.core.devicesets import DeviceSet
from topology.core.graph import UNKNOWN
from topology.core.memo import memoized
from topology.core.placement.constraints import compiled
from topology.core.placement.indifference import indifferent_to
from topology.core.placement.memory import has_memory, short_of_memory
from topology.core.placement.podoutcomes import Judgement, PodOutcomes, judged, pod_outcomes
from topology.core.placement.rejections import (
    ALL_SICK,
    SICK,
    TOO_FEW_WHOLE,
    TOO_MUCH,
    UNASKED,
    UNPLACED,
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
    """How sure it is that a node meets a request's constraints, best first."""

    # Every outcome under every possible free state meets them, also if running pods end.
    GUARANTEED = "guaranteed"
    EXPECTED = "expected"  # the same, unless a running GPU pod ends shortly before admission
    NOT_GUARANTEED = "not-guaranteed"  # some outcome meets them
    NOT_NOW = "not-now"  # no outcome meets them now, but the hardware could
    NEVER = "never"  # the hardware itself cannot meet them

    @property
    def holds(self) -> bool:
        """Whether the verdict is a promise."""
        return self in (Verdict.GUARANTEED, Verdict.EXPECTED)


@dataclass(frozen=True, slots=True)
class Assessment:
    """A verdict with its reasons."""

    verdict: Verdict
    fits: bool  # whether enough devices are left
    # Why the node is refused to a pod whose constraints are required. None if the verdict holds.
    rejection: Rejection | None = None
    # The GPUs that the running pod may have, over all possible free states, ascending. None if
    # they are too many sets to list.
    sets: tuple[Mask, ...] | None = ()
    passing_fraction: float = 0.0  # the fraction of the sets that meets the constraints
    hazards: tuple[str, ...] = ()  # the refusals that the pod may meet on the node
    exact: bool = True  # false if some set may be impossible
    refusal: Rejection | None = None  # why the kubelet surely refuses; None if it may admit
    # Why no such pod may come, required or not: the memory of a shared GPU could be exceeded.
    memory: Rejection | None = None

    @property
    def shared_bytes(self) -> int:
        """The approximate size in bytes. Caches share it."""
        rejections = (self.rejection, self.refusal, self.memory)
        reasons = sum([len(each.message) for each in rejections if each is not None])
        return 400 + 50 * len(self.sets or ()) + 100 * len(self.hazards) + reasons


# A pod for which any devices will do may have up to so many unacknowledged pods before it that are
# followed exactly. If there are more, first check whether the pod is safe with any devices. That
# settles most cases.
FOLLOWED = 2


def assess(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> Assessment:
    """Return the assessment of a node with this availability for this request.

    The function is pure and cached by its arguments. So a request over thousands of nodes costs one
    evaluation for each distinct node state, or for each result of :func:`chosen`. If GPUs are
    shared, it also checks whether their memory is enough for every pod that may come there
    (:mod:`.memory`), plain pods included.
    """
    alone = chosen(kubelet, availability, request) if kubelet.allocator.choice_known else None
    return (
        _assessed(kubelet, availability, request) if alone is None else _assessed(*alone, request)
    )


def chosen(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest
) -> tuple[DeviceManager, Availability] | None:
    """Return the node as if only the devices that the pod gets were free; None if unknown.

    The devices are known if the allocator's choice is, no pod comes or goes, and the pod asks for
    no exclusive CPUs or memory. Then the verdict depends on nothing else. If too few devices are
    left, the pod gets none, whatever the order and the other devices are.
    """
    size = request.effective_count
    known = kubelet.allocator.choice_known and availability.settled
    if not known or request.exclusive or not size:
        return None
    free = 0
    if size <= availability.devices_left:
        free = (kubelet.outcomes(availability.free, size).sets or (availability.free,))[0]
    return kubelet.without_order, Availability(free, sick=availability.sick & free)


@memoized
def _assessed(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest
) -> Assessment:
    """Return the assessment with the check of shared GPUs' memory."""
    assessed = _assess(kubelet, availability, request)
    if not assessed.fits:
        return assessed
    memory = short_of_memory(kubelet, availability, request)
    if memory is None:
        return assessed
    if not (assessed.verdict.holds or request.plain):
        return replace(assessed, memory=memory)
    verdict = (
        Verdict.NOT_GUARANTEED if has_memory(kubelet, availability, request) else Verdict.NOT_NOW
    )
    return replace(
        assessed, verdict=verdict, rejection=None if request.plain else memory, memory=memory
    )


def _assess(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> Assessment:
    """Return the assessment without the check of shared GPUs' memory.

    The steps are, each only if those before it have not decided:

    1. If the hardware has too few devices, or can never meet the constraints, the verdict is never.
    2. If too few devices are left, it is not-now.
    3. Evaluate the outcomes if no running pod ends. If some fail, it is not-guaranteed, or not-now.
    4. Evaluate the outcomes if running pods may end. If all still pass, it is guaranteed, else
       expected. If the choice is known at the time of the evaluation, this step is skipped and
       the verdict is guaranteed.
    """
    shape = kubelet.shape
    if request.effective_count > kubelet.devices_on(shape.all_gpus):
        return Assessment(Verdict.NEVER, fits=False, rejection=too_few(device_unit(kubelet)))
    if request.plain and request.effective_count > kubelet.devices_served:
        return Assessment(Verdict.NEVER, fits=False, rejection=TOO_FEW_WHOLE)
    fits = request.effective_count <= availability.devices_left
    any_will_do = fits and not request.exclusive
    wide = widened(kubelet) if any_will_do else None
    if wide is None and any_will_do and len(availability.unacknowledged) > FOLLOWED:
        wide = indifferent_to(kubelet, availability, request.counts, request.constraints)
    if wide is not None:
        at_once = assess(wide, availability, request)
        if at_once.verdict is Verdict.GUARANTEED:
            return replace(at_once, exact=False)
    if request.plain:
        return _assess_plain(kubelet, availability, request, fits)
    hardware = hardware_rejection(kubelet, request)
    if hardware is not None:
        never = Assessment(Verdict.NEVER, fits=fits, rejection=hardware)
        if request.required or not fits:
            return never
        before = _outlook_of(kubelet, availability, request, endings=False)
        refusal = certain_refusal(kubelet, availability, request, before)
        return replace(never, hazards=before.hazards, refusal=refusal)
    if not fits:
        return Assessment(Verdict.NOT_NOW, fits=False, rejection=busy(device_unit(kubelet)))
    constraints = compiled(shape, request.constraints, availability.sick, kubelet.replicas)
    before = _outlook_of(kubelet, availability, request, endings=False)
    judgement = judged(kubelet, before, constraints)
    if not judgement.every:
        refusal = certain_refusal(kubelet, availability, request, before)
        found = _not_promised(kubelet, availability, request, before, judgement)
        return replace(found, refusal=refusal)
    survives = kubelet.allocator.choice_known
    if not survives:
        after = _outlook_of(kubelet, availability, request, endings=True)
        survives = judged(kubelet, after, constraints).every
    verdict = Verdict.GUARANTEED if survives else Verdict.EXPECTED
    sets = before.gpus(kubelet)
    return Assessment(
        verdict, True, None, sets, judgement.passing_fraction, before.hazards, before.exact
    )


def _assess_plain(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, fits: bool
) -> Assessment:
    """Return the assessment for a pod that asks only for devices. A sick device is not promised."""
    if not fits:
        return Assessment(Verdict.NOT_NOW, fits=False, rejection=busy(device_unit(kubelet)))
    before = _outlook_of(kubelet, availability, request, endings=False)
    fraction = 1.0
    if availability.sick:
        sound = compiled(kubelet.shape, NO_CONSTRAINTS, availability.sick, kubelet.replicas)
        fraction = judged(kubelet, before, sound).passing_fraction
    verdict = Verdict.NOT_GUARANTEED if before.hazards or fraction < 1 else Verdict.GUARANTEED
    refusal = certain_refusal(kubelet, availability, request, before)
    sets = before.gpus(kubelet)
    return Assessment(verdict, True, None, sets, fraction, before.hazards, before.exact, refusal)


def sets_of_verdict(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, assessed: Assessment
) -> tuple[Mask, ...] | None:
    """Return the GPUs that the pod may have by its verdict, the likelier sets first.

    The sets of ``assessed`` may come if no running pod ends. They are first. A guarantee to a pod
    with constraints holds even if running pods end, so the sets that only come after such an end
    follow. None if there are too many sets.
    """
    in_advance = request.plain or kubelet.allocator.choice_known
    if assessed.verdict is not Verdict.GUARANTEED or in_advance or assessed.sets is None:
        return assessed.sets
    after = _outlook_of(kubelet, availability, request, endings=True).gpus(kubelet)
    if after is None:
        return None
    known = set(assessed.sets)
    return (*assessed.sets, *(mask for mask in after if mask not in known))


def _outlook_of(
    kubelet: DeviceManager,
    availability: Availability,
    pod: GpuRequest | Unacknowledged,
    *,
    endings: bool,
) -> PodOutcomes:
    key = availability.outcome_key(endings=endings, exclusive=pod.exclusive)
    return pod_outcomes(
        kubelet, key, pod.counts, pod.only_gpu_plugin, pod.exclusive, endings=endings
    )


def _not_promised(
    kubelet: DeviceManager,
    availability: Availability,
    request: GpuRequest,
    before: PodOutcomes,
    judgement: Judgement,
) -> Assessment:
    """Return the assessment if some outcome fails, or may fail as far as we know.

    Its rejection says why the node cannot promise now what its hardware could.
    """
    verdict = Verdict.NOT_GUARANTEED if judgement.some else Verdict.NOT_NOW
    sets, fraction, hazards = before.gpus(kubelet), judgement.passing_fraction, before.hazards
    if not judgement.sure:
        return Assessment(verdict, True, TOO_MUCH, sets, fraction, tuple(sorted({*hazards, SPENT})))
    policy, text = kubelet.config.topology_manager_policy, request.constraints.text
    if (
        availability.sick
        and judged(
            kubelet, before, compiled(kubelet.shape, request.constraints, 0, kubelet.replicas)
        ).every
    ):  # the constraints would hold if no GPU were sick
        rejection = SICK if judgement.some else ALL_SICK
    elif judgement.some and AFFINITY in hazards and policy == UNKNOWN:
        rejection = UNASKED
    elif AFFINITY in hazards and not kubelet.config.sees_topology:
        rejection = UNPLACED
    elif SPENT in hazards or TOO_MANY_NODES in hazards:
        rejection = TOO_MUCH
    elif hazards and (judgement.passing_fraction == 1 or not before.sets):
        words = "not guaranteed: the node's kubelet may refuse the pod"
        rejection = Rejection(words, True, Reason.KUBELET)
    elif not judgement.some and kubelet.allocator.choice_known:
        words = f"the next free GPUs do not meet {text}"
        rejection = Rejection(words, True, Reason.SCATTERED)
    elif not judgement.some:
        some = set_of(request.count, "free ", device_unit(kubelet))
        rejection = Rejection(f"no {some} with {text}", True, Reason.SCATTERED)
    else:
        words = f"not guaranteed: the node may hand out {unit_of(kubelet.shape)}s without {text}"
        rejection = Rejection(words, True, Reason.NOT_GUARANTEED)
    return Assessment(verdict, True, rejection, sets, fraction, hazards, before.exact)


def endangers(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> bool:
    """Check whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator it cannot: the devices that it leaves are a part of those that the
    promise already covers. A pod in the middle of its admission is safe.
    """
    if kubelet.monotone or request.effective_count == 0 or not availability.unacknowledged:
        return False
    return _endangers(kubelet, availability, request)


@memoized
def _endangers(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> bool:
    newcomer = coming(request, kubelet.replicas)
    availability = _with_terminated_alive(availability)
    steps = 0
    for i, pod in enumerate(availability.unacknowledged):
        if pod.promised == NO_CONSTRAINTS or pod.started:
            continue
        if i and pod == availability.unacknowledged[i - 1]:
            continue  # an equal pod has the same result
        others = unacknowledged_order(
            (*availability.unacknowledged[:i], *availability.unacknowledged[i + 1 :], newcomer)
        )
        kept = keeps(kubelet, replace(availability, unacknowledged=others), pod)
        steps += kept.steps + len(others)
        if not kept.every or steps > CHECK_STEPS:
            return True
    return False


def keeps(kubelet: DeviceManager, availability: Availability, pod: Unacknowledged) -> Judgement:
    """Return how many outcomes keep an unacknowledged pod's promise, over every free state.

    ``availability`` does not include the pod itself. Every terminated pod and every victim is gone
    before it comes. If the evaluation is over budget, the promise does not hold.
    """
    wide = None
    if not pod.exclusive:
        wide = widened(kubelet) or indifferent_to(kubelet, availability, pod.counts, pod.promised)
    if wide is not None:
        kept = keeps(wide, availability, pod)
        if kept.every:
            return kept
    foreseen = _outlook_of(kubelet, availability, pod, endings=pod.survives_endings)
    constraints = compiled(kubelet.shape, pod.promised, availability.sick, kubelet.replicas)
    return judged(kubelet, foreseen, constraints)._replace(steps=foreseen.steps)


def predicted(
    kubelet: DeviceManager, availability: Availability, pod: Unacknowledged
) -> tuple[tuple[DeviceSet, ...] | None, tuple[str, ...]]:
    """Return every set that a report may show of an unacknowledged pod, and its possible refusals.

    ``availability`` is what was known before the report, without the pod itself. Running pods may
    have ended since. The sets include the devices that the pod had ``shown`` already. None means
    any devices.
    """
    kubelet = opaque(kubelet) if pod.opaque else kubelet
    alive = _with_terminated_alive(availability)
    foreseen = _outlook_of(kubelet, alive, pod, endings=True)
    if foreseen.sets is None:
        return None, foreseen.hazards
    return tuple(s + pod.shown for s in foreseen.sets), foreseen.hazards


def _with_terminated_alive(availability: Availability) -> Availability:
    """Return the availability with the terminated pods still there.

    An unacknowledged pod may have been admitted beside them.
    """
    if not any(pod.terminated for pod in availability.unacknowledged):
        return availability
    pods = (
        replace(p, terminated=False, terminating=True) if p.terminated else p
        for p in availability.unacknowledged
    )
    return replace(availability, unacknowledged=unacknowledged_order(pods))
