"""The answers of nodes to a pod, for people: the verdict, the score, and why nothing is promised.

filter says why a node rejects a pod. People also want to know why a node that would take the pod
promises nothing. The reason is the node's rejection of the same pod if its constraints were
required.

:class:`Counts` says in one line how many nodes take a pod, and for which reasons the others reject
it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain.wording import NODES_NOT_IN_TIME, many, sentence
from scheduler_extender.framework.capacity import ANY_GPU
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.outcomes import sick_among, unconstrained
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.results import PASSES, Results
from scheduler_extender.framework.scores import scored
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.graph import names_unknown_nodes
from topology.core.placement import ALL_SICK, SICK, Assessment, Reason, Rejection, Verdict
from topology.core.requests import GpuRequest, Policy

BARS = 3  # the number of bars that are named
NO_NODE = "no node takes it"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one node."""

    info: NodeInfo  # the input of the decision
    class_id: ClassId | None  # equal for nodes that answer one request alike
    decision: Decision
    score: int | None  # None on a node that rejects, is ineligible, or has the pod already
    doubt: Rejection | None  # why a node that takes the pod promises it nothing

    # What the node may hand out; None for nothing. If the pod prefers what this hardware never has,
    # it is what the same pod would get without its constraints.
    outcomes: Assessment | None

    # Fields that the node's record lacks, so that the pod's exclusive CPUs and memory do not count.
    lacks: tuple[str, ...] = ()
    bar: str = ""  # why kube-scheduler sends no such pod here, whatever we answer

    @property
    def node(self) -> NodeName:
        """The node's name."""
        return self.info.name

    @property
    def message(self) -> str:
        """Why the extender rejects the node for the pod; empty if it does not."""
        return self.decision.rejection.message if self.decision.rejection else ""

    @property
    def note(self) -> str:
        """Why a node that takes the pod promises it nothing; empty on other nodes."""
        return self.doubt.message if self.doubt else ""

    @property
    def reason(self) -> Reason | None:
        """The reason of the rejection or of the doubt; None if the node promises."""
        why = self.decision.rejection or self.doubt
        return why.reason if why is not None else None

    @property
    def verdict(self) -> str:
        """The verdict's word; ``unknown`` without a usable record."""
        never = self.reason in (Reason.NOT_SERVED, Reason.SPLIT_BY_MIG)
        return "never" if never else self.decision.verdict

    @property
    def ineligible(self) -> bool:
        """Whether kube-scheduler will not send the pod here."""
        return bool(self.bar)

    @property
    def passes(self) -> bool:
        """Whether filter lets the pod pass here."""
        return self.decision.rejection is None

    @property
    def may_come(self) -> bool:
        """Whether the pod may come here: filter lets it pass, and kube-scheduler may send it."""
        return self.passes and not self.ineligible

    @property
    def resolvable(self) -> bool | None:
        """Whether evictions may resolve a rejection; None without a rejection."""
        return None if self.decision.rejection is None else self.decision.rejection.resolvable

    @property
    def promises(self) -> bool:
        """Whether the whole request of the pod is promised."""
        return self.passes and self.doubt is None


def answers_to(
    snapshot: Snapshot, pod: PodRecord, deadline: Deadline = NO_DEADLINE
) -> list[Answer]:
    """Return every node's answer to a pod in the state of ``snapshot``, by name.

    If the pod is on a node already, this node answers as it did before the pod came, and has no
    score. The other nodes have prioritize's scores, except those to which kube-scheduler will not
    send the pod. After the ``deadline`` no more nodes are evaluated: the remaining ones are
    undecided, and none of them is called ineligible.
    """
    assert isinstance(pod.request, GpuRequest)  # noqa: S101 (the caller looked)
    question = Question(pod, Purpose.EXPLAIN)
    results = strict = evaluate(snapshot, question, None, deadline)
    own_claims = pod.claim_constraints is not None
    if not own_claims:
        # A node that would reject the pod with required constraints promises it nothing.
        wanted = ANY_GPU if pod.request.plain else pod.request.constraints
        required = replace(pod.request, constraints=wanted, policy=Policy.REQUIRED)
        stern = replace(question, request=required, ignores_group=True)
        strict = evaluate(snapshot, stern, None, deadline)
    class_ids = {
        name: class_id
        for each in results.answers
        for name, class_id in zip(each.names, each.class_ids, strict=True)
    }
    handed_out: dict[ClassId, Assessment | None] = {}
    attributes, exclusive, rows = pod.attributes, results.request.exclusive, list[Answer]()
    for info in snapshot.nodes:
        name, judged = info.name, results.judged(info.name)
        decision, own = results.decisions[name], results.node_decisions.get(name, PASSES)
        class_id = class_ids.get(name) if judged is info else None
        if own_claims or class_id not in handed_out:
            outcomes = own.assessment if own_claims else _outcomes(results, judged, own, deadline)
        else:
            outcomes = handed_out[class_id]
        if class_id is not None:
            handed_out[class_id] = outcomes
        doubt = None
        if own_claims:
            doubt = results.unknown.get(name) if decision.rejection is None else None
        elif decision.rejection is None:
            # A node has no answer of its own if there was no time to check whether it is open to
            # the pod.
            doubt = strict.node_decisions.get(name, strict.decisions[name]).rejection
            if doubt in (SICK, ALL_SICK):
                named = sick_among(judged, results.request, outcomes)
                doubt = replace(doubt, message=named) if named else doubt
        bar = "" if deadline.passed() else info.bar(attributes.eligible_nodes, attributes.requests)
        missing = lacks(judged, results.request) if exclusive and not own_claims else ()
        rows.append(Answer(judged, class_id, decision, None, doubt, outcomes, missing, bar))
    # Where devices are allocated before the bind, a nominated pod counts as assumed before a claim
    # names its devices. It still waits: prioritize is asked about this node, too.
    here = {
        info.name
        for info in snapshot.nodes
        if pod.uid in info.pods.bound
        or (
            pod.uid in info.pods.assumed
            and (
                not info.allocates_before_bind
                or pod.attributes.nominated != info.name
                or info.claimed(pod.uid)
            )
        )
    }
    names = [row.node for row in rows if row.may_come]
    by_node = scored(snapshot, question, names, deadline)
    of = {name: score for name, score in zip(names, by_node, strict=True) if name not in here}
    return [replace(row, score=of.get(row.node)) for row in rows]


