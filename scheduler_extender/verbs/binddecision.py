"""The decision of a bind, and the bind in flight that rests on it.

It is taken on the facts of that moment. It holds only if the node is still in the state that was
decided about when the bind goes in flight: else it is taken again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import within
from scheduler_extender.limits import VERB_SECONDS
from scheduler_extender.state.answers.decision import SIBLINGS, Decision, sets_of
from scheduler_extender.state.asking.askgroup import ask_group
from scheduler_extender.state.asking.byclaims import GONE
from scheduler_extender.state.asking.enquiry import answer
from scheduler_extender.state.asking.members import Member, member_of
from scheduler_extender.state.asking.places import PlaceCounter
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groups import KEPT, GroupsSeen
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord, resource_of, time_text
from scheduler_extender.verbs.binder import NO_RECORD, BindError, InProgressError
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.placement import IN_PROGRESS, Reason, Rejection, Verdict
from topology.core.requests import GpuRequest, gpu_request
from topology.times import seconds_of

STILL_COUNTING = "the places of other groups are still being counted: kube-scheduler tries again"
# How often a bind is decided while the node changes meanwhile; then once with the lock held.
TRIES = 3
NO_CLAIM = "the pod's claim has no devices yet, or is not known yet: kube-scheduler tries again"


@dataclass(frozen=True, slots=True)
class DecidedBind:
    """A bind that may be written."""

    request: GpuRequest  # with the siblings of that moment
    decision: Decision
    facts: NodeFacts  # without the pod: what was decided on
    ours: PodRecord  # the pod, as it is in flight
    before: PodRecord | None  # the pod's bind that was in flight before
    sets: tuple[Mask, ...] | None  # the sets of GPUs to write
    after: NodeFacts  # with the pod
    claims: frozenset[str]  # the pod's, of which the facts know


def decide(
    cluster: Cluster, pod: PodRecord, node: NodeName, now: Callable[[], str]
) -> DecidedBind | None:
    """Decide, and put the bind in flight; None where the pod is bound to this node already.

    A repeated bind is decided anew, without the one in flight counting against it. Where the node
    no longer keeps the promise nothing is written, and the one in flight stays as it was: the
    first write may have been committed, and only the API server can tell.
    """
    request = pod.request
    if isinstance(request, Malformed):
        raise BindError(request.reason)
    newest = cluster.pod(pod.uid) or pod  # that names all its claims
    of_claims = newest.claims and request.required
    if of_claims and not cluster.claims_known(newest, request.count, node):
        raise InProgressError(NO_CLAIM)
    for attempt in range(TRIES + 1):
        last = attempt == TRIES
        deciding: AbstractContextManager[None] = cluster.locked() if last else nullcontext()
        with deciding:
            snapshot = cluster.snapshot()
            facts, before = snapshot.facts(node), snapshot.in_flight.get(pod.uid)
            if before is not None and before.node != node:
                raise BindError(f"a bind of the pod to {before.node} is still in flight")
            asking = pod.uid in facts.pods.in_flight or facts.is_reserved_for(pod.uid)
            request = _counted(facts, pod)
            without = _judged(facts, pod, request, again=asking)
            member = member_of(snapshot, pod.uid, pod.membership, request)
            if member is not None and not facts.by_dra:  # there nobody comes before its claim
                request = member.request
            request, decision = _answer(snapshot, member, without, request)
            if _is_bound(cluster, pod.uid, node):
                return None
            if decision.rejection is not None:
                if _is_veto(facts, decision):
                    raise _vetoed(cluster, without, request, decision.rejection)
                raise _refused_before_flight(pod, decision.rejection, decision, without)
            again = facts.by_dra or before is not None
            asked = _ask_group(snapshot, member, without, again=again)
            sets = _sets_of(snapshot, without, request, decision)
            with cluster.locked():
                now_in_flight = cluster.cache.assumed(pod.uid)
                if now_in_flight is not before or _is_bound(cluster, pod.uid, node):
                    continue
                groups = cluster.snapshot().groups
                if asked and groups.starts != snapshot.groups.starts:
                    continue
                promised = _promised(pod, request.alone, decision)
                promised = replace(promised, placed=_when(groups, pod, before, now))
                ours = cluster.cache.assume(node, promised, seen=facts)
                after = cluster.facts(node)
            if ours is not None:
                claims = facts.claims_of(pod.uid)
                return DecidedBind(request, decision, without, ours, before, sets, after, claims)
    raise BindError("this node changes all the time; kube-scheduler tries again")


def _when(
    groups: GroupsSeen, pod: PodRecord, before: PodRecord | None, now: Callable[[], str]
) -> float | None:
    """When a member of a group is placed, and was the first time where it is bound again.

    It is the time of the clock, or a later one: after the starts of all groups that we know. None
    if the clock's words are no time. From the bind in flight on it is settled which group started
    first; the bind writes the time for the replicas that come later.
    """
    if before is not None and before.placed is not None:
        return before.placed
    said = None if pod.membership is None else seconds_of(now())
    return None if said is None else seconds_of(time_text(groups.after_all_starts(said)))


def decide_again(cluster: Cluster, decided: DecidedBind) -> DecidedBind:
    """What is written, on the node's facts of now: the bind may have waited for its turn.

    Raises :class:`BindError` if the node no longer takes the pod. The verdict that is written is
    never stronger than what was decided first. Of a sibling that has ended meanwhile the
    replacement is decided later, with our bind counted.
    """
    request, node = decided.request, decided.ours.node
    if node is None:
        return decided
    snapshot = cluster.snapshot()
    facts = snapshot.facts(node)
    if facts.by_dra:
        request = _counted(facts, decided.ours)
    member = member_of(snapshot, decided.ours.uid, decided.ours.membership, request.alone)
    if member is None and facts is decided.after and not snapshot.blind:
        return decided
    if member is not None and member.request.company <= request.company:
        request = member.request
    without = _judged(facts, decided.ours, request, again=True)
    decided = replace(decided, claims=facts.claims_of(decided.ours.uid))
    same = without.key(request.resource) == decided.facts.key(request.resource)
    if same and request.count == decided.request.count and not snapshot.blind:
        return decided
    request, decision = _answer(snapshot, member, without, request)
    if decision.rejection is not None:
        if _is_veto(facts, decision):
            raise _vetoed(cluster, without, request, decision.rejection)
        raise _refused_here(decided.ours, without, decision.rejection)
    if _is_guaranteed(decision) and not _is_guaranteed(decided.decision):
        return decided
    sets = _sets_of(snapshot, without, request, decision)
    return replace(decided, request=request, decision=decision, facts=without, sets=sets)


def _counted(facts: NodeFacts, pod: PodRecord) -> GpuRequest:
    """What a pod asks for; under DRA all that its claims have, where that is more: those of its own
    beside a number, too, and one of an earlier try that is not gone yet."""
    request = pod.request
    assert isinstance(request, GpuRequest)  # noqa: S101 (the caller looked)
    if not request.required:
        return request
    devices = facts.seen(pod.uid, pod.namespace, pod.claims) if facts.by_dra else ()
    more = len(devices) > request.count or not request.count
    return gpu_request(len(devices), request.constraints) if more else request


def _judged(facts: NodeFacts, pod: PodRecord, request: GpuRequest, *, again: bool) -> NodeFacts:
    """The facts on which a pod is judged: without itself, where its bind is in flight or a place is
    kept for it; where claims say who has what, with the devices of its own. Raises
    :class:`InProgressError` while its claim is not known."""
    claims = pod.by_claim or not request.count
    if claims and request.required and not facts.by_dra:
        raise InProgressError(NO_RECORD)  # the node has moved to DRA, and its agent has not seen it
    devices = facts.seen(pod.uid, pod.namespace, pod.claims) if facts.by_dra else ()
    if request.required and facts.lacks(devices):
        raise InProgressError(GONE.reason)  # it may be new, and its ResourceSlice on its way
    if facts.by_dra and request.required and len(devices) < max(1, request.count):
        raise InProgressError(NO_CLAIM)
    if devices:
        without = facts.as_claimed(pod.uid, devices)
    else:
        without = facts.without(frozenset({pod.uid})) if again else facts
    return without.yielding_to(pod.standing.priority, pod.gang)


def _is_veto(facts: NodeFacts, decision: Decision) -> bool:
    """Whether a pod is refused for the devices of its claim, and not for others' sake."""
    assessed = decision.assessment
    return facts.by_dra and assessed is not None and assessed.rejection == decision.rejection


