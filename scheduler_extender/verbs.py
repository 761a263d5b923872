"""filter, prioritize and bind as plain functions over the cluster.

filter and prioritize change nothing: kube-scheduler may call them for pods that are never bound.
The decision that counts is bind's, taken again on the state of that moment together with the
reservation, as one step under the cluster's lock; the write to the API server happens after it,
with no lock held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.cluster import OUT_OF_DATE, Cluster, Decision
from scheduler_extender.ledger import PodRecord
from scheduler_extender.wire import BindingArgs, FilterResult, Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import NO_REPORT, Rejection, Verdict
from topology.core.requests import GpuRequest

NOT_SYNCED = "gpu-topology extender is not synced with the API server yet"
STILL_WORKING = "gpu-topology extender is still working out the nodes for this pod"
TOO_LATE = "the bind waited too long to be begun: kube-scheduler has given it up, and tries again"
IN_FLIGHT = Rejection("a bind of the pod to another node may still be written", resolvable=False)
MAX_SETS_WRITTEN = 16


def filter_nodes(
    cluster: Cluster, pod: Pod, names: Sequence[str], seconds: float | None = None
) -> FilterResult:
    """Which of the offered nodes can keep the pod's request; each stands in the answer once.

    An annotation that cannot be read refuses every node with the same reason; a pod without GPUs
    passes everywhere. ``seconds`` is for how long nodes may be worked out, None for as long as it
    takes; see :func:`_with_late` for those that are left over.
    """
    names = list(dict.fromkeys(names))
    request = parse(pod, cluster.settings.managed)
    if request is None:
        return FilterResult(node_names=names)
    if isinstance(request, Malformed):
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, request.reason))
    reserved = cluster.reservation(PodUid(pod.metadata.uid))
    if reserved is not None:
        return _only_where_reserved(cluster, reserved, request, names)
    if request.required and cluster.blind():
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, OUT_OF_DATE.reason))
    in_time = seconds is None or cluster.work_out(request, names, seconds)
    late: dict[str, Decision] = {}
    with cluster.locked():
        if not in_time:
            late = {n: cluster.undecided(n, request) for n in cluster.left_over(request, names)}
        decided = [n for n in names if n not in late] if late else names
        table = cluster.table(request, decided, retry=seconds is None)
        passed, failed, unresolvable = table.passed, table.failed, table.unresolvable
        fits = [n for n in names if n in passed]
        if len(fits) == len(names):
            return FilterResult(node_names=fits)
        result = FilterResult(
            node_names=fits,
            failed={n: failed[n] for n in names if n in failed},
            unresolvable={n: unresolvable[n] for n in names if n in unresolvable},
        )
        answered = len(result.node_names or ()) + len(result.failed) + len(result.unresolvable)
        if answered == len(names):
            return result
        known = table.decisions
        strangers = [n for n in names if n not in known and n not in late]
    if late:
        result = _with_late(request, names, result, late)
    return result if result.error else _with_strangers(request, names, result, strangers)


def _with_late(
    request: GpuRequest, names: Sequence[str], result: FilterResult, late: dict[str, Decision]
) -> FilterResult:
    """Add the nodes that there was no time to decide about.

    They are answered as if deciding had failed: they pass, unless the pod has required constraints
    or could break a promise. Where no other node takes a pod with required constraints the whole
    answer is an error: then kube-scheduler asks again soon, when more is worked out, and evicts
    nobody meanwhile.
    """
    if request.required and not result.node_names:
        return FilterResult(node_names=[], error=STILL_WORKING)
    passed = {*(result.node_names or ()), *(n for n, d in late.items() if d.rejection is None)}
    refused = {n: d.rejection.reason for n, d in late.items() if d.rejection is not None}
    return FilterResult(
        node_names=[n for n in names if n in passed],
        failed={**result.failed, **refused},
        unresolvable=result.unresolvable,
    )


def _only_where_reserved(
    cluster: Cluster, reserved: PodRecord, request: GpuRequest, names: Sequence[str]
) -> FilterResult:
    """The answer for a pod whose bind nobody can tell the end of: no other node may take it.

    On the node itself the pod's own reservation does not count against it.
    """
    here = NodeName(reserved.node or "")
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name in names:
        why: Rejection | None = IN_FLIGHT
        if name == here:
            why = cluster.decide_without(here, request, frozenset({reserved.uid})).rejection
        if why is None:
            passed.append(name)
        else:
            (failed if why.resolvable else unresolvable)[name] = why.reason
    return FilterResult(node_names=passed, failed=failed, unresolvable=unresolvable)


def _with_strangers(
    request: GpuRequest,
    names: Sequence[str],
    result: FilterResult,
    strangers: list[str],
) -> FilterResult:
    """Add nodes that nobody told us of; they are never remembered, since anyone can name some."""
    if not request.required:
        passed = {*(result.node_names or ()), *strangers}
        return FilterResult(
            node_names=[n for n in names if n in passed],
            failed=result.failed,
            unresolvable=result.unresolvable,
        )
    reasons = dict.fromkeys(strangers, NO_REPORT.reason)
    return FilterResult(
        node_names=result.node_names,
        failed=result.failed,
        unresolvable={**result.unresolvable, **reasons},
    )


def prioritize(
    cluster: Cluster, pod: Pod, names: Sequence[str], seconds: float | None = None
) -> list[dict[str, object]]:
    """A score from 0 to 10 for each offered node, an integer, in the order offered.

    ``seconds`` is for how long scores may be worked out, None for as long as it takes; nodes that
    are left over then are scored as if we knew nothing of them.
    """
    names = list(dict.fromkeys(names))
    request = parse(pod, cluster.settings.managed)
    if request is None or isinstance(request, Malformed):
        return [{"Host": n, "Score": 0} for n in names]
    if not request.plain and cluster.blind():
        return [{"Host": n, "Score": 0} for n in names]
    in_time = seconds is None or cluster.work_out(request, names, seconds, scores=True)
    scores = cluster.scores(request, names, work=in_time, retry=seconds is None)
    return [{"Host": name, "Score": scores[name]} for name in names]


class BindError(Exception):
    """A bind did not happen, and nothing was written or what was written is undone."""


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; its reservation has to stay."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation."""

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str


