"""The outcomes of a pod on a node that has answered: sets of GPUs, and what it is promised."""

from dataclasses import replace
from functools import reduce
from operator import or_

from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.arrivals import Arrivals, with_peers
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from topology.core.devices import Mask
from topology.core.placement import Assessment, Rejection, Verdict, assess, sets_of_verdict
from topology.core.requests import NO_CONSTRAINTS, GpuRequest


def unconstrained(info: NodeInfo, request: GpuRequest) -> Assessment | None:
    """Return what a node may hand out to the same pod without its constraints.

    Returns None if the node's record cannot be used.
    """
    offer = info.offer(request.resource)
    if isinstance(offer, Rejection):
        return None
    plain = replace(request, constraints=NO_CONSTRAINTS)
    return assess(offer.kubelet, offer.available_to(plain), plain)


def sick_among(info: NodeInfo, request: GpuRequest, assessed: Assessment | None) -> str:
    """Return a text that a node may hand out certain sick GPUs; empty if not, or if unknown."""
    offer = info.last_offer(request.resource)
    if isinstance(offer, Rejection) or assessed is None or not assessed.sets:
        return ""
    sick = offer.availability.sick & reduce(or_, assessed.sets)
    called = [str(index) for index in sorted(set(offer.devices.indices(sick)))]
    if not called:
        return ""
    several = called[1:]
    gpus = f"GPU{'s' if several else ''} {', '.join(called)}"
    return f"may hand out {gpus}, which {'are' if several else 'is'} sick"


def sets_of(info: NodeInfo, request: GpuRequest, decision: Decision) -> tuple[Mask, ...] | None:
    """Return the sets of GPUs that the pod may get here, as far as its verdict covers them.

    See :func:`~topology.core.placement.sets_of_verdict`. A pod that prefers what this hardware
    never has gets some GPUs all the same. Returns None if the sets are too many to list, and an
    empty tuple if there is no usable record.
    """
    if request.pods_before:
        return _sets_among(info, request, decision)
    assessed = decision.assessment
    if assessed is not None and assessed.verdict is Verdict.NEVER:
        assessed = unconstrained(info, request)
    offer = info.offer(request.resource)
    if assessed is None or isinstance(offer, Rejection):
        return ()
    return sets_of_verdict(offer.kubelet, offer.available_to(request), request, assessed)


def _sets_among(info: NodeInfo, request: GpuRequest, decision: Decision) -> tuple[Mask, ...] | None:
    """Return the sets that the pod may get with its peers before it, in any order."""
    without_peers = request.without_peers
    listed: dict[Mask, None] = {}
    for later in with_peers(info, request) or [info]:
        offer = later.offer(without_peers.resource)
        if later is not info and decision.assessment is not None and isinstance(offer, Offer):
            decision = Decision(
                None, assess(offer.kubelet, offer.available_to(without_peers), without_peers)
            )
        sets = sets_of(later, without_peers, decision)
        if sets is None:
            return None
        listed |= dict.fromkeys(sets)
    return tuple(listed)


def arrival(request: GpuRequest, decision: Decision) -> Arrivals:
    """Return a pod that arrives with what this decision promises."""
    promised = request.promised if decision.assessment is not None else NO_CONSTRAINTS
    return Arrivals(request, 1, promised, promised != NO_CONSTRAINTS and decision.guaranteed)
