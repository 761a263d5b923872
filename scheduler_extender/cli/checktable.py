"""`gpu-topology check`: what every node of a described cluster would answer to a pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from scheduler_extender.explain import answers, summary
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Decision, kubelet_of
from scheduler_extender.state.node import NodeFacts, Unusable
from topology.core.admission import container_sets
from topology.core.devices import Mask
from topology.core.graph import NodeTopology
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Role

SHOWN_SETS = 4
SHOWN_NODES = 200


def check(cluster: Cluster, pod: str, request: GpuRequest) -> dict[str, Any]:
    """The answer of every node, once each and by name, as the CLI's JSON contract has it.

    ``outcomes`` lists the GPU sets that the whole pod may get, as driver indices; ``containers``
    the sets of each app and sidecar container. Both are empty where nothing would be handed out,
    and where there are too many to list (then ``hazards`` says so). ``reason`` says why a node
    refuses the pod, ``note`` why one that takes it promises it nothing.
    """
    rows = answers(cluster, request)
    sets: dict[object, _Sets] = {}
    nodes = []
    for row in rows:
        facts = cluster.facts(row.node)
        topology = facts.topology
        # Nodes in one state hand out alike; what their GPUs are called may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (cluster.state(row.node, request.resource), called)
        if key not in sets:
            sets[key] = _Sets(
                _outcomes(row.decision, topology),
                _containers(facts, request, row.decision),
                _hazards(row.decision),
            )
        nodes.append(
            {
                "node": row.node,
                "verdict": row.decision.verdict,
                "outcomes": sets[key].outcomes,
                "containers": sets[key].containers,
                "hazards": sets[key].hazards,
                "score": row.score,
                "reason": row.reason,
                "note": row.note,
                "resolvable": row.resolvable,
                "passes": row.passes,
            }
        )
    told = summary(request, rows)
    return {"pod": pod, "asks": request.text, "nodes": nodes, "summary": told}


class _Sets(NamedTuple):
    outcomes: list[list[int]]
    containers: list[dict[str, Any]]
    hazards: list[str]


def _outcomes(decision: Decision, topology: NodeTopology | None) -> list[list[int]]:
    sets = decision.assessment.sets if decision.assessment else ()
    return _indices(topology, sets or ())


def _indices(topology: NodeTopology | None, sets: tuple[Mask, ...]) -> list[list[int]]:
    return [] if topology is None else [list(topology.indices(mask)) for mask in sets]


def _containers(facts: NodeFacts, request: GpuRequest, decision: Decision) -> list[dict[str, Any]]:
    """Each container's sets, as if nothing else happened on the node in between."""
    topology = facts.topology
    served = topology.resource(request.resource) if topology else None
    sets: dict[str, tuple[Mask, ...]] = {}
    if topology is not None and served is not None and decision.assessment is not None:
        available = facts.availability(request.resource)
        if not isinstance(available, Unusable) and decision.assessment.fits:
            kubelet = kubelet_of(topology, served)
            found = container_sets(
                kubelet, available.free, request.counts, only_gpu_plugin=request.only_gpu_plugin
            )
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
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never come"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]


STYLES = {
    "guaranteed": "bold green",
    "expected": "green",
    "possible": "yellow",
    "impossible": "red",
    "never": "dim red",
    "unknown": "dim",
}


def table(answer: dict[str, Any]) -> Table:
    """The answer for a terminal: passing nodes first, best score first, at most SHOWN_NODES."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("node", overflow="fold")
    found.add_column("verdict", no_wrap=True)
    found.add_column("score", justify="right", no_wrap=True)
    found.add_column("may hand out", overflow="fold")
    found.add_column("why not, and what to beware of", overflow="fold")
    rows = sorted(answer["nodes"], key=lambda r: (not r["passes"], -r["score"], r["node"]))
    for row in rows[:SHOWN_NODES]:
        score = str(row["score"]) if row["passes"] else "–"
        verdict = Text(row["verdict"], STYLES[row["verdict"]])
        beware = f"beware: {', '.join(row['hazards'])}" if row["hazards"] else ""
        notes = "; ".join(filter(None, (row["reason"], row["note"], beware)))
        outcomes = sets_text(row["outcomes"])
        found.add_row(Text(row["node"]), verdict, score, outcomes, Text(notes))
    if len(rows) > SHOWN_NODES:
        more = f"… {len(rows) - SHOWN_NODES:,} more (--output json lists them all)"
        found.add_row(more, "", "", "", "")
    return found


def sets_text(outcomes: Sequence[Sequence[int]], shown: int = SHOWN_SETS) -> str:
    """Some GPU sets in brief.

    >>> sets_text([[0, 1], [2, 3]]), sets_text([[0, 1, 2, 3], [0, 1, 2, 7]])
    ('0,1 | 2,3', '0-3 | 0-2,7')
    """
    text = " | ".join(map(set_text, outcomes[:shown]))
    more = len(outcomes) - shown
    return f"{text} | … {more} more" if more > 0 else text


def set_text(gpus: Sequence[int]) -> str:
    """One GPU set in brief; three and more in a row are a range.

    >>> set_text((0, 1)), set_text((0, 1, 2, 5, 6, 7)), set_text(())
    ('0,1', '0-2,5-7', '')
    """
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs)
