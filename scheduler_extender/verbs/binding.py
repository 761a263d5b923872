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
from functools import partial
from typing import Protocol, TypedDict, TypeVar

from scheduler_extender.annotations import Malformed
from scheduler_extender.limits import VERB_SECONDS
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import SIBLINGS, Decision, sets_of
from scheduler_extender.state.enquiry import answer_of
from scheduler_extender.state.groupenquiry import gather, kept_elsewhere
from scheduler_extender.state.groups import KEPT
from scheduler_extender.state.members import Member, as_member
from scheduler_extender.state.node import NodeFacts, resource_of
from scheduler_extender.state.pods import PodRecord, time_text
from scheduler_extender.verbs.turns import LOOKS_EVERY, Turns
from scheduler_extender.wire import BindingArgs
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.mig import served_devices
from topology.core.placement import IN_PROGRESS, Reason, Rejection, Verdict
from topology.core.requests import GpuRequest

T = TypeVar("T")

TOO_LATE = "the bind waited too long to be begun: kube-scheduler has given it up, and tries again"
STILL_COUNTING = "the places of other groups are still being counted: kube-scheduler tries again"
NO_ANSWER = "the node's kubelet has not answered about the pods before: kube-scheduler tries again"
MAX_SETS_WRITTEN = 16
TRIES = 3
"""How often a bind is decided while the node changes meanwhile; then once with the lock held."""


class BindError(Exception):
    """A bind did not happen, or nobody can tell yet: then it stays in flight, and the message
    says so. kube-scheduler forgets the pod and tries again."""


class InProgressError(BindError):
    """Pods that are on their way keep a node from taking the pod, and their reports may change it:
    it could break one's promise, or they could break the pod's own."""


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; it has to stay in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation.

    ``placement`` is empty where nothing is promised, in shadow.
    ``term`` is the term of the leader in which it was decided, 0 where there is one replica only.
    ``request`` is what the pod asked for when it was decided: a binder that knows the pod to ask
    for something else by now does not write. None where nobody decided.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str
    term: int = 0
    request: GpuRequest | Malformed | None = None


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
    node = NodeName(args.node)
    pod = unbound(cluster, binder, args)
    if pod is None:
        return
    reserved = _awaiting_news(lambda: _reserve(cluster, pod, node, now), node, late, turns)
    if reserved is None:
        return
    try:
        ready = _in_its_turn(cluster, reserved, node, late, turns)
        placed = ready.ours.placed
        time = now() if placed is None else time_text(placed)
        written = json.dumps(_placement(ready, pod, time), separators=(",", ":"))
    except Exception:
        cluster.take_back(reserved.ours, reserved.before)  # nothing has been written
        raise
    try:
        binder.write(Binding(pod.namespace, pod.name, pod.uid, node, written, term, pod.request))
        cluster.tallies.place(ready.decision.verdict if _requires(ready) else "")
    except BindError:
        cluster.take_back(reserved.ours, reserved.before)
        raise
    except BindUnknownError as error:
        raise BindError(str(error)) from error


def _in_its_turn(
    cluster: Cluster,
    reserved: _Reserved,
    node: NodeName,
    late: Callable[[], bool],
    turns: Turns | None,
) -> _Reserved:
    """What is written, once it is the reserved bind's turn. Raises :class:`BindError`."""
    has_turn = turns is None or turns.wait(reserved.ours, late)
    _in_time(late, has_turn=has_turn)
    if turns is None:
        return reserved
    ready = _awaiting_news(
        lambda: _looked_at_again(cluster, reserved),
        node,
        # Who else waits may wait for our turn; but a member of a gang that is refused now leaves
        # the gang bound in part.
        lambda: late() or (turns.anybody_waits(node) and not _in_gang(reserved.ours)),
        turns,
    )
    _in_time(late, has_turn=has_turn)
    return ready


