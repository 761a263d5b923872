"""Asks nodes a :class:`.Question`, rule by rule.

1. Rules about the pod: its request cannot be read.
2. Rules about a node's name: the pod is assumed on another node, its status names a claim
   that only a kubelet with DRA can serve, or the node has no GPUs.
3. The node's info for this question: without the pod itself and the pods that count as gone,
   and with the devices that the pod's own claims have or will have.
4. The node's own answer on this info (:func:`.decision.decide`), cached by equivalence class.
5. On top of these answers: stale watches, and ``--refusals possible``.
6. Rules about the set of eligible nodes: the pod's group. A node that is ineligible
   to the pod by its selector, a taint or a cordon is asked for its own answer, but no rule of
   the set counts it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.claims import ask_by_claims, counted
from scheduler_extender.framework.equivalence import NodeAnswers, ask
from scheduler_extender.framework.members import member_of
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.setrules import NAME_RULES, SET_RULES
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import NO_REPORT, Reason, Rejection
from topology.core.requests import gpu_request


def evaluate(
    snapshot: Snapshot,
    question: Question,
    names: Sequence[str] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Results:
    """Return what these nodes, or all nodes, answer in the state of ``snapshot``.

    Answers that are not worked out by the ``deadline`` are undecided, and their nodes are among the
    results' ``late``. For a bind the deadline does not apply to the node's own answer, since
    kube-scheduler would start again. The group of the pod has the time of a verb; after that the
    bind is rejected.
    """
    names = [info.name for info in snapshot.nodes] if names is None else names
    pod, request = question.pod, question.request or question.pod.request
    if isinstance(request, Malformed):
        why = Rejection(request.reason, False, Reason.MALFORMED)
        return Results(question, request.holds or gpu_request(0), snapshot, {why: list(names)})
    rejected, candidates = rejected_by_name(snapshot, question, names)
    eligible, ineligible = _by_eligibility(snapshot, question, rejected, candidates, deadline)
    binds = question.purpose is Purpose.BIND
    info = snapshot.node_info(NodeName(names[0])) if binds else None
    allocated = info is not None and info.allocates_before_bind
    if info is not None and allocated:
        request = counted(info, pod, request)
    member = member_of(snapshot, pod, request)
    if member is not None and allocated:
        # No peer comes before a pod that has its devices, and all members of its gang have theirs.
        member = replace(member, as_single_pod=member.group_ref.gang)
    elif member is not None:
        # When a bind is decided again, peers that have come since are not expected a second time.
        known = question.request if binds else None
        fewer = known is not None and known.pods_before < member.request.pods_before
        request = known if known is not None and fewer else member.request
    asked = snapshot.with_node_infos(info_for(snapshot, question, candidates))
    results = Results(question, request, asked, rejected, frozenset(ineligible), member=member)
    results.late = frozenset(rejected.get(UNDECIDED, ()))
    of_set = [found for rule in SET_RULES if (found := rule(question, member))]
    for group in filter(None, (eligible, ineligible)):
        for answers in _asked(results, group, deadline):
            results.answers.append(answers)
            results.late |= answers.late
            alike = {} if question.scores else _alike(answers)
            for sort_out in of_set if group is eligible else ():
                sort_out(results, alike, deadline)
            for reason, those in alike.items():
                if those:
                    results.by_reason.setdefault(reason, []).extend(those)
    return results


def _asked(results: Results, names: Sequence[str], deadline: Deadline) -> Iterator[NodeAnswers]:
    """Yield the nodes' own answers, together for nodes that get the same request."""
    question, snapshot, request = results.question, results.asked, results.request
    binds = question.purpose is Purpose.BIND
    # Questions of people and binds are not repeated soon, so their answers are not cached.
    scores, stores = question.scores, not binds and question.purpose is not Purpose.EXPLAIN
    if question.pod.claim_constraints is not None and not binds:
        yield from ask_by_claims(results, names, deadline)
        return
    answers = ask(snapshot, request, names, deadline, scores=scores, stores=stores)
    rejected_here = binds and any(each.rejection for each in answers.decisions.values())
    member = results.member
    if rejected_here and request.pods_before and member is not None and member.is_begun(snapshot):
        # A rejection would surely leave the gang bound in part. The peers that are still to come
        # are decided with this bind counted.
        results.request = request.without_peers
        answers = ask(snapshot, request.without_peers, names, stores=False)
    yield answers


