"""`gpu-topology check`: what every node of a described cluster would answer to a pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from scheduler_extender.explain import Answer, answers
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Decision
from scheduler_extender.state.node import NodeFacts, Unusable
from scheduler_extender.wording import sets_text, verdict_text
from topology.core.admission import container_sets, kubelet_of
from topology.core.devices import Mask
from topology.core.graph import NodeTopology
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Role

SHOWN_NODES = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """One node's answer, and what it may hand out, as driver indices.

    ``outcomes`` lists the GPU sets that the whole pod may get, ``containers`` the sets of each app
    and sidecar container. Both are empty where nothing would be handed out, and where there are too
    many to list (then ``hazards`` says so).
    """

    answer: Answer
    outcomes: list[list[int]]
    containers: dict[str, list[list[int]]]
    hazards: list[str]

    def as_json(self) -> dict[str, Any]:
        """The row of the CLI's JSON contract."""
        containers = [{"name": n, "outcomes": sets} for n, sets in self.containers.items()]
        return {
            "node": self.answer.node,
            "verdict": self.answer.decision.verdict,
            "outcomes": self.outcomes,
            "containers": containers,
            "hazards": self.hazards,
            "score": self.answer.score,
            "reason": self.answer.reason,
            "note": self.answer.note,
            "resolvable": self.answer.resolvable,
        }


def check(cluster: Cluster, request: GpuRequest) -> list[Checked]:
    """The answer of every node, once each and by name."""
    rows = answers(cluster, request)
    known: dict[object, Checked] = {}
    found = []
    for row in rows:
        facts = cluster.facts(row.node)
        topology = facts.topology
        # Nodes in one state hand out alike; what their GPUs are called may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (cluster.state(row.node, request.resource), called)
        if key not in known:
            known[key] = Checked(
                row,
                _outcomes(row.decision, topology),
                _containers(facts, request, row.decision),
                _hazards(row.decision),
            )
        found.append(replace(known[key], answer=row))
    return found


def _outcomes(decision: Decision, topology: NodeTopology | None) -> list[list[int]]:
    sets = decision.assessment.sets if decision.assessment else ()
    return _indices(topology, sets or ())


def _indices(topology: NodeTopology | None, sets: tuple[Mask, ...]) -> list[list[int]]:
    return [] if topology is None else [list(topology.indices(mask)) for mask in sets]


def _containers(
    facts: NodeFacts, request: GpuRequest, decision: Decision
) -> dict[str, list[list[int]]]:
    """Each container's sets, as if nothing else happened on the node in between."""
    named: dict[str, list[list[int]]] = {
        c.name: [] for c in request.containers if c.role is not Role.INIT
    }
    topology, assessed = facts.topology, decision.assessment
    served = topology.resource(request.resource) if topology else None
    if topology is None or served is None or assessed is None or not assessed.fits:
        return named
    available = facts.availability(request.resource)
    if isinstance(available, Unusable):
        return named
    kubelet = kubelet_of(topology, served)
    found = container_sets(
        kubelet,
        available.free,
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
    )
    for container, pools in zip(request.containers, found, strict=True):
        if container.name in named:
            masks = {gpus(pool, kubelet.width) for pool in pools or ()}
            named[container.name] = _indices(topology, tuple(sorted(masks)))
    return named


def _hazards(decision: Decision) -> list[str]:
    assessed = decision.assessment
    if assessed is None:
        return []
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never come"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]


def table(rows: Sequence[Checked]) -> Table:
    """The answers for a terminal: passing nodes first, best score first, at most SHOWN_NODES."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("node", overflow="fold")
    found.add_column("verdict", no_wrap=True)
    found.add_column("score", justify="right", no_wrap=True)
    found.add_column("may hand out", overflow="fold")
    found.add_column("why not, and what to beware of", overflow="fold")

    def order(row: Checked) -> tuple[bool, int, str]:
        return (not row.answer.passes, -(row.answer.score or 0), row.answer.node)

    for row in sorted(rows, key=order)[:SHOWN_NODES]:
        answer = row.answer
        beware = f"beware: {', '.join(row.hazards)}" if row.hazards else ""
        found.add_row(
            Text(answer.node),
            verdict_text(answer.decision.verdict),
            str(answer.score) if answer.passes else "–",
            sets_text(row.outcomes),
            Text("; ".join(filter(None, (answer.reason, answer.note, beware)))),
        )
    if len(rows) > SHOWN_NODES:
        more = f"… {len(rows) - SHOWN_NODES:,} more (--output json lists them all)"
        found.add_row(more, "", "", "", "")
    return found
