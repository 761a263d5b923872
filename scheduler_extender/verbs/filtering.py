"""filter: which of the offered nodes can keep the pod's request."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import OUT_OF_DATE
from scheduler_extender.state.enquiry import Answered, answer_of, enquire, remembered
from scheduler_extender.state.lookup import NotRememberedError
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.wire import FilterResult, Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import NO_REPORT, Rejection
from topology.core.requests import GpuRequest

STILL_WORKING = "gpu-topology extender is still working out the nodes for this pod"
IN_FLIGHT = Rejection("a bind of the pod to another node may still be written", resolvable=False)


def filter_nodes(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    seconds: float = float("inf"),
    *,
    at_once: bool = False,
) -> FilterResult:
    """Which of the offered nodes can keep the pod's request; each stands in the answer once.

    An annotation that cannot be read refuses every node with the same reason; a pod without GPUs
    passes everywhere. ``seconds`` is for how long nodes may be worked out; those that are left over
    are answered as undecided, and if none of the others takes a pod with required constraints the
    whole answer is the error :data:`STILL_WORKING`: then kube-scheduler asks again soon, when more
    is worked out, and evicts nobody meanwhile. With ``at_once`` nothing is worked out, and
    :class:`.NotRememberedError` is raised where something would have to be.
    """
    names = list(dict.fromkeys(names))
    request = parse(pod, cluster.settings.managed)
    if request is None:
        return FilterResult(node_names=names)
    if isinstance(request, Malformed):
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, request.reason))
    flying = cluster.bind_in_flight(PodUid(pod.metadata.uid))
    if flying is not None:
        if at_once:
            raise NotRememberedError
        return _only_where_in_flight(cluster, flying, request, names)
    if request.required and cluster.blind():
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, OUT_OF_DATE.reason))
    if at_once:
        answered = remembered(cluster, request, names)
    else:
        answered = enquire(cluster, request, names, seconds=seconds)
    return _result(request, answered)


def _result(request: GpuRequest, answered: Answered) -> FilterResult:
    """The answer; what has to be done for each node is a look-up by its state."""
    passing = {s for s, d in answered.decisions.items() if d.rejection is None}
    rejections = {s: d.rejection for s, d in answered.decisions.items() if d.rejection is not None}
    if len(rejections) == 0 and passing.issuperset(answered.states):
        return FilterResult(node_names=list(answered.names))
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, state in zip(answered.names, answered.states, strict=True):
        if state in passing:
            passed.append(name)
            continue
        rejection = rejections.get(state) if state is not None else None
        if rejection is None:
            if name in answered.undecided:
                rejection = answered.undecided[name].rejection
            elif request.required:
                rejection = NO_REPORT  # nobody told us of this node
            if rejection is None:
                passed.append(name)
                continue
        (failed if rejection.resolvable else unresolvable)[name] = rejection.reason
    if answered.late and request.required and not passed:
        return FilterResult(node_names=[], error=STILL_WORKING)
    return FilterResult(node_names=passed, failed=failed, unresolvable=unresolvable)


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