def unbound(cluster: Cluster, binder: Binder, args: BindingArgs) -> PodRecord | None:
    """The pod to bind; None where it is bound to that node already.

    Raises :class:`BindError` where it is gone, or bound to another node.
    """
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
    return pod


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A bind that may be written: the request with the siblings of that moment, what was decided
    and on which facts (without the pod), the pod as reserved, its bind that was in flight before,
    and the GPU sets to write."""

    request: GpuRequest
    decision: Decision
    facts: NodeFacts
    ours: PodRecord
    before: PodRecord | None
    sets: tuple[Mask, ...] | None


def _awaiting_news(
    ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool], turns: Turns | None
) -> T:
    """The answer to ``ask``, asked again at each news of the node while it raises
    :class:`InProgressError`, until that is ``hopeless``.

    kube-scheduler asks filter about the next pod before it sends the bind of the one before. So two
    pods are sent to one node. Until the first one has its devices, a tenth of a second as a rule,
    the second could break its promise, or has none of its own. Refused, it would wait a second and
    more.
    """
    try:
        return ask()
    except InProgressError:
        if turns is None:
            raise
    with turns.news_of(node) as news:
        while True:
            if news is not None:
                news.clear()
            try:
                return ask()
            except InProgressError:
                if news is None or hopeless():
                    turns.gave_up_news()
                    raise
            news.wait(LOOKS_EVERY)


def _refused(rejection: Rejection) -> BindError:
    return (InProgressError if rejection == IN_PROGRESS else BindError)(rejection.reason)


def _refused_here(pod: PodRecord, facts: NodeFacts, rejection: Rejection) -> BindError:
    """The refusal of a node; one that waits for news, where a pod of a gang may hope for it.

    Between a pod's start and the report about it nobody knows which GPUs it holds, so that less is
    promised than before and after. And where GPUs are too few kube-scheduler has counted some that
    we have not: of a pod, maybe, of whose end we shall hear.
    """
    hopes = rejection.kind is Reason.BUSY or _report_is_to_come(facts, resource_of(pod))
    if rejection.resolvable and _in_gang(pod) and hopes:
        return InProgressError(rejection.reason)
    return _refused(rejection)


def _in_gang(pod: PodRecord) -> bool:
    return pod.membership is not None and pod.membership.gang


def _report_is_to_come(facts: NodeFacts, resource: str) -> bool:
    """Whether a pod that is bound here has devices, or gets them, that no report has shown."""
    return any(
        not (pod.ended or pod.uid in facts.reported) and resource_of(pod) == resource
        for pod in facts.pods.values()
    )


def _refused_unreserved(
    pod: PodRecord, rejection: Rejection, decision: Decision, facts: NodeFacts
) -> BindError:
    """The error of a pod that has reserved nothing: nobody waits for it, so it may wait."""
    assessed = decision.assessment
    left_open = assessed is not None and assessed.verdict is Verdict.POSSIBLE
    if left_open and rejection.resolvable and facts.unreported(resource_of(pod)):
        return InProgressError(rejection.reason)
    return _refused_here(pod, facts, rejection)


def _reserve(
    cluster: Cluster, pod: PodRecord, node: NodeName, now: Callable[[], str]
) -> _Reserved | None:
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
            asking = before is not None or facts.keeps_place_for(pod.uid)
            without = facts.without(frozenset({pod.uid})) if asking else facts
            member = _member(cluster, pod, request)
            request = request if member is None else member.request
            request, decision = _answer(cluster, member, without, request)
            if _is_bound(cluster, pod.uid, node):
                return None
            if decision.rejection is not None:
                raise _refused_unreserved(pod, decision.rejection, decision, without)
            starts = _asked_of_group(cluster, member, without, again=before is not None)
            sets = _sets_of(cluster, without, request, decision)
            with cluster.locked():
                now_in_flight = cluster.bind_in_flight(pod.uid)
                if now_in_flight is not before or _is_bound(cluster, pod.uid, node):
                    continue
                if starts is not None and starts != cluster.group_starts:
                    continue
                promised = _promised(pod, request.alone, decision)
                promised = replace(promised, placed=_when(cluster, pod, before, now))
                ours = cluster.reserve(node, promised, seen=facts)
            if ours is not None:
                return _Reserved(request, decision, without, ours, before, sets)
    raise BindError("this node changes all the time; kube-scheduler tries again")


def _when(
    cluster: Cluster, pod: PodRecord, before: PodRecord | None, now: Callable[[], str]
) -> float | None:
    """When a member of a group is placed, and was the first time where it is bound again.

    With the reservation it is settled who has started first; the bind writes it for the replicas
    that come later.
    """
    if before is not None and before.placed is not None:
        return before.placed
    return cluster.time_of_start(now()) if pod.membership is not None else None


def _member(cluster: Cluster, pod: PodRecord, request: GpuRequest) -> Member | None:
    """The pod as a member of its group; None where it is in none."""
    if pod.membership is None:
        return None
    return as_member(cluster, pod.uid, pod.membership, request)


def _answer(
    cluster: Cluster, member: Member | None, facts: NodeFacts, request: GpuRequest
) -> tuple[GpuRequest, Decision]:
    """The node's answer to a bind, and the request that it answers.

    Siblings that may come first refuse a member until one of them is bound. From then on a refusal
    would leave the gang bound in part for sure, and siblings that are still to come are decided
    about beside our reservation. So where something has changed since filter, such as a sibling's
    end, the member takes what it is promised by itself.
    """
    decision = answer_of(cluster, facts, request)
    if decision.rejection == SIBLINGS and member is not None and _is_begun(cluster, member):
        return request.alone, answer_of(cluster, facts, request.alone)
    return request, decision


def _is_begun(cluster: Cluster, member: Member) -> bool:
    """Whether another member of the group is bound and lives, or its bind is in flight."""
    return bool(cluster.standing(member.membership, member.uid).living)


def _asked_of_group(
    cluster: Cluster, member: Member | None, facts: NodeFacts, *, again: bool
) -> int | None:
    """How often a group had started when the pod's group agreed to the node; None where nobody had
    to be asked. ``again`` says that the facts are without a bind of the pod that is in flight.
    Raises :class:`BindError` where the group's domain is another, or cannot hold it: of a gang that
    is bound in part, not even this member.
    """
    if member is None or not member.bound_to_domain:
        return None
    until = cluster.clock() + VERB_SECONDS
    instead = {facts.name: facts} if again else None
    late = partial(_is_late, cluster, until)
    alone = member.membership.gang and _is_begun(cluster, member)
    found = gather(cluster, member, [facts.name], late=late, instead=instead, alone=alone)
    if found.late:
        raise BindError(STILL_COUNTING)
    why = found.rejections.get(facts.name)
    gang = member.membership.gang
    if why is not None and not (
        why is KEPT and gang and kept_elsewhere(cluster, member, facts.name, late)
    ):
        raise _refused(why)
    return found.starts


def _is_late(cluster: Cluster, until: float) -> bool:
    return cluster.clock() >= until


def _in_time(late: Callable[[], bool], *, has_turn: bool) -> None:
    """Raises :class:`BindError` where kube-scheduler has given the bind up by now."""
    if late():
        raise BindError(TOO_LATE if has_turn else NO_ANSWER)


def _looked_at_again(cluster: Cluster, reserved: _Reserved) -> _Reserved:
    """What is written, on the node's facts of now: the bind may have waited for its turn.

    Raises :class:`BindError` where the node takes the pod no more. The verdict that is written is
    never stronger than the reservation. A sibling that has ended meanwhile is to come once more:
    who comes for it is decided about beside our reservation, and is none that may come before it.
    """
    request, node = reserved.request, reserved.ours.node
    if node is None:
        return reserved
    member = _member(cluster, reserved.ours, request.alone)
    if member is not None and member.request.company <= request.company:
        request = member.request
    without = cluster.facts(node).without(frozenset({reserved.ours.uid}))
    if without.key(request.resource) == reserved.facts.key(request.resource):
        return reserved
    request, decision = _answer(cluster, member, without, request)
    if decision.rejection is not None:
        raise _refused_here(reserved.ours, without, decision.rejection)
    if _is_guaranteed(decision) and not _is_guaranteed(reserved.decision):
        return reserved
    sets = _sets_of(cluster, without, request, decision)
    return replace(reserved, request=request, decision=decision, facts=without, sets=sets)


def _requires(reserved: _Reserved) -> bool:
    request = reserved.ours.request
    return isinstance(request, GpuRequest) and request.required


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
    topology, request = facts.topology, reserved.ours.request
    served = (
        topology.resource(request.resource)
        if topology is not None and isinstance(request, GpuRequest)
        else None
    )
    if topology is not None and served is not None and sets:
        indices = served_devices(topology, served).indices
        # MIG instances of several kinds may be on one GPU.
        listed = list(dict.fromkeys(indices(mask) for mask in sets))
        found["sets"] = [list(gpus) for gpus in listed[:MAX_SETS_WRITTEN]]
        if len(listed) > MAX_SETS_WRITTEN:
            found["setsOmitted"] = len(listed) - MAX_SETS_WRITTEN
    return found
