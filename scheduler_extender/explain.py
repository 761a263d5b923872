"""What nodes answer to a pod, told to people: verdict, score, and why where it is no promise.

Filter says why a node refuses a pod. People also ask why a node that would take it promises
nothing: that is what it would say to the same pod if its constraints were required.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from scheduler_extender.cluster import Cluster, Decision
from scheduler_extender.ledger import PodRecord
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
    strict = _strict(request)
    # One state at a time, with the lock free in between: nobody else waits for a curious person.
    cluster.work_out(request, names, inf, scores=True)
    cluster.work_out(strict, names, inf)
    scores = cluster.scores(request, names, retry=False)
    with cluster.locked():
        found = dict(cluster.table(request, names, retry=False).decisions)
        told = dict(cluster.table(strict, names, retry=False).decisions)
    if cluster.blind():  # what is remembered was worked out while we could see
        told = {}
        found = {} if request.required else found
    home = bound.node if bound is not None else None
    rows = []
    for name in names:
        score: int | None = scores[name]
        decision = found.get(name) or cluster.decide(name, request)
        stern = told.get(name) or cluster.decide(name, strict)
        if bound is not None and name == home:
            gone = frozenset({bound.uid})
            decision = cluster.decide_without(name, request, gone)
            stern = cluster.decide_without(name, strict, gone)
            score = None
        note = stern.rejection.reason if stern.rejection and not decision.rejection else ""
        rows.append(Answer(name, decision, score, note))
    return rows


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


def free_and_promised(topology: NodeTopology, view: Availability) -> dict[str, Any]:
    """A node's GPUs that no report shows as held, and how many of these pods will get.

    ``free`` are driver indices, ``promised`` counts devices of pods that are bound and not yet
    reported (which of the free ones they will be, the kubelet decides), ``pending`` these pods.
    ``left`` is what remains for others.
    """
    waiting = [pod for pod in view.pending if not pod.departed]
    free = gpus(view.free, view.width)
    return {
        "free": [topology.gpus[p].index for p in positions(free)],
        "promised": sum(pod.held for pod in waiting),
        "left": max(0, view.devices_left),
        "pending": len(view.pending),
    }
