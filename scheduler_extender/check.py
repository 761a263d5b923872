"""`gpu-topology check`: what every node of a described cluster would answer to a pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from scheduler_extender.cluster import Cluster, Decision, kubelet_of
from topology.devices import Mask, NodeName
from topology.graph import NodeTopology
from topology.kubelet import container_sets
from topology.pools import gpus
from topology.requests import GpuRequest, Role

SHOWN_SETS = 4


def check(cluster: Cluster, pod: str, request: GpuRequest) -> dict[str, Any]:
    """The answer of every node, once each and by name, as the CLI's JSON contract has it.

    ``outcomes`` lists the GPU sets that the whole pod may get, as driver indices; ``containers``
    the sets of each app and sidecar container. Both are empty where nothing would be handed out,
    and where there are too many to list (then ``hazards`` says so).
    """
    rows = []
    scores = cluster.scores(request, cluster.names())
    for name in cluster.names():
        decision = cluster.decide(name, request)
        topology = cluster.node(name)[0]
        rejection = decision.rejection
        rows.append(
            {
                "node": name,
                "verdict": decision.verdict,
                "outcomes": _outcomes(decision, topology),
                "containers": _containers(cluster, name, request, decision),
                "hazards": _hazards(decision),
                "score": scores[name],
                "reason": rejection.reason if rejection else "",
                "resolvable": rejection.resolvable if rejection else True,
                "passes": rejection is None,
            }
        )
    return {"pod": pod, "asks": request.text, "nodes": rows}


def _outcomes(decision: Decision, topology: NodeTopology | None) -> list[list[int]]:
    sets = decision.assessment.sets if decision.assessment else ()
    return _indices(topology, sets or ())


def _indices(topology: NodeTopology | None, sets: tuple[Mask, ...]) -> list[list[int]]:
    return [] if topology is None else [list(topology.indices(mask)) for mask in sets]


def _containers(
    cluster: Cluster, name: NodeName, request: GpuRequest, decision: Decision
) -> list[dict[str, Any]]:
    """Each container's sets, as if nothing else happened on the node in between."""
    topology = cluster.node(name)[0]
    served = topology.resource(request.resource) if topology else None
    sets: dict[str, tuple[Mask, ...]] = {}
    if topology is not None and served is not None and decision.assessment is not None:
        view = cluster.view(name, request.resource)
        if not isinstance(view, str) and decision.assessment.fits:
            kubelet = kubelet_of(topology, served)
            found = container_sets(kubelet, view.free, request.counts, alone=request.alone)
            for container, pools in zip(request.containers, found, strict=True):
                masks = {gpus(pool, kubelet.width) for pool in pools or ()}
                sets[container.name] = tuple(sorted(masks))
    return [
        {"name": c.name, "outcomes": _indices(topology, sets.get(c.name, ()))}
        for c in request.containers
        if c.role is not Role.INIT
    ]


def _hazards(decision: Decision) -> list[str]:
    assessed = decision.assessment
    if assessed is None:
        return []
    listed = ["outcomes are too many to list"] if assessed.sets is None else []
    superset = ["outcomes are a superset"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *superset]


STYLES = {
    "guaranteed": "bold green",
    "expected": "green",
    "possible": "yellow",
    "impossible": "red",
    "never": "dim red",
    "unknown": "dim",
}


def table(answer: dict[str, Any]) -> Table:
    """The answer for a terminal: passing nodes first, best score first."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in ("node", "verdict", "score", "may hand out", "why not, and what to beware of"):
        found.add_column(column, justify="right" if column == "score" else "left", overflow="fold")
    rows = sorted(answer["nodes"], key=lambda r: (not r["passes"], -r["score"], r["node"]))
    for row in rows:
        score = str(row["score"]) if row["passes"] else "–"
        verdict = Text(row["verdict"], STYLES[row["verdict"]])
        beware = f"beware: {', '.join(row['hazards'])}" if row["hazards"] else ""
        notes = "; ".join(filter(None, (row["reason"], beware)))
        found.add_row(row["node"], verdict, score, sets_text(row["outcomes"]), notes)
    return found


def sets_text(outcomes: Sequence[Sequence[int]], shown: int = SHOWN_SETS) -> str:
    """Some GPU sets in brief.

    >>> sets_text([[0, 1], [2, 3]])
    '0,1 | 2,3'
    """
    text = " | ".join(",".join(map(str, gpus)) for gpus in outcomes[:shown])
    more = len(outcomes) - shown
    return f"{text} | … {more} more" if more > 0 else text