def rejected_by_name(
    snapshot: Snapshot, question: Question, names: Sequence[str]
) -> tuple[dict[Rejection | None, list[str]], Sequence[str]]:
    """Return the nodes that are rejected before they are evaluated, and the other nodes."""
    rules = [found for rule in NAME_RULES if (found := rule(question, snapshot))]
    if not rules:
        return {}, names
    rejected: dict[Rejection | None, list[str]] = {}
    candidates = []
    for name in names:
        info = snapshot.node_info(NodeName(name))
        why = next(filter(None, (rejects(info) for rejects in rules)), None)
        if why is None:
            candidates.append(name)
        else:
            rejected.setdefault(why, []).append(name)
    return rejected, candidates


def may_go(snapshot: Snapshot, pod: PodRecord) -> Callable[[NodeInfo], bool]:
    """Return a test of whether kube-scheduler may send a pod to a node and no name rule rejects it.

    :class:`.Trials` needs it, since it evaluates nodes as they would be.
    """
    question = Question(pod, Purpose.PREEMPT)
    rules = [found for rule in NAME_RULES if (found := rule(question, snapshot))]
    attributes = pod.attributes
    return lambda info: (
        not (
            info.bar(attributes.eligible_nodes, attributes.requests)
            or any(rejects(info) for rejects in rules)
        )
    )


def info_for(
    snapshot: Snapshot, question: Question, names: Sequence[str] = ()
) -> Iterator[NodeInfo]:
    """Yield the nodes whose info for this question differs from the snapshot's."""
    pod = question.pod
    assumed = snapshot.assumed.get(pod.uid)
    apart = (
        snapshot.evaluated_apart(pod.uid, pod.attributes.priority, pod.gang) | question.gone.keys()
    )
    on = {pod.node, None if assumed is None else assumed.node}
    apart |= {name for name in on if name is not None}
    if question.purpose is Purpose.BIND:
        apart |= {NodeName(name) for name in names}  # the pod's claims have their devices
    for name in apart & snapshot.by_name.keys():
        yield question.on(snapshot.node_info(name))


def _by_eligibility(
    snapshot: Snapshot,
    question: Question,
    rejected: dict[Rejection | None, list[str]],
    names: Sequence[str],
    deadline: Deadline,
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the nodes to which kube-scheduler may send the pod, and the ineligible ones.

    The ineligible ones are returned only for questions of people. Nodes for which there is no time
    go into ``rejected`` as undecided.
    """
    if question.purpose.offered:
        return names, ()
    attributes = question.pod.attributes
    eligible, ineligible = list[str](), list[str]()
    for position, name in enumerate(names):
        if deadline.passed():
            rejected[UNDECIDED] = [*names[position:]]
            break
        barred = snapshot.node_info(NodeName(name)).bar(
            attributes.eligible_nodes, attributes.requests
        )
        (ineligible if barred else eligible).append(name)
    return eligible, ineligible if question.purpose is Purpose.EXPLAIN else ()


def _alike(answers: NodeAnswers) -> dict[Rejection | None, list[str]]:
    """Return the nodes by their own answer. The work for each node is one look-up by class."""
    alike: dict[Rejection | None, list[str]] = {}
    if answers.decisions.keys() >= answers.distinct:
        lists: dict[ClassId | None, list[str]] = {
            class_id: alike.setdefault(decision.rejection, [])
            for class_id, decision in answers.decisions.items()
        }
        # There may be thousands of nodes, so the loop over them runs inside map and deque, in C.
        each = map(list.append, map(lists.__getitem__, answers.class_ids), answers.names)
        deque(each, maxlen=0)
        return alike
    unknown = NO_REPORT if answers.request.required else None  # no agent has reported such a node
    for name, decision in answers.each():
        why = unknown if decision is None else decision.rejection
        alike.setdefault(why, []).append(name)
    return alike
