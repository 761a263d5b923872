"""What outcomes, verdicts and worth cost: once for each distinct question, and when remembered.

Cold means that nothing has been asked before (every cache is emptied), warm that the same question
was. The cluster has a few hundred distinct states however many nodes it has, since nodes of one
shape that hold the same GPUs share their answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from benchmarks.promises.pods import GpuContainer, app, manifest
from benchmarks.promises.workloads import EVERYTHING
from scheduler_extender import verbs
from scheduler_extender.annotations import parse
from scheduler_extender.cluster import Cluster, Settings
from scheduler_extender.ledger import PodRecord
from scheduler_extender.mix import REFRESH
from scheduler_extender.wire import Pod
from topology.core import admission as kubelet
from topology.core import scoring
from topology.core.admission import Kubelet
from topology.core.belief import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import AllocatorFacts
from topology.core.links import LinkKind
from topology.core.placement import assess
from topology.core.remembering import forget
from topology.core.report import Report
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.emulation import EmulatedKubelet
from topology.machines import machine

MACHINES = ("a100-pcie-4-bridged", "dgx1-v100", "hgx-h100-8", "dgx2")
NVLINK = Constraints(link=LinkKind.NVLINK)
ROUNDS = 5


def measure(nodes: int, states: int, seed: int) -> dict[str, Any]:
    """The figures, in milliseconds, with every parameter."""
    parts = {name: _parts(name) for name in MACHINES}
    return {
        "nodes": nodes,
        "states": states,
        "seed": seed,
        "parts": parts,
        "cluster": _cluster(nodes, states, seed),
    }


def _parts(name: str) -> dict[str, dict[str, float]]:
    """Cold and warm cost of the parts on one machine, wholly free."""
    node = Kubelet(machine(name).topology("n").shape, AllocatorFacts("best-effort"))
    full = node.shape.all_gpus
    now = Availability(full)
    pair = gpu_request(2, NVLINK)
    counts = pair.counts

    def worth() -> object:
        assessed = assess(node, now, pair)
        return scoring.merit(node, now, pair, assessed, scoring.PRIOR)

    questions: dict[str, Callable[[], object]] = {
        "outcomes": lambda: kubelet.admissions(node, full, counts),
        "verdict": lambda: assess(node, now, pair),
        "score": worth,
    }
    return {what: _cold_and_warm(ask) for what, ask in questions.items()}


def _cold_and_warm(ask: Callable[[], object]) -> dict[str, float]:
    cold, warm = [], []
    for _ in range(ROUNDS):
        forget()
        cold.append(_timed(ask))
        warm.append(min(_timed(ask) for _ in range(20)))
    return {"cold": median(cold), "warm": median(warm)}


def _timed(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return 1000 * (time.perf_counter() - started)


def cluster_of(count: int, states: int, seed: int) -> tuple[Cluster, list[NodeName]]:
    """Nodes with so many different histories of pods, and their names."""
    rng = random.Random(seed)
    cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
    machines = ("dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8")
    patterns = [_history(rng.choice(machines), rng) for _ in range(states)]
    names = [NodeName(f"node-{i}") for i in range(count)]
    for i, name in enumerate(names):
        _play(cluster, name, patterns[i % states])
    return cluster, names


def _cluster(count: int, states: int, seed: int) -> dict[str, Any]:
    """filter and prioritize of a pair over ``count`` nodes in ``states`` distinct states."""
    cluster, names = cluster_of(count, states, seed)
    found: dict[str, Any] = {}
    pod = msgspec.convert(manifest("pair", 1, {"link": "nvlink"}, app(2)), Pod)
    request = parse(pod)
    assert isinstance(request, GpuRequest)
    asks: dict[str, Callable[[], object]] = {
        "filter": lambda: verbs.filter_nodes(cluster, pod, names),
        "prioritize": lambda: verbs.prioritize(cluster, pod, names),
    }
    double = msgspec.convert(manifest("double", 2, {"min-nvlinks": "2"}, app(2)), Pod)
    others: dict[str, Callable[[], object]] = {
        "filter": lambda: verbs.filter_nodes(cluster, double, names),
        "prioritize": lambda: verbs.prioritize(cluster, double, names),
    }
    for verb, ask in asks.items():
        forget()
        cluster.forget_answers()
        cold = _timed(ask)
        warm = min(_timed(ask) for _ in range(5))
        _ask_for_more(cluster, request, verb)
        weights = _timed(ask)
        # Other constraints over the same states: what may be handed out is known already.
        new = _timed(others[verb])
        found[verb] = {"cold": cold, "warm": warm, "weights": weights, "new": new}
    views = {cluster.view(name, "nvidia.com/gpu") for name in names}
    forget()
    worst = 0.0
    for name in names[:states]:
        topology = cluster.node(name)[0]
        view = cluster.view(name, "nvidia.com/gpu")
        if topology is not None and isinstance(view, Availability):
            node = Kubelet(topology.shape, topology.allocator)
            worst = max(worst, _timed(partial(assess, node, view, request)))
    found["distinct views"] = len(views)
    found["worst verdict"] = worst
    return found


def _ask_for_more(cluster: Cluster, request: GpuRequest, name: str) -> None:
    """So many waiting pods that the mix of requests is weighed anew; no node changes."""
    for i in range(REFRESH):
        cluster.put_pod(PodRecord(PodUid(f"{name}-{i}"), "default", f"{name}-{i}", None, request))


@dataclass(frozen=True, slots=True)
class _History:
    """A machine, the GPU containers of each pod that came to it, and how many are unreported.

    The last pods are those that no report shows yet.
    """

    machine: str
    came: tuple[tuple[GpuContainer, ...], ...]
    unreported: int

    @property
    def seed(self) -> str:
        """Equal for equal pods on equal machines, so that such nodes end in one state."""
        return repr((self.machine, [tuple((c.role, c.gpus) for c in pod) for pod in self.came]))


def _history(name: str, rng: random.Random) -> _History:
    came = []
    for _ in range(rng.randint(0, 5)):
        weights = [template.weight for template in EVERYTHING]
        came.append(rng.choices(EVERYTHING, weights)[0].containers)
    return _History(name, tuple(came), rng.choice((0, 0, 0, 1, 2)))


def _play(cluster: Cluster, name: str, history: _History) -> None:
    """Let the pods of a history come to a node, and publish its report."""
    node = machine(history.machine).topology(name)
    emulated = EmulatedKubelet(node, random.Random(history.seed))
    report: Report | None = None
    for i, containers in enumerate(history.came):
        pod = msgspec.convert(manifest(name, i, {}, *containers), Pod)
        request = parse(pod)
        uid = PodUid(f"{name}-{i}")
        assert isinstance(request, GpuRequest)
        if request.effective_count > len(emulated.free()):
            continue
        if i >= len(history.came) - history.unreported:
            report = report or emulated.report()
        emulated.admit(uid, "default", f"{name}-{i}", request)
        cluster.put_pod(PodRecord(uid, "default", f"{name}-{i}", NodeName(name), request))
    cluster.put_record(node, report or emulated.report())


def parts_table(found: dict[str, Any]) -> Table:
    """The parts for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = "one question on a free machine, ms cold (warm)"
    table.add_column("machine")
    for what in ("outcomes", "verdict", "score"):
        table.add_column(what, justify="right")
    for name, parts in found["parts"].items():
        cells = [f"{parts[w]['cold']:.2f} ({parts[w]['warm']:.4f})" for w in parts]
        table.add_row(name, *cells)
    return table


def cluster_table(found: dict[str, Any]) -> Table:
    """The cluster for a terminal."""
    cluster = found["cluster"]
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"{found['nodes']} nodes in {cluster['distinct views']} distinct states, ms"
    for column in ("verb", "cold", "new constraints", "new weights", "warm", "cold / warm"):
        table.add_column(column, justify="left" if column == "verb" else "right")
    for verb in ("filter", "prioritize"):
        cold, warm = cluster[verb]["cold"], cluster[verb]["warm"]
        new, weights = cluster[verb]["new"], cluster[verb]["weights"]
        cells = (f"{cold:.1f}", f"{new:.1f}", f"{weights:.2f}", f"{warm:.2f}")
        table.add_row(verb, *cells, f"{cold / warm:.0f}")
    table.add_row("slowest single verdict", f"{cluster['worst verdict']:.1f}")
    return table
