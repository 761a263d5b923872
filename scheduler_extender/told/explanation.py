"""Why a pod waits, or what became of it: the whole answer, as data and as words.

It is worked out once and read by ``/v1/explain``, ``why`` and ``check`` alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.cluster.board import ClusterFacts
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.told.answers import answers_to
from scheduler_extender.told.counts import Counts, counts_of
from scheduler_extender.told.helps import Help, helps_of
from scheduler_extender.told.nearest import View, nearest
from scheduler_extender.told.placed import Placed, Written, placed_on
from scheduler_extender.told.rows import Row, rows_of
from scheduler_extender.told.words import request_text
from topology.core.placement import Reason
from topology.core.requests import GpuRequest

MOST_SETS = 16
"""Sets of one node in an answer over many."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is told of a pod.

    ``reason`` is why its annotations cannot be read; then there is nothing else. ``asks`` is the
    request in a few words, ``request`` in a sentence. ``refusals`` counts the nodes by the reason
    for which they do not take the pod, ``doubts`` by why those that take it promise nothing;
    ``takes`` counts those that take it, and ``closed`` those of them to which kube-scheduler will
    not send the pod, by its selector or affinity, or by the node's taints or cordon. ``nearest``
    are the nodes that come nearest, the nearest first. ``whole`` is false where there was no time
    to try all that may help. ``notes`` say what else the reader has to know.
    """

    pod: str
    node: str | None
    asks: str = ""
    request: str = ""
    reason: str = ""
    takes: int = 0
    closed: int = 0
    refusals: Mapping[Reason, int] = field(default_factory=dict)
    doubts: Mapping[Reason, int] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    nearest: Sequence[Row] = ()
    helps: Sequence[Help] = ()
    placed: Placed | None = None
    whole: bool = True
    unblocks: bool = False
    notes: Sequence[str] = ()

    @property
    def headline(self) -> str:
        """Where it stands, in one line."""
        if self.reason:
            return f"no node takes it: {self.reason}"
        if self.placed is not None:
            return self.placed.words[0]
        counts = Counts(len(self.rows), self.takes, self.closed, self.refusals, self.doubts)
        return counts.headline

    def as_json(self) -> dict[str, Any]:
        """The JSON contract of ``/v1/explain`` and of ``why --output json``."""
        found: dict[str, Any] = {"pod": self.pod, "node": self.node}
        if self.reason:
            return {**found, "headline": self.headline, "reason": self.reason, "notes": []}
        return {
            **found,
            "headline": self.headline,
            "asks": self.asks,
            "request": self.request,
            "takes": self.takes,
            "closed": self.closed,
            "refusals": {kind.value: n for kind, n in self.refusals.items()},
            "doubts": {kind.value: n for kind, n in self.doubts.items()},
            "nearest": [
                {"node": row.answer.node, "words": row.miss.words}
                for row in self.nearest
                if row.miss is not None
            ],
            "helps": [{**asdict(each), "pods": list(each.pods)} for each in self.helps],
            "whole": self.whole,
            "unblocks": self.unblocks,
            "notes": list(self.notes),
            "placed": asdict(self.placed) if self.placed is not None else None,
            "nodes": [row.as_json(MOST_SETS) for row in self.rows],
        }


def explanation_of(
    cluster: Cluster,
    seen: ClusterFacts,
    pod: PodRecord,
    view: View,
    *,
    written: Written | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Explanation:
    """The whole answer about a pod at the moment of ``seen``.

    ``written`` is its placement annotation, where the caller has it. After the ``deadline`` nothing
    more is worked out: nodes that are left over count as undecided, and the notes say so.
    """
    name = f"{pod.namespace}/{pod.name}"
    request = pod.request
    if isinstance(request, Malformed):
        return Explanation(name, pod.node, reason=request.reason)
    told = answers_to(cluster, seen, pod, deadline)
    answered = not deadline.passed()
    rows = rows_of(request, told, view)
    placed = _placed(seen, pod, written)
    counts = counts_of(told)
    helps: list[Help] = []
    whole = answered
    waits = placed is None and counts.takes == counts.closed
    if waits and answered:
        helps, whole = helps_of(cluster, seen, pod, request, rows, view, deadline)
    return Explanation(
        pod=name,
        node=pod.node,
        asks=asked_text(pod),
        request=request_text(request),
        takes=counts.takes,
        closed=counts.closed,
        refusals=counts.refusals,
        doubts=counts.doubts,
        rows=rows,
        nearest=nearest(rows) if placed is None else (),
        helps=helps,
        placed=placed,
        whole=whole,
        unblocks=waits and any(answer.resolvable for answer in told),
        notes=tuple(_notes(seen, pod, answered=answered, open_nodes=not waits and placed is None)),
    )


NOT_ALL_ASKED = (
    "there was no time for every node: the others count as not worked out, and their taints and "
    "labels were not compared with the pod; ask again, for what was worked out is remembered"
)


def asked_text(pod: PodRecord) -> str:
    """The request and the group in a few words."""
    if not isinstance(pod.request, GpuRequest):
        return ""
    group = pod.membership.text if pod.membership is not None else ""
    return f"{pod.request.text} {group}".strip()


def _notes(
    seen: ClusterFacts, pod: PodRecord, *, answered: bool, open_nodes: bool
) -> Iterator[str]:
    if not answered:
        yield NOT_ALL_ASKED
    if pod.deleting:
        yield "the pod is being deleted"
    if pod.ended and pod.refusal is None:
        yield f"the pod has ended ({pod.phase})"
    if pod.refusal is not None:
        yield f"its kubelet has refused the pod ({pod.refusal.reason}): {pod.refusal.message}"
    if any(pod.uid in facts.in_flight for facts in seen.nodes):
        yield "the extender is binding the pod now"
    elif open_nodes and pod.unschedulable:
        yield passed_over("it")


def passed_over(whom: str) -> str:
    """That kube-scheduler sends ``whom`` nowhere, though nodes would take it."""
    return (
        f"kube-scheduler has found no node for {whom}, though: CPU, memory or another of its own "
        "rules is missing, or it has not looked again yet (kubectl describe pod)"
    )


def _placed(seen: ClusterFacts, pod: PodRecord, written: Written | None) -> Placed | None:
    if pod.node is None:
        return None
    facts = next((facts for facts in seen.nodes if facts.name == pod.node), None)
    return placed_on(facts, pod, written) if facts is not None else None
