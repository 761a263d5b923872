"""What nodes answer to a pod, for people: the verdict, the score, and why there is no promise.

Filter says why a node refuses a pod. People also ask why a node that would take it promises
nothing: that is what it would say to the same pod if its constraints were required.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import OfClaims
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.membership import Membership
from scheduler_extender.state.answers.capacity import ANY_GPU
from scheduler_extender.state.answers.decision import (
    HAD_CLAIM,
    UNDECIDED,
    Decision,
    sick_among,
    unconstrained,
)
from scheduler_extender.state.answers.remembered import State
from scheduler_extender.state.asking.askgroup import ask_group
from scheduler_extender.state.asking.byclaims import ask_by_claims
from scheduler_extender.state.asking.enquiry import answer, ask, scores
from scheduler_extender.state.asking.members import member_of
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import BARE, Standing
from scheduler_extender.verbs.prioritizing import Asking, scored
from topology.core.devices import NodeName, PodUid
from topology.core.graph import names_strange_nodes
from topology.core.placement import (
    ALL_SICK,
    NOT_SERVED,
    SICK,
    Assessment,
    Reason,
    Rejection,
    Verdict,
)
from topology.core.requests import GpuRequest, Policy


@dataclass(frozen=True, slots=True)
class Answer:
    """One node's answer."""

    facts: NodeFacts  # those that it was worked out on
    state: State | None  # equal for nodes that answer one request alike
    decision: Decision
    score: int | None  # None on a node that refuses, is closed, or has the pod already
    doubt: Rejection | None  # why a node that takes the pod promises it nothing

    # What the node may hand out, None for nothing. If the pod only prefers what the hardware never
    # can, it is what the same pod would get without its constraints.
    outcomes: Assessment | None

    # Fields of the node's record without which the pod's exclusive CPUs and memory do not count.
    lacks: tuple[str, ...] = ()
    bar: str = ""  # what keeps kube-scheduler from sending the pod here, whatever we answer

    @property
    def node(self) -> NodeName:
        """The node's name."""
        return self.facts.name

    @property
    def reason(self) -> str:
        """Why the node refuses the pod; empty if it does not."""
        return self.decision.rejection.reason if self.decision.rejection else ""

    @property
    def note(self) -> str:
        """Why a node that takes the pod promises it nothing; empty on other nodes."""
        return self.doubt.reason if self.doubt else ""

    @property
    def kind(self) -> Reason | None:
        """The reason of a refusal or a doubt, without details; None if the node promises."""
        why = self.decision.rejection or self.doubt
        return why.kind if why is not None else None

    @property
    def verdict(self) -> str:
        """The verdict's word; ``unknown`` without a usable record."""
        never = self.kind in (Reason.NOT_SERVED, Reason.SPLIT)
        return "never" if never else self.decision.verdict

    @property
    def closed(self) -> bool:
        """Whether kube-scheduler will not send the pod here."""
        return bool(self.bar)

    @property
    def passes(self) -> bool:
        """Whether filter lets the pod pass here."""
        return self.decision.rejection is None

    @property
    def may_come(self) -> bool:
        """Whether the pod may come here: filter lets it pass, and kube-scheduler may send it."""
        return self.passes and not self.closed

    @property
    def resolvable(self) -> bool | None:
        """Whether evictions may turn a refusal; None without a refusal."""
        return None if self.decision.rejection is None else self.decision.rejection.resolvable

    @property
    def promises(self) -> bool:
        """Whether all that the pod asks for is promised."""
        return self.passes and self.doubt is None


