"""Asks nodes a :class:`.Question`, rule by rule.

1. Rules of the pod: what it asks cannot be read.
2. Rules of a node's name: a bind of the pod is in flight to another one, its status names a claim
   that only a kubelet with DRA can serve, the node has no GPUs.
3. The node's facts for this question: without the pod itself and whatever is taken to have gone,
   and with the devices that the pod's own claims have or will have.
4. The node's own answer on these facts (:func:`.decision.decide`), remembered by equal nodes.
5. Rules of the set of nodes that the pod may be sent to: ``--refusals possible`` and the pod's
   group. A node that is closed to the pod by its selector, a taint or a cordon is asked for its own
   answer, and no rule of the set counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.state.answers.decision import HAD_CLAIM, SIBLINGS, UNDECIDED, Decision
from scheduler_extender.state.answers.remembered import State
from scheduler_extender.state.asking.askgroup import GroupAnswer, ask_group
from scheduler_extender.state.asking.byclaims import ByClaims, ask_by_claims, counted, unproven
from scheduler_extender.state.asking.enquiry import Answers, ask
from scheduler_extender.state.asking.members import Member, member_of
from scheduler_extender.state.asking.places import PlaceCounter
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.gangdomains import ANYWHERE
from scheduler_extender.state.groups.groups import KEPT
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import NodeName
from topology.core.placement import NO_REPORT, NOT_SERVED, Reason, Rejection
from topology.core.requests import GpuRequest, gpu_request

IN_FLIGHT = Rejection(
    "a bind of the pod to another node may still be written", False, Reason.IN_PROGRESS
)


@dataclass
class Results:
    """What the nodes answer.

    ``by_reason`` has all that were asked, by what refuses them; those that pass stand under None.
    """

    question: Question
    request: GpuRequest  # as it was asked, with siblings that may come first
    asked: Snapshot  # with the facts for this question
    by_reason: dict[Rejection | None, list[str]] = field(default_factory=dict)
    answers: list[Answers] = field(default_factory=list)  # the nodes' own
    claims: ByClaims | None = None  # where the pod has claims of its own
    group: GroupAnswer | None = None
    member: Member | None = None
    late: frozenset[str] = frozenset()  # nodes for which there was no time

    def judged(self, name: NodeName) -> NodeFacts:
        """The facts on which a node has answered."""
        devices = self.claims.devices.get(name) if self.claims is not None else None
        facts = self.asked.facts(name)
        return facts if devices is None else facts.as_claimed(self.question.pod.uid, devices)

    @property
    def passed(self) -> list[str]:
        """The nodes to which the pod may go."""
        return self.by_reason.get(None, [])

    @property
    def undecided(self) -> bool:
        """Whether no node takes the pod, and one of those without an answer still may."""
        if self.passed or not self.late:
            return False
        return any(
            why is not None and why.resolvable and not self.late.isdisjoint(names)
            for why, names in self.by_reason.items()
        )

    @cached_property
    def own(self) -> dict[str, Decision]:
        """Every node's own answer, which knows no rule of the set; none for a node that was refused
        for its name."""
        found: dict[str, Decision] = {}
        for answers in self.answers:
            found |= {name: each for name, each in answers.each() if each is not None}
        if self.claims is not None:
            found |= dict(self.claims.each())
        return found

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """Every node's decision: what refuses it, and its own assessment."""
        return {
            name: own
            if (own := self.own.get(name, PASSES)).rejection is why
            else Decision(why, own.assessment)
            for why, names in self.by_reason.items()
            for name in names
        }


PASSES = Decision()