class Binder(Protocol):
    """Where binds are written, and pods looked up that no source has shown yet."""

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """The pod as it is at the source; None where it is gone or has another UID.

        Raises :class:`BindUnknownError` where the source does not answer.
        """
        ...

    def write(self, binding: Binding) -> None:
        """Bind, with the UID as precondition; done already is success.

        Raises :class:`BindError` where it surely did not happen, :class:`BindUnknownError` where
        that cannot be told.
        """
        ...


def bind(
    cluster: Cluster,
    binder: Binder,
    args: BindingArgs,
    now: Callable[[], str],
    late: Callable[[], bool] = lambda: False,
) -> PodRecord | None:
    """Bind a pod to a node if the node can still keep its request.

    The same bind twice is success, once written. ``now`` gives the time for the placement
    annotation. ``late`` says whether it is too late to begin: what kube-scheduler has given up
    waiting for must not be written behind its back, so it is asked at the start and right before
    the write. Returns the pod as reserved, None where it was bound here before. Raises
    :class:`BindError` with the reason; kube-scheduler then forgets the pod and tries again.
    """
    if late():
        raise BindError(TOO_LATE)
    uid, node = PodUid(args.pod_uid), NodeName(args.node)
    if not cluster.has_node(node):
        raise BindError("this node does not exist")
    pod = cluster.pod(uid)
    if pod is None or (pod.node is not None and pod.node != node):
        try:
            pod = binder.find(args.pod_namespace, args.pod_name, uid)
        except BindUnknownError as error:
            raise BindError(str(error)) from error
    if pod is None:
        raise BindError(f"pod {args.pod_namespace}/{args.pod_name} with this UID is gone")
    if (pod.namespace, pod.name) != (args.pod_namespace, args.pod_name):
        raise BindError(f"this UID belongs to {pod.namespace}/{pod.name}")
    if pod.node is not None:
        if pod.node != node:
            raise BindError(f"pod is bound to {pod.node} already")
        return None
    with cluster.locked():
        known = cluster.pod(uid)
        if known is not None and known.node is not None:
            # The watch overtook us.
            if known.node != node:
                raise BindError(f"pod is bound to {known.node} already")
            return None
        decision, ours, before = _reserve(cluster, pod, node)
    placement = _placement(cluster, uid, node, decision, now())
    written = json.dumps(placement, separators=(",", ":"))
    if late():
        cluster.take_back(ours, before)
        raise BindError(TOO_LATE)
    try:
        binder.write(Binding(pod.namespace, pod.name, uid, node, written))
    except BindError:
        cluster.take_back(ours, before)
        raise
    except BindUnknownError as error:
        raise BindError(str(error)) from error
    return pod


def _reserve(
    cluster: Cluster, pod: PodRecord, node: NodeName
) -> tuple[Decision, PodRecord, PodRecord | None]:
    """Decide and reserve in one step: the decision, the reservation, and the one that was before.

    A repeated bind is decided anew, without its own reservation counting against it. Where the
    node no longer keeps the promise nothing is written, and the reservation stays as it was: the
    first write may have been committed, and only the API server can tell.
    """
    request = pod.request
    if isinstance(request, Malformed):
        raise BindError(request.reason)
    reserved = cluster.reservation(pod.uid)
    if reserved is None:
        decision = cluster.decide(node, request)
    elif reserved.node == node:
        decision = cluster.decide_without(node, request, frozenset({pod.uid}))
    else:
        raise BindError(f"a bind of the pod to {reserved.node} is still in flight")
    if decision.rejection is not None:
        raise BindError(decision.rejection.reason)
    return decision, cluster.reserve(node, _promised(pod, request, decision)), reserved


def _promised(pod: PodRecord, request: GpuRequest, decision: Decision) -> PodRecord:
    if not request.required or decision.rejection is not None:
        return pod
    verdict = decision.assessment.verdict if decision.assessment else Verdict.EXPECTED
    steady = verdict is Verdict.GUARANTEED
    return replace(pod, promised=request.constraints, survives_endings=steady)


def _placement(
    cluster: Cluster, uid: PodUid, node: NodeName, decision: Decision, time: str
) -> dict[str, Any]:
    """The placement annotation: verdict, node, pod UID, possible GPU sets as indices, time.

    The UID tells it from one that somebody wrote into a template.
    """
    topology = cluster.node(node)[0]
    sets = decision.assessment.sets if decision.assessment else ()
    found: dict[str, Any] = {
        "verdict": decision.verdict,
        "node": node,
        "uid": uid,
        "sets": [],
        "time": time,
    }
    if topology is not None and sets:
        found["sets"] = [list(topology.indices(s)) for s in sets[:MAX_SETS_WRITTEN]]
        if len(sets) > MAX_SETS_WRITTEN:
            found["setsOmitted"] = len(sets) - MAX_SETS_WRITTEN
    return found
