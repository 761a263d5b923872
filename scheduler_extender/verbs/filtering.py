"""filter: which of the offered nodes can keep the pod's request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from scheduler_extender.annotations import Malformed, OfClaims, managed_among, of_claims, parse
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.answers.decision import HAD_CLAIM, UNDECIDED
from scheduler_extender.state.answers.remembered import State
from scheduler_extender.state.asking.askgroup import ask_group
from scheduler_extender.state.asking.byclaims import ask_by_claims
from scheduler_extender.state.asking.enquiry import Answers, answer, ask
from scheduler_extender.state.asking.members import Member, member_of
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import FilterResult, Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import NO_REPORT, Reason, Rejection
from topology.core.requests import GpuRequest

STILL_WORKING = "gpu-topology extender is still working out the nodes for this pod"
IN_FLIGHT = Rejection(
    "a bind of the pod to another node may still be written", False, Reason.IN_PROGRESS
)


@dataclass(frozen=True, slots=True)
class Filtered:
    """filter's answer: the nodes that pass, and the others by the reason why they do not.

    With an ``error`` nothing is told of the nodes: kube-scheduler tries the pod again.
    """

    passed: list[str]
    refused: dict[Rejection, list[str]] = field(default_factory=dict)
    error: str = ""

    def result(self) -> FilterResult:
        """The answer as kube-scheduler reads it."""
        if self.error:
            return FilterResult(node_names=[], error=self.error)
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for why, names in self.refused.items():
            by_name = failed if why.resolvable else unresolvable
            by_name.update(dict.fromkeys(names, why.reason))
        return FilterResult(node_names=self.passed, failed=failed, unresolvable=unresolvable)


def filter_nodes(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> FilterResult:
    """Which of the offered nodes can keep the pod's request: :func:`filtered` on the wire."""
    answered = filtered(cluster.snapshot(deadline), pod, names, deadline)
    cluster.tallies.reject(answered.refused)
    return answered.result()


