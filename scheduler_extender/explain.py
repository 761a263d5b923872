"""What nodes answer to a pod, told to people: verdict, score, and why where it is no promise.

Filter says why a node refuses a pod. People also ask why a node that would take it promises
nothing: that is what it would say to the same pod if its constraints were required.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Decision
from scheduler_extender.state.enquiry import answer_of, enquire, scores
from scheduler_extender.state.node import NodeFacts
from scheduler_extender.state.pods import PodRecord
from topology.core.belief import Availability
from topology.core.devices import Bytes, NodeName, positions
from topology.core.graph import NodeTopology
from topology.core.pools import gpus
from topology.core.requests import Constraints, GpuRequest, Policy

ANY_GPU = Constraints(min_gpu_memory=Bytes(1))
"""Required, it refuses exactly the nodes of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One node's answer. ``score`` is None where there is none to be had.

    ``note`` says why a node that takes the pod promises it nothing; empty elsewhere.
    """

    node: NodeName
    decision: Decision
    score: int | None
    note: str

    @property
    def reason(self) -> str:
        """Why the node refuses the pod; empty where it passes."""
        return self.decision.rejection.reason if self.decision.rejection else ""

    @property
    def passes(self) -> bool:
        """Whether filter lets the pod pass here."""
        return self.decision.rejection is None

    @property
    def resolvable(self) -> bool:
        """Whether evictions may turn a refusal; true where there is none."""
        return self.decision.rejection is None or self.decision.rejection.resolvable

    @property
    def hazards(self) -> list[str]:
        """What the node's allocator and kubelet may do wrong."""
        return list(self.decision.assessment.hazards) if self.decision.assessment else []

    @property
    def promises(self) -> bool:
        """Whether all that the pod asks for is promised."""
        return self.passes and not self.note


def answers(
    cluster: Cluster, request: GpuRequest, *, bound: PodRecord | None = None
) -> list[Answer]:
    """Every node's answer, by name.

    A pod that is ``bound`` is not counted against itself: its node answers as it did before it
    came, and has no score, since scores compare nodes as they are now.
    """
    names = cluster.names()
    asked = enquire(cluster, request, names, scores=True)
    strict = _strict(request)
    stern = dict(enquire(cluster, strict, names).each())
    scored = scores(request, asked)
    blind = cluster.blind()  # what is remembered was worked out while we could see
    home = bound.node if bound is not None else None
    rows = []
    for (name, decision), told in zip(asked.each(), stern.values(), strict=True):
        facts, score = cluster.facts(NodeName(name)), scored[name]
        if bound is not None and name == home:
            before = facts.without(frozenset({bound.uid}))
            rows.append(_row(cluster, before, request, strict, None))
        elif blind or decision is None or told is None:
            rows.append(_row(cluster, facts, request, strict, score))
        else:
            rows.append(Answer(facts.name, decision, score, _note(decision, told)))
    return rows


def _row(
    cluster: Cluster, facts: NodeFacts, request: GpuRequest, strict: GpuRequest, score: int | None
) -> Answer:
    """A node's answer, worked out now."""
    decision = answer_of(cluster, facts, request)
    return Answer(facts.name, decision, score, _note(decision, answer_of(cluster, facts, strict)))


def _note(decision: Decision, strict: Decision) -> str:
    return strict.rejection.reason if strict.rejection and not decision.rejection else ""


def _strict(request: GpuRequest) -> GpuRequest:
    constraints = ANY_GPU if request.plain else request.constraints
    return replace(request, constraints=constraints, policy=Policy.REQUIRED)


def summary(request: GpuRequest, rows: Sequence[Answer]) -> str:
    """How many nodes would take the pod, and what that means."""
    passing = sum(row.passes for row in rows)
    promised = sum(row.promises for row in rows)
    text = f"{passing} of {len(rows)} nodes would take it"
    if passing == promised or not passing:
        return text
    if request.plain:
        return f"{text}; {passing - promised} of them without a word on their GPUs"
    return (
        f"{text}: {promised} promise what it asks for, {passing - promised} do not "
        "(policy preferred refuses no node for that, it scores them lower)"
    )


@dataclass(frozen=True, slots=True)
class Room:
    """A node's GPUs that no report shows as held, and how many of these pods will get.

    ``free`` are driver indices, ``promised`` counts devices of pods that are bound and not yet
    reported (which of the free ones they will be, the kubelet decides), ``pending`` these pods.
    ``left`` is what remains for others.
    """

    free: list[int]
    promised: int
    left: int
    pending: int


def room(topology: NodeTopology, available: Availability) -> Room:
    """What is free on a node, and what is left of it."""
    unreported = [pod for pod in available.pending if not pod.departed]
    free = gpus(available.free, available.width)
    return Room(
        free=[topology.gpus[p].index for p in positions(free)],
        promised=sum(pod.held for pod in unreported),
        left=max(0, available.devices_left),
        pending=len(available.pending),
    )
