"""Promises that are outstanding: given to pods that are bound and not yet reported.

A promise was given over everything that might happen then. A pod that is bound later may be
admitted first, so before a bind every outstanding promise is tried again with the newcomer
(:func:`endangers`).
"""

from dataclasses import replace

from topology.core.admission import Kubelet, opaque, widened
from topology.core.availability import Availability, Unreported, coming, unreported_order
from topology.core.budget import CHECK_STEPS
from topology.core.placement.constraints import compiled
from topology.core.placement.indifference import indifferent_to
from topology.core.placement.outlook import Judgement, judged, outlook
from topology.core.pools import Pool
from topology.core.remembering import remembered
from topology.core.requests import NO_CONSTRAINTS, GpuRequest


def endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether a pod with this request could break a promise if it were admitted first.

    Under a monotone allocator it cannot: what it leaves is a part of what the promise was given
    over. A pod in the middle of its admission is safe.
    """
    if kubelet.monotone or request.effective_count == 0 or not now.unreported:
        return False
    return _endangers(kubelet, now, request)


@remembered
def _endangers(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    newcomer = coming(request, kubelet.replicas)
    now = _with_departed_alive(now)
    steps = 0
    for i, pod in enumerate(now.unreported):
        if pod.promised == NO_CONSTRAINTS or pod.started:
            continue
        if i and pod == now.unreported[i - 1]:
            continue  # what holds for the one holds for the other
        others = unreported_order((*now.unreported[:i], *now.unreported[i + 1 :], newcomer))
        kept = keeps(kubelet, replace(now, unreported=others), pod)
        steps += kept.steps + len(others)
        if not kept.every or steps > CHECK_STEPS:
            return True
    return False


def keeps(kubelet: Kubelet, now: Availability, pod: Unreported) -> Judgement:
    """How far a pod gets what it was promised, over every free state; ``now`` is without it.

    It comes after every departed or departing pod is gone. If that is too much to work out, the
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
    foreseen = outlook(
        kubelet, key, pod.counts, pod.only_gpu_plugin, pod.exclusive, endings=endings
    )
    constraints = compiled(kubelet.shape, pod.promised, now.sick, kubelet.replicas)
    return judged(kubelet, foreseen, constraints)._replace(steps=foreseen.steps)


def predicted(
    kubelet: Kubelet, now: Availability, pod: Unreported
) -> tuple[tuple[Pool, ...] | None, tuple[str, ...]]:
    """Every set that an unreported pod may be seen with, and the refusals it may meet.

    ``now`` is what was known before the report, without the pod itself; running pods may have ended
    since. The sets include what the pod had ``shown`` already; None stands for any devices.
    """
    kubelet = opaque(kubelet) if pod.opaque else kubelet
    key = _with_departed_alive(now).outcome_key(endings=True, exclusive=pod.exclusive)
    foreseen = outlook(kubelet, key, pod.counts, pod.only_gpu_plugin, pod.exclusive, endings=True)
    if foreseen.sets is None:
        return None, foreseen.hazards
    return tuple(s + pod.shown for s in foreseen.sets), foreseen.hazards


def _with_departed_alive(now: Availability) -> Availability:
    """What an unreported pod may have met: pods that have departed since were still there."""
    if not any(pod.departed for pod in now.unreported):
        return now
    pods = (replace(p, departed=False, ending=True) if p.departed else p for p in now.unreported)
    return replace(now, unreported=unreported_order(pods))
