"""What outcomes, verdicts and worth cost: once for each distinct question, and when remembered.

Cold means that nothing has been asked before (every cache is emptied), warm that the same question
was. The cluster has a few hundred distinct states however many nodes it has, since nodes of one
shape that hold the same GPUs share their answers. Times are CPU time, the least of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import msgspec
from rich.table import Table

from benchmarks.collector import no_collector
from benchmarks.figures.speed import ClusterCost, Cost, Parts, Profile, VerbCost
from benchmarks.promises.pods import app, manifest
from benchmarks.speed import rounds
from benchmarks.speed.histories import cluster_of
from scheduler_extender import verbs
from scheduler_extender.annotations import parse
from scheduler_extender.state.answers.mix import REFRESH
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core import admission as kubelet
from topology.core import scoring
from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import AllocatorFacts
from topology.core.links import LinkKind
from topology.core.placement import assess
from topology.core.remembering import forget
from topology.core.report import Health
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.machines import machine

MACHINES = ("a100-pcie-4-bridged", "dgx1-v100", "hgx-h100-8", "dgx2")
Ask = Callable[[], object]
Verb = Callable[[Cluster, Pod, list[NodeName]], object]
NVLINK = Constraints(link=LinkKind.NVLINK)
ROUNDS = 5
ONE_BY_ONE = 200
"""Nodes that are asked about one by one."""


def measure(nodes: int, states: int, seed: int) -> Profile:
    """The figures, in milliseconds, with every parameter."""
    return Profile(
        nodes=nodes,
        states=states,
        seed=seed,
        parts={name: _parts(name) for name in MACHINES},
        cluster=_cluster(nodes, states, seed),
        waker=rounds.waker(states, seed),
        preempt=rounds.preempt(seed),
    )


def _parts(name: str) -> Parts:
    """Cold and warm cost of the parts on one machine, wholly free."""
    node = Kubelet(machine(name).topology("n").shape, AllocatorFacts("best-effort"))
    full = node.shape.all_gpus
    now = Availability(full)
    pair = gpu_request(2, NVLINK)
    counts = pair.counts

    def score() -> object:
        assessed = assess(node, now, pair)
        return scoring.merit(node, now, pair, assessed, scoring.PRIOR)

    return Parts(
        outcomes=_cold_and_warm(lambda: kubelet.admissions(node, full, counts)),
        verdict=_cold_and_warm(lambda: assess(node, now, pair)),
        score=_cold_and_warm(score),
    )


def _cold_and_warm(ask: Ask) -> Cost:
    cold, warm = [], []
    for _ in range(ROUNDS):
        forget()
        cold.append(_timed(ask))
        warm.append(_timed(lambda: [ask() for _ in range(1_000)]) / 1_000)  # the clock is coarse
    return Cost(cold=min(cold), warm=min(warm))


def _timed(ask: Ask) -> float:
    """Milliseconds of CPU: others may use the machine meanwhile."""
    started = time.process_time()
    ask()
    return 1000 * (time.process_time() - started)


def _cluster(count: int, states: int, seed: int) -> ClusterCost:
    """filter and prioritize of a pair over ``count`` nodes in ``states`` distinct states."""
    cluster, names = cluster_of(count, states, seed)
    with no_collector():
        filtering = _verb_cost(cluster, names, verbs.filter_nodes)
        prioritizing = _verb_cost(cluster, names, verbs.prioritize)
        report, changed, changed_new = _one_node_costs(cluster, names[:ONE_BY_ONE])
        distinct = {cluster.facts(name).availability("nvidia.com/gpu") for name in names}
        forget()
        request = parse(_pod({"link": "nvlink"}))
        assert isinstance(request, GpuRequest)
        worst = max(_verdict_cost(cluster, name, request) for name in names[:states])
    return ClusterCost(
        filter=filtering,
        prioritize=prioritizing,
        report=report,
        changed=changed,
        changed_new=changed_new,
        distinct_states=len(distinct),
        worst_verdict=worst,
    )


def _pod(annotations: dict[str, str]) -> Pod:
    """A pod that asks for two GPUs."""
    return msgspec.convert(manifest("pair", 1, annotations, app(2)), Pod)


def _verb_cost(cluster: Cluster, names: list[NodeName], verb: Verb) -> VerbCost:
    """A verb over all nodes, the least of some rounds.

    Before each round every node has reported anew and nothing is remembered.
    """
    pair, double = _pod({"link": "nvlink"}), _pod({"min-nvlinks": "2"})
    ask, ask_other = partial(verb, cluster, pair, names), partial(verb, cluster, double, names)
    found: dict[str, list[float]] = {"cold": [], "warm": [], "weights": [], "new": []}
    for round_ in range(ROUNDS):
        for name in names:
            _report_anew(cluster, name)
        forget()
        cluster.forget_answers()
        found["cold"].append(_timed(ask))
        found["warm"] += [_timed(ask) for _ in range(5)]
        _ask_for_more(cluster, f"{verb.__name__}-{round_}")
        found["weights"].append(_timed(ask))
        # Other constraints over the same states: what may be handed out is known already.
        found["new"].append(_timed(ask_other))
    return VerbCost(**{what: min(times) for what, times in found.items()})


def _report_anew(cluster: Cluster, name: NodeName) -> None:
    """A node's next report: it says something new, and nothing that an answer depends on."""
    facts = cluster.facts(name)
    assert facts.topology is not None
    assert facts.report is not None
    sequence = facts.report.sequence + 1
    news = Health(facts.topology.gpus[0].uuid, healthy=True, reason=f"Xid{sequence}")
    cluster.put_record(facts.topology, replace(facts.report, sequence=sequence, health=(news,)))