def _vetoed(
    cluster: Cluster, facts: NodeFacts, request: GpuRequest, rejection: Rejection
) -> BindError:
    """The error for a pod whose claim has other devices than it requires."""
    cluster.tallies.veto()
    published = () if facts.topology is None else facts.topology.allocator.published
    devices = ", ".join(map(str, published[: request.effective_count]))
    return BindError(f"its claim has the GPUs {devices}: {rejection.reason}")


def _refused(rejection: Rejection) -> BindError:
    return (InProgressError if rejection == IN_PROGRESS else BindError)(rejection.reason)


def _refused_here(pod: PodRecord, facts: NodeFacts, rejection: Rejection) -> BindError:
    """The refusal of a node; one that waits for news, where a pod of a gang may hope for it.

    Between a pod's start and the report about it nobody knows which GPUs it holds, so that less is
    promised than before and after. And where GPUs are too few kube-scheduler has counted some that
    we have not: of a pod, maybe, of whose end we shall hear.
    """
    hopes = rejection.kind is Reason.BUSY or any(  # a report is to come
        not (each.ended or each.uid in facts.pods.reported)
        and resource_of(each) == resource_of(pod)
        for each in facts.pods.bound.values()
    )
    if rejection.resolvable and pod.in_gang and hopes:
        return InProgressError(rejection.reason)
    return _refused(rejection)


