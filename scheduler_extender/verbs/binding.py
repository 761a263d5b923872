"""bind: the decision that counts.

It is taken on the facts of that moment, and it holds only if the pod is reserved while the node is
still in the state that was decided about: else it is taken again. The write to the API server
happens after it, with no lock held.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Decision, sets_of
from scheduler_extender.state.enquiry import answer_of
from scheduler_extender.state.node import NodeFacts
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.verbs.turns import Turns
from scheduler_extender.wire import BindingArgs
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.requests import GpuRequest

TOO_LATE = "the bind waited too long to be begun: kube-scheduler has given it up, and tries again"
NO_ANSWER = "the node's kubelet has not answered about the pods before: kube-scheduler tries again"
MAX_SETS_WRITTEN = 16
TRIES = 3
"""How often a bind is decided while the node changes meanwhile; then once with the lock held."""


class BindError(Exception):
    """A bind did not happen, or nobody can tell yet: then it stays in flight, and the message
    says so. kube-scheduler forgets the pod and tries again."""


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; it has to stay in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation.

    ``term`` is the term of the leader in which it was decided, 0 where there is one replica only.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str
    term: int = 0


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
    turns: Turns | None = None,
    term: int = 0,
) -> None:
    """Bind a pod to a node if the node can still keep its request.

    The same bind twice is success, once written. ``now`` gives the time for the placement
    annotation. ``late`` says whether it is too late to begin: what kube-scheduler has given up
    waiting for must not be written behind its back, so it is asked at the start and right before
    the write. With ``turns`` the write waits for its turn until then. ``term`` is the one in which
    we lead (see :class:`Binding`). Where the pod is bound here already nothing is done. Raises
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
        return
    reserved = _reserve(cluster, pod, node)
    if reserved is None:
        return
    has_turn = turns is None or turns.wait(reserved.ours, late)
    try:
        _in_time(late, has_turn=has_turn)
        if turns is not None:
            reserved = _looked_at_again(cluster, reserved)
        placement = _placement(reserved, pod, now())
        written = json.dumps(placement, separators=(",", ":"))
        binder.write(Binding(pod.namespace, pod.name, uid, node, written, term))
    except BindError:
        cluster.take_back(reserved.ours, reserved.before)
        raise
    except BindUnknownError as error:
        raise BindError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A bind that may be written: what was decided and on which facts (without the pod), the pod as
    reserved, its bind that was in flight before, and the GPU sets to write."""

    decision: Decision
    facts: NodeFacts
    ours: PodRecord
    before: PodRecord | None
    sets: tuple[Mask, ...] | None


def _reserve(cluster: Cluster, pod: PodRecord, node: NodeName) -> _Reserved | None:
    """Decide and reserve; None where the pod is bound to this node already.

    A repeated bind is decided anew, without the one in flight counting against it. Where the node
    no longer keeps the promise nothing is written, and the one in flight stays as it was: the
    first write may have been committed, and only the API server can tell.
    """
    request = pod.request
    if isinstance(request, Malformed):
        raise BindError(request.reason)
    for attempt in range(TRIES + 1):
        last = attempt == TRIES
        deciding: AbstractContextManager[None] = cluster.locked() if last else nullcontext()
        with deciding:
            facts, before = cluster.facts(node), cluster.bind_in_flight(pod.uid)
            if before is not None and before.node != node:
                raise BindError(f"a bind of the pod to {before.node} is still in flight")
            without = facts if before is None else facts.without(frozenset({pod.uid}))
            decision = answer_of(cluster, without, request)
            if _is_bound(cluster, pod.uid, node):
                return None
            if decision.rejection is not None:
                raise BindError(decision.rejection.reason)
            sets = _sets_of(cluster, without, request, decision)
            with cluster.locked():
                now_in_flight = cluster.bind_in_flight(pod.uid)
                if now_in_flight is not before or _is_bound(cluster, pod.uid, node):
                    continue
                ours = cluster.reserve(node, _promised(pod, request, decision), seen=facts)
            if ours is not None:
                return _Reserved(decision, without, ours, before, sets)
    raise BindError("this node changes all the time; kube-scheduler tries again")


def _in_time(late: Callable[[], bool], *, has_turn: bool) -> None:
    """Raises :class:`BindError` where kube-scheduler has given the bind up by now."""
    if late():
        raise BindError(TOO_LATE if has_turn else NO_ANSWER)


def _looked_at_again(cluster: Cluster, reserved: _Reserved) -> _Reserved:
    """What is written, on the node's facts of now: the bind may have waited for its turn.

    Raises :class:`BindError` where the node takes the pod no more. The verdict that is written is
    never stronger than the reservation.
    """
    request, node = reserved.ours.request, reserved.ours.node
    if node is None or not isinstance(request, GpuRequest):
        return reserved
    without = cluster.facts(node).without(frozenset({reserved.ours.uid}))
    if without.key(request.resource) == reserved.facts.key(request.resource):
        return reserved
    decision = answer_of(cluster, without, request)
    if decision.rejection is not None:
        raise BindError(decision.rejection.reason)
    if _is_guaranteed(decision) and not _is_guaranteed(reserved.decision):
        return reserved
    sets = _sets_of(cluster, without, request, decision)
    return replace(reserved, decision=decision, facts=without, sets=sets)


def _is_guaranteed(decision: Decision) -> bool:
    assessed = decision.assessment
    return assessed is not None and assessed.verdict is Verdict.GUARANTEED


def _sets_of(
    cluster: Cluster, facts: NodeFacts, request: GpuRequest, decision: Decision
) -> tuple[Mask, ...] | None:
    """The sets to write; a fault of ours here costs nobody the bind."""
    try:
        return sets_of(facts, request, decision)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        cluster.faults.note(facts.name, error)
        return ()


def _is_bound(cluster: Cluster, uid: PodUid, node: NodeName) -> bool:
    """Whether the watch has shown the pod bound to this node. Raises if it is on another."""
    known = cluster.pod(uid)
    if known is None or known.node is None:
        return False
    if known.node != node:
        raise BindError(f"pod is bound to {known.node} already")
    return True


def _promised(pod: PodRecord, request: GpuRequest, decision: Decision) -> PodRecord:
    """The pod with what this decision promises it: nothing if it requires nothing."""
    if not request.required or decision.assessment is None:
        return pod
    guaranteed = decision.assessment.verdict is Verdict.GUARANTEED
    return replace(pod, promised=request.constraints, survives_endings=guaranteed)


class _Placement(TypedDict, total=False):
    """The placement annotation's JSON. ``sets`` are GPU sets as driver indices."""

    verdict: str
    node: str
    uid: str
    sets: list[list[int]]
    time: str
    setsOmitted: int


def _placement(reserved: _Reserved, pod: PodRecord, time: str) -> _Placement:
    """The placement annotation: verdict, node, pod UID, possible GPU sets as indices, time.

    The UID tells it from one that somebody wrote into a template.
    """
    facts, decision = reserved.facts, reserved.decision
    found = _Placement(verdict=decision.verdict, node=facts.name, uid=pod.uid, sets=[], time=time)
    sets = reserved.sets
    if facts.topology is not None and sets:
        indices = facts.topology.indices
        found["sets"] = [list(indices(mask)) for mask in sets[:MAX_SETS_WRITTEN]]
        if len(sets) > MAX_SETS_WRITTEN:
            found["setsOmitted"] = len(sets) - MAX_SETS_WRITTEN
    return found