def _one_node_costs(cluster: Cluster, names: list[NodeName]) -> tuple[float, float, float]:
    """For one node: taking in its changed report, and filter of the node alone after that: of a
    request whose answers are known, and of one that no pod has made before. Medians."""
    known = _pod({"link": "nvlink"})
    for name in names:
        verbs.filter_nodes(cluster, known, [name])
    reports, asked, asked_anew = [], [], []
    for n, name in enumerate(names):
        reports.append(_timed(partial(_report_anew, cluster, name)))
        asked.append(_timed(partial(verbs.filter_nodes, cluster, known, [name])))
        _report_anew(cluster, name)
        new = _pod({"link": "nvlink", "min-gpu-memory": f"{n + 64}Mi"})
        asked_anew.append(_timed(partial(verbs.filter_nodes, cluster, new, [name])))
    return median(reports), median(asked), median(asked_anew)


def _verdict_cost(cluster: Cluster, name: NodeName, request: GpuRequest) -> float:
    topology = cluster.facts(name).topology
    now = cluster.facts(name).availability("nvidia.com/gpu")
    if topology is None or not isinstance(now, Availability):
        return 0.0
    node = Kubelet(topology.shape, topology.allocator)
    return _timed(partial(assess, node, now, request))


def _ask_for_more(cluster: Cluster, name: str) -> None:
    """So many waiting pods that the mix of requests is weighed anew; no node changes."""
    request = parse(_pod({"link": "nvlink"}))
    assert isinstance(request, GpuRequest)
    for i in range(REFRESH):
        cluster.put_pod(PodRecord(PodUid(f"{name}-{i}"), "default", f"{name}-{i}", None, request))


def parts_table(found: Profile) -> Table:
    """The parts for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = "one question on a free machine, ms cold (warm)"
    table.add_column("machine")
    for what in ("outcomes", "verdict", "score"):
        table.add_column(what, justify="right")
    for name, parts in found.parts.items():
        costs = (parts.outcomes, parts.verdict, parts.score)
        table.add_row(name, *(f"{cost.cold:.2f} ({cost.warm:.4f})" for cost in costs))
    return table


def cluster_table(found: Profile) -> Table:
    """The cluster for a terminal."""
    cluster = found.cluster
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"{found.nodes} nodes in {cluster.distinct_states} distinct states, ms"
    for column in ("verb", "cold", "new constraints", "new weights", "warm", "cold / warm"):
        table.add_column(column, justify="left" if column == "verb" else "right")
    for verb, cost in (("filter", cluster.filter), ("prioritize", cluster.prioritize)):
        cells = (
            f"{cost.cold:.1f}",
            f"{cost.new:.1f}",
            f"{cost.weights:.2f}",
            f"{cost.warm:.2f}",
            f"{cost.cold / cost.warm:.0f}",
        )
        table.add_row(verb, *cells)
    table.add_row("slowest single verdict", f"{cluster.worst_verdict:.1f}")
    table.add_row("taking in one changed report", f"{cluster.report:.3f}")
    table.add_row("filter of that node alone", f"{cluster.changed:.3f}")
    table.add_row("the same, new constraints", "", f"{cluster.changed_new:.3f}")
    return table