def lacks(info: NodeInfo, request: GpuRequest) -> tuple[str, ...]:
    """Return the fields that a node's record lacks for the pod's exclusive CPUs and memory.

    Without these fields the exclusive CPUs and memory do not count. Empty if the pod has none
    there.
    """
    topology, report = info.topology, info.report
    if topology is None or report is None or info.record.problem is not None:
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
        or (allocator.sees_topology and not names_unknown_nodes(topology.shape, allocator)),
        "status.exclusive": report.holdings is not None,
    }
    return tuple(field for field, there in has.items() if not there)


def _outcomes(
    results: Results, info: NodeInfo, decision: Decision, deadline: Deadline
) -> Assessment | None:
    """Return what the node may hand out to the pod, as far as there is time.

    See :class:`Answer`.
    """
    assessed = decision.assessment
    if assessed is None or not assessed.fits:
        return None
    if assessed.verdict is not Verdict.NEVER:
        return assessed
    if decision.rejection is not None:
        return None
    try:
        with deadline.ends():
            return unconstrained(info, results.request)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        results.asked.faults.note(info.name, error)
    return None


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of nodes by their answer to a pod."""

    nodes: int
    takes: int = 0
    ineligible: int = 0  # would take the pod, but kube-scheduler will not send it there
    rejected: Mapping[Rejection, int] = field(default_factory=dict)
    doubted: Mapping[Rejection, int] = field(default_factory=dict)  # of those that take it
    bars: Mapping[str, int] = field(default_factory=dict)  # why these are ineligible
    late: bool = False  # there was no time for every node

    @property
    def headline(self) -> str:
        """All counts in one line."""
        if not self.nodes:
            return "no node is known"
        rejected = sentence(self.rejected)
        if self.takes == self.ineligible:
            would = (
                "node that would take it is"
                if self.ineligible == 1
                else f"{self.ineligible:,} nodes that would take it are"
            )
            ineligible = (
                f"the {would} not eligible because of {bars_text(self.bars)}"
                if self.ineligible
                else ""
            )
            none = f"{NODES_NOT_IN_TIME}; so far no node takes it" if self.late else NO_NODE
            return f"{none}: {'; '.join(filter(None, (ineligible, rejected)))}"
        taken = f"{self.takes:,} of {many(self.nodes, 'node')} would take it"
        promised = self.takes - sum(self.doubted.values())
        if self.doubted:
            taken += f" ({promised:,} with a promise)"
        taken += ineligible_text(self)
        doubts = f"without a promise: {sentence(self.doubted)}" if self.doubted else ""
        return "; ".join(filter(None, (taken, rejected, doubts)))


def by_reason(rejected: Mapping[Rejection, int]) -> dict[Reason, int]:
    """Return the number of nodes by their reason."""
    found: dict[Reason, int] = {}
    for why, nodes in rejected.items():
        found[why.reason] = found.get(why.reason, 0) + nodes
    return found


def counts_of(answers: Sequence[Answer], *, late: bool = False) -> Counts:
    """Return the counts of the nodes' answers to a pod.

    ``late`` says that not all answers were worked out in time.
    """
    return Counts(
        len(answers),
        sum(answer.passes for answer in answers),
        sum(answer.passes and answer.ineligible for answer in answers),
        dict(Counter(a.decision.rejection for a in answers if a.decision.rejection is not None)),
        dict(Counter(a.doubt for a in answers if a.passes and a.doubt is not None)),
        dict(Counter(a.bar for a in answers if a.passes and a.ineligible)),
        late,
    )


def best_first(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers of the nodes to which the pod may come, the best node first."""
    taking = (answer for answer in answers if answer.may_come)
    return sorted(taking, key=lambda answer: (-(answer.score or 0), answer.node))


def ineligible_text(counts: Counts) -> str:
    """Return how many of the nodes that take the pod are ineligible, as the end of a sentence.

    Empty if none is ineligible.

    >>> ineligible_text(Counts(3, takes=2, ineligible=1, bars={"taint gpu:NoSchedule": 1}))
    ', but 1 of them is not eligible because of taint gpu:NoSchedule'
    """
    if not counts.ineligible:
        return ""
    some = f"{counts.ineligible:,}" if counts.ineligible < counts.takes else "all"
    are = "is" if some == "1" else "are"
    return f", but {some} of them {are} not eligible because of {bars_text(counts.bars)}"


def bars_text(bars: Mapping[str, int]) -> str:
    """Return why nodes are ineligible, the most frequent first.

    >>> bars_text({"a cordon": 1, "taint gpu:NoSchedule": 3})
    'taint gpu:NoSchedule (3 nodes) or a cordon (1 node)'
    """
    often = sorted(bars, key=lambda bar: (-bars[bar], bar))
    if len(often) == 1:
        return often[0]
    named = [f"{bar} ({many(bars[bar], 'node')})" for bar in often[:BARS]]
    named += [f"{len(often) - BARS} others"] if len(often) > BARS else []
    return f"{', '.join(named[:-1])} or {named[-1]}"