def evaluate(
    snapshot: Snapshot,
    question: Question,
    names: Sequence[str] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Results:
    """What these nodes, or all, answer at the moment of ``snapshot``.

    What is not worked out by the ``deadline`` is undecided, and among the results' ``late``.
    """
    names = [facts.name for facts in snapshot.nodes] if names is None else names
    pod, request = question.pod, question.request or question.pod.request
    if isinstance(request, Malformed):
        why = Rejection(request.reason, False, Reason.MALFORMED)
        return Results(question, request.holds or gpu_request(0), snapshot, {why: list(names)})
    refused, left = refused_by_name(snapshot, question, names)
    binds = question.purpose is Purpose.BIND
    if pod.of_claims is not None and not binds:
        return _by_claims(snapshot, question, refused, left, deadline)
    facts = snapshot.facts(NodeName(names[0])) if binds else None
    if facts is not None:
        request = counted(facts, pod, request)
    member = member_of(snapshot, pod.uid, pod.membership, request.alone)
    if member is not None and (facts is None or not facts.by_dra):
        # Under DRA nobody comes before a pod that has its claim.
        known = question.request if binds else None
        fewer = known is not None and known.company < member.request.company
        request = known if known is not None and fewer else member.request
    asked = snapshot.with_facts(facts_for(snapshot, question, left))
    results = Results(question, request, asked, refused, member=member)
    open_to, closed = _open(asked, question, left, deadline)
    for group in filter(None, (open_to, closed if question.purpose is Purpose.EXPLAIN else ())):
        # A bind's own answer is worked out whatever it takes: else kube-scheduler starts again.
        time = NO_DEADLINE if binds else deadline
        answers = ask(asked, request, group, time, scores=question.scores, counts=question.counts)
        siblings = {each.rejection for each in answers.decisions.values()} == {SIBLINGS}
        if binds and siblings and member is not None and _is_begun(asked, member):
            # A refusal would surely leave the gang bound in part, and the siblings that are still
            # to come are decided with this bind counted.
            results.request = request.alone
            answers = ask(asked, request.alone, group, deadline, counts=False)
        results.answers.append(answers)
        results.late |= answers.late
        alike = _alike(request, answers)
        if group is open_to and not question.alone and member is not None and member.minds_groups:
            _gather(results, member, alike, deadline)
        for reason, those in alike.items():
            if those:
                results.by_reason.setdefault(reason, []).extend(those)
    return results


def refused_by_name(
    snapshot: Snapshot, question: Question, names: Sequence[str]
) -> tuple[dict[Rejection | None, list[str]], Sequence[str]]:
    """The nodes that are refused for what they are, and those that are left."""
    pod, offered = question.pod, question.purpose.offered
    flying = snapshot.in_flight.get(pod.uid)
    binds = question.purpose is Purpose.BIND
    had_claim = pod.by_claim and pod.node is None and not binds
    request = question.request or pod.request
    assert isinstance(request, GpuRequest)  # noqa: S101 (the caller looked)
    if flying is None and not had_claim and offered and not binds:
        return {}, names
    refused: dict[Rejection | None, list[str]] = {}
    left = []
    for name in names:
        facts = snapshot.facts(NodeName(name))
        if flying is not None and name != flying.node:
            refused.setdefault(IN_FLIGHT, []).append(name)
        elif had_claim and facts.by_plugin:
            refused.setdefault(HAD_CLAIM, []).append(name)
        elif not offered and serves_nothing(facts):
            refused.setdefault(NOT_SERVED, []).append(name)
        elif binds and (why := unproven(facts, pod, request)) is not None:
            refused.setdefault(why, []).append(name)
        else:
            left.append(name)
    return refused, left


def serves_nothing(facts: NodeFacts) -> bool:
    """Whether a node has no GPUs as far as anybody says: its Node object advertises none, and no
    agent has written a record of it. kube-scheduler offers no such node to a pod that asks for
    GPUs."""
    node, record = facts.node_object, facts.record
    return node.exists and node.dra_only and record.topology is None and record.problem is None


def facts_for(
    snapshot: Snapshot, question: Question, names: Sequence[str] = ()
) -> Iterator[NodeFacts]:
    """The nodes that have other facts for this question than for others."""
    pod = question.pod
    flying = snapshot.in_flight.get(pod.uid)
    apart = snapshot.asked_apart(pod.uid, pod.standing.priority, pod.gang) | question.gone.keys()
    on = {pod.node, None if flying is None else flying.node}
    apart |= {name for name in on if name is not None}
    if question.purpose is Purpose.BIND:
        apart |= {NodeName(name) for name in names}  # its claims have their devices
    for name in apart & snapshot.by_name.keys():
        yield question.on(snapshot.facts(name))


def _is_begun(snapshot: Snapshot, member: Member) -> bool:
    """Whether another member of the group is bound and lives, or its bind is in flight, or devices
    have been chosen for it (DRA)."""
    return bool(snapshot.standing(member.membership, member.uid).living)


def _open(
    snapshot: Snapshot, question: Question, names: Sequence[str], deadline: Deadline
) -> tuple[Sequence[str], Sequence[str]]:
    """The nodes to which kube-scheduler may send the pod, and those that are closed to it."""
    if question.purpose.offered:
        return names, ()
    standing = question.pod.standing
    open_to, closed = list[str](), list[str]()
    for name in names:
        facts = snapshot.facts(NodeName(name))
        barred = not deadline.passed() and facts.bar(standing.destinations, standing.asks)
        (closed if barred else open_to).append(name)
    return open_to, closed


def _alike(request: GpuRequest, answers: Answers) -> dict[Rejection | None, list[str]]:
    """The nodes by their own answer; for each of thousands of nodes it is a look-up by state."""
    alike: dict[Rejection | None, list[str]] = {}
    if answers.decisions.keys() >= answers.distinct:
        put: dict[State | None, Callable[[str], None]] = {
            state: alike.setdefault(decision.rejection, []).append
            for state, decision in answers.decisions.items()
        }
        for note, name in zip(map(put.__getitem__, answers.states), answers.names, strict=True):
            note(name)
        return alike
    unknown = NO_REPORT if request.required else None  # no agent has told us of such a node
    for name, decision in answers.each():
        why = unknown if decision is None else decision.rejection
        alike.setdefault(why, []).append(name)
    return alike


def _gather(
    results: Results,
    member: Member,
    alike: dict[Rejection | None, list[str]],
    deadline: Deadline,
) -> None:
    """Take away the nodes to which the pod's group does not let it go."""
    if None not in alike:
        return
    asked, direction = results.asked, ANYWHERE
    if results.question.purpose is not Purpose.BIND:
        direction = asked.direction_of(member.membership)
    elif member.membership.domain is None:
        return  # filter has kept the gang off: to refuse one now may leave it bound in part
    elif member.membership.gang:
        # Under DRA all members have claims by now, so that none is still to come.
        (facts,) = (asked.facts(NodeName(name)) for name in alike[None])
        member = replace(member, alone=facts.by_dra or _is_begun(asked, member))
    passing = alike.pop(None)
    group = ask_group(asked, member, passing, deadline, direction=direction)
    results.group = group
    if (
        results.question.purpose is Purpose.BIND
        and member.membership.gang
        and not group.late
        and KEPT in group.alike
        and PlaceCounter(asked, deadline).kept_elsewhere(
            NodeName(passing[0]), member.membership.group
        )
    ):
        # Places are kept where most are free, so what a gang's first members take may move those of
        # another group to a node that its scheduler has chosen for a later member. The gang is to
        # be bound whole, so they move on, if they can.
        group.alike = {None: passing}
    if group.late and not group.alike.get(None):
        results.late |= frozenset(passing)
        alike.setdefault(UNDECIDED, []).extend(passing)
        return
    for why, names in group.alike.items():
        alike.setdefault(why, []).extend(names)


def _by_claims(
    snapshot: Snapshot,
    question: Question,
    refused: dict[Rejection | None, list[str]],
    names: Sequence[str],
    deadline: Deadline,
) -> Results:
    """The answers to a pod with claims of its own. A node passes where it is not known what they
    get: bind has the proof.

    kube-scheduler frees a claim that has devices where its node is refused so that evictions may
    help: every refusal for its devices is of that kind.
    """
    pod, claims = question.pod, question.pod.of_claims
    assert claims is not None  # noqa: S101 (the caller looked)
    gone = (question.on(snapshot.facts(name)) for name in question.gone)
    then = snapshot.with_facts(gone)
    found = ask_by_claims(then, pod.uid, claims, names, deadline, scores=question.scores)
    results = Results(question, gpu_request(0, claims.constraints), then, refused, claims=found)
    results.late = frozenset(found.late)

    def put(name: str, why: Rejection | None) -> None:
        why = None if why is None else replace(why, resolvable=True)
        results.by_reason.setdefault(why, []).append(name)

    for name, why in found.unknown.items():
        put(name, None if why.kind is Reason.UNDECIDED else why)
    for request, answers, kinds in found.answered:
        for reason, firsts in _alike(request, answers).items():
            for first in firsts:
                for name in kinds[first]:
                    put(name, reason)
        results.late |= {name for first in answers.late for name in kinds[first]}
    for name in found.late:
        put(name, UNDECIDED)
    return results