def answers(
    snapshot: Snapshot,
    request: GpuRequest,
    *,
    asking: PodUid | None = None,
    standing: Standing = BARE,
    membership: Membership | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> list[Answer]:
    """Every node's answer at the moment of ``snapshot``, by name.

    The pod that is ``asking`` may be on a node already, bound or in flight, and is not counted
    against itself: this node answers as it did before the pod came, and has no score. The others
    have prioritize's scores. A reservation that others mind does not count for a pod of higher
    priority, or of the same gang (:meth:`.NodeFacts.yields_to`). ``standing`` is the pod's: nodes
    that are none of its destinations are closed to it, and have no score. ``membership`` is the
    pod's, too; its group is asked as it is now. After the ``deadline`` nodes are not asked any
    more: those that are left over are undecided, and none of them is called closed.
    """
    rows = _going(
        _answers(snapshot, standing, request, asking, membership, deadline), standing, deadline
    )
    names = [row.node for row in rows if row.may_come and not _is_on(asking, row.node, snapshot)]
    pod = Asking(asking or PodUid(""), standing.priority, request, membership, counts=False)
    by_node = scored(snapshot, pod, names, deadline)
    of = dict(zip(names, by_node, strict=True))
    return [replace(row, score=of.get(row.node)) for row in rows]


def _going(rows: Sequence[Answer], standing: Standing, deadline: Deadline) -> list[Answer]:
    return [
        replace(row, bar=bar, score=None)
        if not deadline.passed() and (bar := row.facts.bar(standing.destinations, standing.asks))
        else row
        for row in rows
    ]


def answers_to(
    snapshot: Snapshot, pod: PodRecord, deadline: Deadline = NO_DEADLINE
) -> list[Answer]:
    """Every node's :func:`answers` to a pod of the cluster that asks for what can be read."""
    assert isinstance(pod.request, GpuRequest)  # noqa: S101 (the caller looked)
    claims = pod.of_claims
    if claims is not None:
        return _going(_by_claims(snapshot, pod.uid, claims, deadline), pod.standing, deadline)
    rows = answers(
        snapshot,
        pod.request,
        asking=pod.uid,
        standing=pod.standing,
        membership=pod.membership,
        deadline=deadline,
    )
    if not pod.by_claim or pod.node is not None:
        return rows
    had = Decision(HAD_CLAIM)  # as filter has it
    return [
        replace(row, decision=had, score=None, doubt=None, outcomes=None)
        if row.facts.by_plugin
        else row
        for row in rows
    ]


def _by_claims(
    snapshot: Snapshot, uid: PodUid, wanted: OfClaims, deadline: Deadline
) -> list[Answer]:
    """Every node's answer to a pod with claims of its own."""
    names = [facts.name for facts in snapshot.nodes]
    found = ask_by_claims(snapshot, uid, wanted, names, deadline, scores=True)
    rows: dict[str, Answer] = {}
    for name, why in found.unknown.items():
        doubt = why if why.kind is Reason.UNDECIDED else None
        decision = Decision(None if doubt else why)
        rows[name] = Answer(snapshot.facts(NodeName(name)), None, decision, None, doubt, None)
    for request, asked, alike in found.answered:
        for (first, decided), score in zip(asked.each(), scores(request, asked), strict=True):
            decision = decided or Decision(UNDECIDED)
            told = None if decision.rejection else score
            for name in alike[first]:
                facts = snapshot.facts(NodeName(name)).as_claimed(uid, found.devices[name])
                rows[name] = Answer(facts, None, decision, told, None, decision.assessment)
    late = Decision(UNDECIDED)
    return [
        rows.get(facts.name) or Answer(facts, None, late, None, None, None)
        for facts in snapshot.nodes
    ]


def _answers(
    snapshot: Snapshot,
    standing: Standing,
    request: GpuRequest,
    asking: PodUid | None,
    membership: Membership | None,
    deadline: Deadline,
) -> list[Answer]:
    gang = None if membership is None else membership.as_gang
    priority = standing.priority
    yielding = snapshot.with_facts(facts.yielding_to(priority, gang) for facts in snapshot.nodes)
    member = member_of(snapshot, asking or PodUid(""), membership, request)
    if member is None:
        return _each_for_itself(yielding, request, asking, deadline)
    rows = _each_for_itself(yielding, member.request, asking, deadline)
    if not member.minds_groups:
        return rows
    on = {facts.name for facts in snapshot.nodes if counts_on(asking, facts)}
    without = snapshot.with_facts(row.facts for row in rows if row.node in on)
    going = standing.destinations  # kube-scheduler offers filter no others
    passing = [row.node for row in rows if row.passes and row.facts.is_one_of(going)]
    direction = snapshot.direction_of(member.membership)
    found = ask_group(without, member, passing, deadline, direction=direction)
    refused = dict.fromkeys(passing, UNDECIDED) if found.late else found.rejections
    return [
        replace(
            row,
            decision=Decision(refused[row.node], row.decision.assessment),
            doubt=None,
        )
        if row.node in refused
        else row
        for row in rows
    ]


def _each_for_itself(
    snapshot: Snapshot,
    request: GpuRequest,
    asking: PodUid | None,
    deadline: Deadline,
) -> list[Answer]:
    """Every node's own answer, without scores."""
    strict = _strict(request)
    asked = ask(snapshot, request, None, deadline, counts=False)
    stern = ask(snapshot, strict, None, deadline, counts=False)
    handed_out: dict[State, Assessment | None] = {}
    rows = []
    for facts, state, (_, decision), (_, told) in zip(
        snapshot.nodes, asked.states, asked.each(), stern.each(), strict=True
    ):
        assert decision is not None and told is not None  # noqa: S101, PT018 (all have been asked)
        if asking is not None and counts_on(asking, facts):  # as if the pod were not there
            facts, state = facts.without(frozenset({asking})), None
            decision = answer(snapshot, facts, request, deadline)
            told = answer(snapshot, facts, strict, deadline)
            outcomes = _outcomes(snapshot, facts, request, decision, deadline)
        elif state is None:
            outcomes = None
        else:
            if state not in handed_out:
                handed_out[state] = _outcomes(snapshot, facts, request, decision, deadline)
            outcomes = handed_out[state]
        if serves_nothing(facts):  # kube-scheduler counts no GPUs there, and does not ask filter
            decision = Decision(NOT_SERVED)
        refused = decision.rejection is not None
        rows.append(
            Answer(
                facts,
                state,
                decision,
                None,
                None if refused else _doubt(facts, request, told.rejection, outcomes),
                outcomes,
                lacks(facts, request),
            )
        )
    return rows


def _doubt(
    facts: NodeFacts, request: GpuRequest, why: Rejection | None, outcomes: Assessment | None
) -> Rejection | None:
    """Why a node that takes the pod promises it nothing; it names GPUs that are sick."""
    if why not in (SICK, ALL_SICK):
        return why
    named = sick_among(facts, request, outcomes)
    return replace(why, reason=named) if named else why


def counts_on(asking: PodUid | None, facts: NodeFacts) -> bool:
    """Whether the pod that is asking counts on a node already."""
    if asking is None:
        return False
    pods = facts.pods
    return asking in pods.bound or asking in pods.in_flight or facts.is_reserved_for(asking)


def _is_on(asking: PodUid | None, node: NodeName, snapshot: Snapshot) -> bool:
    """Whether the pod that is asking is bound to a node, or a bind to it is in flight."""
    pods = snapshot.facts(node).pods
    return asking in pods.bound or asking in pods.in_flight


def as_asked_by(pod: PodRecord, facts: NodeFacts) -> NodeFacts:
    """A node's facts for a pod that asks: without itself, and without a place that yields to it."""
    without = facts.without(frozenset({pod.uid})) if counts_on(pod.uid, facts) else facts
    return without.yielding_to(pod.standing.priority, pod.gang)


def lacks(facts: NodeFacts, request: GpuRequest) -> tuple[str, ...]:
    """The fields of a node's record without which the pod's exclusive CPUs and memory do not count.

    None where the pod has no exclusive ones there.
    """
    topology, report = facts.topology, facts.report
    if topology is None or report is None or facts.record.problem is not None:
        return ()
    allocator, exclusive = topology.allocator, request.exclusive
    cpus = exclusive.cpus and allocator.cpu_manager_policy != "none"
    memory = exclusive.memory and allocator.memory_manager_policy != "None"
    if not cpus and not memory:
        return ()
    aligned = allocator.topology_manager_policy != "none"
    has = {
        "spec.allocator.cpuManagerPolicy": allocator.cpu_manager_policy is not None,
        "spec.allocator.memoryManagerPolicy": allocator.memory_manager_policy is not None,
        **dict.fromkeys(() if allocator.numa else allocator.numa_lacks, False),
        "spec.numaNodes[].distances": not aligned or allocator.numa_distances is not None,
        "spec.devices[].topologyNodes": not aligned
        or (allocator.sees_topology and not names_strange_nodes(topology.shape, allocator)),
        "status.exclusive": report.holdings is not None,
    }
    return tuple(field for field, there in has.items() if not there)


def serves_nothing(facts: NodeFacts) -> bool:
    """Whether a node has no GPUs as far as anybody says: its Node object advertises none, and no
    agent has written a record of it."""
    node, record = facts.node_object, facts.record
    return node.exists and node.dra_only and record.topology is None and record.problem is None


def _outcomes(
    snapshot: Snapshot,
    facts: NodeFacts,
    request: GpuRequest,
    decision: Decision,
    deadline: Deadline,
) -> Assessment | None:
    """What the node may hand out to the pod, as far as there is time; see :class:`Answer`."""
    assessed = decision.assessment
    if assessed is None or not assessed.fits:
        return None
    if assessed.verdict is not Verdict.NEVER:
        return assessed
    if decision.rejection is not None:
        return None
    try:
        with deadline.ends(), deadline.enforced():
            return unconstrained(facts, request)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        snapshot.parts.faults.note(facts.name, error)
    return None


def _strict(request: GpuRequest) -> GpuRequest:
    constraints = ANY_GPU if request.plain else request.constraints
    return replace(request, constraints=constraints, policy=Policy.REQUIRED)