def _refused_before_flight(
    pod: PodRecord, rejection: Rejection, decision: Decision, facts: NodeFacts
) -> BindError:
    """The error for a pod whose bind is not in flight: no bind waits for it, so it may wait for a
    report."""
    assessed = decision.assessment
    left_open = assessed is not None and assessed.verdict is Verdict.POSSIBLE
    if left_open and rejection.resolvable and facts.unreported(resource_of(pod)):
        return InProgressError(rejection.reason)
    return _refused_here(pod, facts, rejection)


def _answer(
    snapshot: Snapshot, member: Member | None, facts: NodeFacts, request: GpuRequest
) -> tuple[GpuRequest, Decision]:
    """The node's answer to a bind, and the request that it answers.

    A member is refused where siblings could come first, until one of them is bound. From then on a
    refusal would surely leave the gang bound in part, and the siblings that are still to come are
    decided with our bind counted. So where something has changed since filter, such as a sibling's
    end, the member takes what it is promised by itself.
    """
    decision = answer(snapshot, facts, request)
    if decision.rejection == SIBLINGS and member is not None and _is_begun(snapshot, member):
        return request.alone, answer(snapshot, facts, request.alone)
    return request, decision


def _is_begun(snapshot: Snapshot, member: Member) -> bool:
    """Whether another member of the group is bound and lives, or its bind is in flight, or devices
    have been chosen for it (DRA)."""
    return bool(snapshot.standing(member.membership, member.uid).living)


def _ask_group(snapshot: Snapshot, member: Member | None, facts: NodeFacts, *, again: bool) -> bool:
    """Whether the pod's group had to be asked. ``again`` says that the facts are without a bind of
    the pod that is in flight, or a claim of its own. Under DRA all members of a gang have claims by
    now, so none is still to come.

    Raises :class:`BindError` where the group's domain is another, or cannot hold it: of a gang that
    is bound in part, not even this member.
    """
    if member is None or not member.minds_groups:
        return False
    if member.membership.domain is None:
        return False  # filter has kept the gang off: to refuse one now may leave it bound in part
    deadline = within(snapshot.parts.clock, VERB_SECONDS)
    gang = member.membership.gang
    alone = gang and (facts.by_dra or _is_begun(snapshot, member))
    member = replace(member, alone=alone)
    then = snapshot.with_facts([facts]) if again else snapshot
    group = ask_group(then, member, [facts.name], deadline)
    if group.late:
        raise BindError(STILL_COUNTING)
    why = group.rejections.get(facts.name)
    if why is KEPT and gang:
        # Places are kept where most are free, so what a gang's first members take may move those of
        # another group to a node that its scheduler has chosen for a later member. The gang is to
        # be bound whole, so they move on, if they can.
        counter = PlaceCounter(snapshot, deadline)
        if counter.kept_elsewhere(facts.name, member.membership.group):
            why = None
    if why is not None:
        raise _refused(why)
    return True


def _is_guaranteed(decision: Decision) -> bool:
    assessed = decision.assessment
    return assessed is not None and assessed.verdict is Verdict.GUARANTEED


def _sets_of(
    snapshot: Snapshot, facts: NodeFacts, request: GpuRequest, decision: Decision
) -> tuple[Mask, ...] | None:
    """The sets to write; a fault of ours here costs nobody the bind."""
    try:
        return sets_of(facts, request, decision)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        snapshot.parts.faults.note(facts.name, error)
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