def filtered(
    snapshot: Snapshot,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> Filtered:
    """Which of the offered nodes can keep the pod's request.

    An annotation that cannot be read refuses every node with the same reason; a pod without GPUs
    passes everywhere. Nodes that are not worked out by the ``deadline`` are answered as undecided.
    If one of them is refused for that and no other takes the pod, the whole answer is the error
    :data:`STILL_WORKING`: then kube-scheduler asks again soon, when more is worked out, and evicts
    nobody meanwhile. The event loop holds the cluster's lock, and is told with
    :class:`.NotAtOnceError` where the answer would take too long for it.
    """
    managed = snapshot.settings.managed
    if had_claim(pod, managed):
        return _of_claimed(snapshot, pod, names, deadline)
    asks = parse(pod, managed) or of_claims(pod, managed)
    if asks is None:
        return Filtered(list(names))
    if isinstance(asks, Malformed):
        why = Rejection(asks.reason, False, Reason.MALFORMED)
        return Filtered([], {why: list(names)})
    if isinstance(asks, OfClaims):
        return _by_claims(snapshot, PodUid(pod.metadata.uid), asks, names, deadline)
    uid, priority = PodUid(pod.metadata.uid), pod.spec.priority or 0
    member = member_of(snapshot, uid, asks.membership, asks.request)
    request = asks.request if member is None else member.request
    in_flight = snapshot.in_flight.get(uid)
    if in_flight is not None:
        deadline.need_quick(quick=False)
        return _only_where_in_flight(snapshot, in_flight, request, names)
    gang = member.gang if member is not None else None
    apart = snapshot.asked_apart(uid, priority, gang)
    deadline.need_quick(quick=apart.isdisjoint(names))
    for_this_pod = snapshot.with_facts(
        snapshot.facts(name).without(frozenset({uid})).yielding_to(priority, gang)
        for name in apart.intersection(names)
    )
    answered = _result(request, ask(for_this_pod, request, names, deadline))
    if member is None or not member.minds_groups or not answered.passed:
        return answered
    return _with_group(snapshot, member, answered, deadline)


def had_claim(pod: Pod, managed: tuple[str, ...]) -> bool:
    """Whether a pod's status names a claim that was made for ``managed`` resources."""
    made = pod.status.extended_resource_claim_status
    mapped = made.request_mappings if made is not None else None
    return bool(mapped and managed_among([each.resource_name for each in mapped], managed))


def _of_claimed(snapshot: Snapshot, pod: Pod, names: Sequence[str], deadline: Deadline) -> Filtered:
    """The answer to a pod that had a claim (:meth:`.NodeFacts.is_open_to`)."""
    deadline.need_quick(quick=False)
    status = msgspec.structs.replace(pod.status, extended_resource_claim_status=None)
    others: list[str] = []
    by_plugin: list[str] = []
    for name in names:
        (by_plugin if snapshot.facts(NodeName(name)).by_plugin else others).append(name)
    found = filtered(snapshot, msgspec.structs.replace(pod, status=status), others, deadline)
    return replace(found, refused={**found.refused, HAD_CLAIM: by_plugin})


def _with_group(
    snapshot: Snapshot, member: Member, result: Filtered, deadline: Deadline
) -> Filtered:
    """The result without the nodes to which the pod's group does not let it go."""
    group = ask_group(
        snapshot,
        member,
        result.passed,
        deadline,
        direction=snapshot.direction_of(member.membership),
    )
    passed = group.alike.pop(None, [])
    if group.late and not passed:
        return Filtered([], error=STILL_WORKING)
    snapshot.note_direction(member.membership, group.best if passed else None)
    for why, refused in group.alike.items():
        if why is not None:
            result.refused.setdefault(why, []).extend(refused)
    return Filtered(passed, result.refused)


def _by_claims(
    snapshot: Snapshot, uid: PodUid, wanted: OfClaims, names: Sequence[str], deadline: Deadline
) -> Filtered:
    """The answer to a pod with claims of its own. A node passes where nobody can say what they get:
    bind has the proof."""
    in_flight = snapshot.in_flight.get(uid)
    elsewhere = [name for name in names if in_flight is not None and name != in_flight.node]
    names = [name for name in names if in_flight is None or name == in_flight.node]
    found = ask_by_claims(snapshot, uid, wanted, names, deadline)
    found.unknown.update(dict.fromkeys(elsewhere, IN_FLIGHT))
    whole, late = Filtered([]), bool(found.late)
    for name, unknown in found.unknown.items():
        undecided = unknown.kind is Reason.UNDECIDED
        _put(whole, name, None if undecided else replace(unknown, resolvable=True))
    for request, answers, alike in found.answered:
        result = _result(request, answers)
        late = late or bool(result.error)
        whole.passed.extend(name for first in result.passed for name in alike[first])
        for why, refused in result.refused.items():
            # kube-scheduler frees a claim that has devices where its node is refused so.
            into = whole.refused.setdefault(replace(why, resolvable=True), [])
            into.extend(name for first in refused for name in alike[first])
    if late and not whole.passed:
        return Filtered([], error=STILL_WORKING)
    if found.late:
        whole.refused.setdefault(UNDECIDED, []).extend(found.late)
    return whole


def _result(request: GpuRequest, answered: Answers) -> Filtered:
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
    return Filtered(passed, {why: names for why, names in alike.items() if why is not None})


def _result_one_by_one(request: GpuRequest, answered: Answers) -> Filtered:
    """The answer where some nodes are unknown or undecided."""
    result = Filtered([])
    resolvable: set[str] = set()
    for name, decision in answered.each():
        rejection = decision.rejection if decision is not None else None
        if decision is None and request.required:
            rejection = NO_REPORT  # nobody told us of this node
        _put(result, name, rejection)
        if rejection is not None and rejection.resolvable:
            resolvable.add(name)
    if answered.late & resolvable and not result.passed:
        return Filtered([], error=STILL_WORKING)
    return result


def _put(result: Filtered, name: str, why: Rejection | None) -> None:
    """Put one node into the answer."""
    (result.passed if why is None else result.refused.setdefault(why, [])).append(name)


def _only_where_in_flight(
    snapshot: Snapshot, in_flight: PodRecord, request: GpuRequest, names: Sequence[str]
) -> Filtered:
    """The answer for a pod whose bind is in flight: it may still be written, so no other node may
    take the pod. On the node itself the pod's own bind does not count against it.
    """
    here = NodeName(in_flight.node or "")
    result = Filtered([])
    for name in names:
        why: Rejection | None = IN_FLIGHT
        if name == here:
            without = snapshot.facts(here).without(frozenset({in_flight.uid}))
            why = answer(snapshot, without, request).rejection
        _put(result, name, why)
    return result
