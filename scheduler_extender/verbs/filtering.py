"""filter: which of the offered nodes can keep the pod's request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.state.answers import State
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import OUT_OF_DATE
from scheduler_extender.state.enquiry import Answered, answer_of, enquire, enquire_at_once
from scheduler_extender.state.groupenquiry import Member, gather, member_of
from scheduler_extender.state.lookup import NotAtOnceError
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.wire import FilterResult, Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import NO_REPORT, Reason, Rejection
from topology.core.requests import GpuRequest

STILL_WORKING = "gpu-topology extender is still working out the nodes for this pod"
IN_FLIGHT = Rejection(
    "a bind of the pod to another node may still be written", False, Reason.IN_PROGRESS
)


def filter_nodes(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    seconds: float = float("inf"),
    *,
    at_once: bool = False,
) -> FilterResult:
    """Which of the offered nodes can keep the pod's request.

    An annotation that cannot be read refuses every node with the same reason; a pod without GPUs
    passes everywhere. ``seconds`` is for how long nodes may be worked out; those that are left over
    are answered as undecided, and if one of them is refused for that and no other takes the pod the
    whole answer is the error :data:`STILL_WORKING`: then kube-scheduler asks again soon, when more
    is worked out, and evicts nobody meanwhile. With ``at_once``, for which the caller holds the
    cluster's lock, :class:`.NotAtOnceError` is raised where the answer would take too long for the
    event loop.
    """
    request = parse(pod, cluster.settings.managed)
    if request is None:
        return FilterResult(node_names=list(names))
    if isinstance(request, Malformed):
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, request.reason))
    member = member_of(cluster, pod, request)
    request = request if member is None else member.request
    flying = cluster.bind_in_flight(PodUid(pod.metadata.uid))
    if flying is not None:
        if at_once:
            raise NotAtOnceError
        return _only_where_in_flight(cluster, flying, request, names)
    if request.required and cluster.blind():
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, OUT_OF_DATE.reason))
    until = cluster.clock() + seconds
    place = cluster.reserved_for(PodUid(pod.metadata.uid))
    if at_once and place is not None:
        raise NotAtOnceError
    if at_once:
        found = _result(request, enquire_at_once(cluster, request, names))
    else:
        others = names if place is None else [name for name in names if name != place]
        found = _result(request, enquire(cluster, request, others, seconds=seconds))
        if place is not None and len(others) < len(names):
            found = _with_own_place(cluster, place, PodUid(pod.metadata.uid), request, found)
    if member is None or not member.bound_to_domain or not found.node_names:
        return found
    return _with_group(cluster, member, found, until, at_once=at_once)


def _with_group(
    cluster: Cluster, member: Member, result: FilterResult, until: float, *, at_once: bool
) -> FilterResult:
    """The result without the nodes to which the pod's group does not let it go."""
    names = result.node_names or []
    found = gather(cluster, member, names, late=lambda: cluster.clock() >= until, at_once=at_once)
    passed = found.alike.pop(None, [])
    if found.late and not passed:
        return FilterResult(node_names=[], error=STILL_WORKING)
    for why, refused in found.alike.items():
        if why is not None:
            into = result.failed if why.resolvable else result.unresolvable
            into.update(dict.fromkeys(refused, why.reason))
    return FilterResult(node_names=passed, failed=result.failed, unresolvable=result.unresolvable)


def _result(request: GpuRequest, answered: Answered) -> FilterResult:
    """The answer; what has to be done for each of thousands of nodes is a look-up by its state."""
    if not answered.decisions.keys() >= answered.distinct:
        return _result_one_by_one(request, answered)
    alike: dict[Rejection | None, list[str]] = {}
    put: dict[State | None, Callable[[str], None]] = {
        state: alike.setdefault(decision.rejection, []).append
        for state, decision in answered.decisions.items()
    }
    for note, name in zip(map(put.__getitem__, answered.states), answered.names, strict=True):
        note(name)
    passed = alike.pop(None, [])
    refused: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for rejection, names in alike.items():
        if rejection is not None:
            refused[rejection.resolvable].update(dict.fromkeys(names, rejection.reason))
    unresolvable, failed = refused
    return FilterResult(node_names=passed, failed=failed, unresolvable=unresolvable)


def _result_one_by_one(request: GpuRequest, answered: Answered) -> FilterResult:
    """The answer where some nodes are unknown or undecided."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, decision in answered.each():
        rejection = decision.rejection if decision is not None else None
        if decision is None and request.required:
            rejection = NO_REPORT  # nobody told us of this node
        if rejection is None:
            passed.append(name)
        else:
            (failed if rejection.resolvable else unresolvable)[name] = rejection.reason
    if answered.late & failed.keys() and not passed:
        return FilterResult(node_names=[], error=STILL_WORKING)
    return FilterResult(node_names=passed, failed=failed, unresolvable=unresolvable)


def _with_own_place(
    cluster: Cluster, place: NodeName, uid: PodUid, request: GpuRequest, others: FilterResult
) -> FilterResult:
    """The answer with the node on which a place is kept for this very pod: there it counts not
    against the pod."""
    why = answer_of(cluster, cluster.facts(place).without(frozenset({uid})), request).rejection
    if why is None:
        return replace(others, node_names=[*(others.node_names or ()), place], error="")
    if others.error:
        return others
    if why.resolvable:
        return replace(others, failed={**others.failed, place: why.reason})
    return replace(others, unresolvable={**others.unresolvable, place: why.reason})


def _only_where_in_flight(
    cluster: Cluster, flying: PodRecord, request: GpuRequest, names: Sequence[str]
) -> FilterResult:
    """The answer for a pod whose bind nobody can tell the end of: no other node may take it.

    On the node itself the pod's own bind does not count against it.
    """
    here = NodeName(flying.node or "")
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name in names:
        why: Rejection | None = IN_FLIGHT
        if name == here:
            without = cluster.facts(here).without(frozenset({flying.uid}))
            why = answer_of(cluster, without, request).rejection
        if why is None:
            passed.append(name)
        else:
            (failed if why.resolvable else unresolvable)[name] = why.reason
    return FilterResult(node_names=passed, failed=failed, unresolvable=unresolvable)
