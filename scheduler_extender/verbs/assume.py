"""Decides a bind and assumes the pod: from then on the pod counts on its node.

The decision is taken on the node's current info. It holds only if the node is unchanged when the
pod is assumed. Otherwise the bind is decided again.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.framework.awaited import AWAITED, NO_CLAIM
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.outcomes import arrival, sets_of
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.results import Results
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groups import GroupsSeen
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.placement import Reason, Verdict
from topology.core.requests import GpuRequest
from topology.times import seconds_of, time_text

STILL_COUNTING = (
    "the extender is still evaluating the reservations of other groups; kube-scheduler tries again"
)
# How often a bind is decided while its node keeps changing; after that, once with the lock held.
TRIES = 3


class BindError(Exception):
    """A bind did not happen, or its result is still unknown.

    If the result is unknown, the pod stays assumed, and the message says so. kube-scheduler forgets
    the pod and tries again.
    """


class NotWrittenError(BindError):
    """The writer of Bindings surely did not write this one."""


class InProgressError(BindError):
    """Unacknowledged pods keep a node from taking the pod, and their reports may change this.

    Either the pod could break a promise to them, or they could break the pod's own.
    """


@dataclass(frozen=True, slots=True)
class DecidedBind:
    """A bind that may be written."""

    request: GpuRequest  # with the peers at the time of the decision
    decision: Decision
    info: NodeInfo  # without the pod: the input of the decision
    ours: PodRecord  # the pod, as it is assumed
    previous_bind: PodRecord | None  # as the pod was assumed before
    sets: tuple[Mask, ...] | None  # the sets of GPUs to write
    info_with_pod: NodeInfo  # the node after the decision
    claims: frozenset[str]  # the pod's claims that are known


def assume(
    cluster: Cache, pod: PodRecord, node: NodeName, now: Callable[[], str]
) -> DecidedBind | None:
    """Decide a bind and assume the pod; return None if the pod is bound to this node already.

    A repeated bind is decided anew, and the assumed one does not count against it. If the node no
    longer keeps the promise, nothing is written, and the assumed bind stays as it was. The first
    write may have been committed, and only the API server can tell.
    """
    request, newest = pod.request, cluster.pod(pod.uid) or pod  # the latter names all its claims
    if isinstance(request, Malformed):
        raise BindError(request.reason)
    own_claims = newest.claims and request.required
    if own_claims and not cluster.claims_known(newest, request.count, node):
        raise InProgressError(NO_CLAIM.message)
    question = Question(pod, Purpose.BIND)
    for attempt in range(TRIES + 1):
        last = attempt == TRIES
        with cluster.lock if last else nullcontext():
            snapshot = cluster.snapshot()
            info, before = snapshot.node_info(node), snapshot.assumed.get(pod.uid)
            if before is not None and before.node != node:
                raise BindError(f"an earlier bind of the pod to {before.node} has not finished")
            results = _asked(snapshot, question, node)
            if _is_bound(cluster, pod.uid, node):
                return None
            judged, decision = results.judged(node), results.decisions[node]
            if decision.rejection is not None:
                raise _rejection(cluster, pod, results, node, assumed=False)
            sets = _sets_of(snapshot, judged, results.request, decision)
            with cluster.lock:
                now_assumed = cluster.assumed(pod.uid)
                if now_assumed is not before or _is_bound(cluster, pod.uid, node):
                    continue
                groups = cluster.groups.seen()
                if results.group is not None and groups.starts != snapshot.groups.starts:
                    continue
                coming = arrival(results.request.without_peers, decision)
                promised = replace(
                    pod,
                    promised=coming.promised,
                    survives_endings=coming.survives_endings,
                    placed=_when(groups, pod, before, now),
                )
                ours = cluster.assume(node, promised, seen=info)
                after = cluster.node_info(node)
            if ours is not None:
                claims = info.claims_of(pod.uid)
                return DecidedBind(
                    results.request, decision, judged, ours, before, sets, after, claims
                )
    raise BindError("the node's state changed at each attempt; kube-scheduler tries again")


def _asked(snapshot: Snapshot, question: Question, node: NodeName) -> Results:
    """Return the node's answer.

    Raises :class:`BindError` if the answer of the pod's group is not worked out in time.
    """
    results = evaluate(snapshot, question, [node])
    if results.late:
        raise BindError(STILL_COUNTING)
    return results


def _when(
    groups: GroupsSeen, pod: PodRecord, before: PodRecord | None, now: Callable[[], str]
) -> float | None:
    """Return when a member of a group was first placed, or is placed now.

    The time of a first bind is the clock's time, or a later one: it comes after the starts of all
    groups that are known. Returns None if the pod is in no group, or if the clock's text is no
    time. From the assumed bind on, it is settled which group started first. The bind writes the
    time, so that other replicas know it later.
    """
    if before is not None and before.placed is not None:
        return before.placed
    said = None if pod.group_ref is None else seconds_of(now())
    return None if said is None else seconds_of(time_text(groups.after_all_starts(said)))


def decide_again(cluster: Cache, decided: DecidedBind) -> DecidedBind:
    """Decide once more, right before the write, because the bind may have waited.

    Raises :class:`BindError` if the node no longer takes the pod. The verdict that is written is
    never stronger than the verdict of the first decision. If a peer has ended meanwhile, its
    replacement is decided later, with our bind counted.
    """
    pod, node = decided.ours, decided.info.name
    snapshot = cluster.snapshot()
    info = snapshot.node_info(node)
    if pod.group_ref is None and info is decided.info_with_pod and not snapshot.is_stale:
        return decided
    # It expects no more peers.
    question = Question(pod, Purpose.BIND, decided.request, ignores_group=True)
    results = _asked(snapshot, question, node)
    judged, decision, request = results.judged(node), results.decisions[node], results.request
    if decision.rejection is not None:
        raise _rejection(cluster, pod, results, node, assumed=True)
    decided = replace(decided, claims=info.claims_of(pod.uid))
    if decision.guaranteed and not decided.decision.guaranteed:
        return decided
    sets = _sets_of(snapshot, judged, request, decision)
    return replace(decided, request=request, decision=decision, info=judged, sets=sets)


def _rejection(
    cluster: Cache, pod: PodRecord, results: Results, node: NodeName, *, assumed: bool
) -> BindError:
    """Return the error to raise for a rejection.

    It is an :class:`InProgressError`, so that the bind waits for news and asks again, in three
    cases: other pods on the node are unacknowledged, the devices of the pod's claims are not known
    yet, or the pod is in a gang and the rejection may end. Otherwise it is a :class:`BindError`.

    Between a pod's start and the report about it, its GPUs are unknown, so that less is promised
    than before and after. If too few GPUs are free, kube-scheduler has counted GPUs that the
    extender has not, for example those of a pod whose end the watch will still show. While the pod
    is not ``assumed``, no other bind waits for it, so it may wait for a report.
    """
    info, decision = results.judged(node), results.decisions[node]
    rejection, assessed = decision.rejection, decision.assessment
    assert rejection is not None  # noqa: S101 (the caller looked)
    if results.vetoed(node):  # its claim has other devices than it requires
        cluster.tallies.count_veto()
        published = () if info.topology is None else info.topology.allocator.published
        devices = ", ".join(map(str, published[: results.request.effective_count]))
        return BindError(f"the pod's claim has the GPUs {devices}: {rejection.message}")
    if not assumed:
        if results.group is not None and rejection in results.group.by_rejection:
            return BindError(rejection.message)
        left_open = assessed is not None and assessed.verdict is Verdict.NOT_GUARANTEED
        if left_open and rejection.resolvable and info.unacknowledged(resource_of(pod)):
            return InProgressError(rejection.message)
    if rejection in AWAITED:
        return InProgressError(rejection.message)
    hopes = rejection.reason is Reason.BUSY or any(  # a report will come
        not (each.ended or each.uid in info.pods.acknowledged)
        and resource_of(each) == resource_of(pod)
        for each in info.pods.bound.values()
    )
    if rejection.resolvable and pod.gang is not None and hopes:
        return InProgressError(rejection.message)
    return BindError(rejection.message)


def _sets_of(
    snapshot: Snapshot, info: NodeInfo, request: GpuRequest, decision: Decision
) -> tuple[Mask, ...] | None:
    """Return the sets to write. A fault in our own code here does not stop the bind."""
    try:
        return sets_of(info, request, decision)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        snapshot.faults.note(info.name, error)
        return ()


def _is_bound(cluster: Cache, uid: PodUid, node: NodeName) -> bool:
    """Check whether the watch has shown the pod bound to this node.

    Raises :class:`BindError` if it is bound to another node.
    """
    known = cluster.pod(uid)
    if known is None or known.node is None:
        return False
    if known.node != node:
        raise BindError(f"the pod is already bound to {known.node}")
    return True
