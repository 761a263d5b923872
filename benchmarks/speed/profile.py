"""What outcomes, verdicts and worth cost: once for each distinct question, and when remembered.

Cold means that nothing has been asked before (every cache is emptied), warm that the same question
was. The cluster has a few hundred distinct states however many nodes it has, since nodes of one
shape that hold the same GPUs share their answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import msgspec
from rich.table import Table

from benchmarks.figures.speed import ClusterCost, Cost, Parts, Profile, VerbCost
from benchmarks.promises.pods import app, manifest
from benchmarks.speed import rounds
from benchmarks.speed.histories import cluster_of
from scheduler_extender import verbs
from scheduler_extender.annotations import parse
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.mix import REFRESH
from scheduler_extender.state.pods import PodRecord
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
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.machines import machine

MACHINES = ("a100-pcie-4-bridged", "dgx1-v100", "hgx-h100-8", "dgx2")
Ask = Callable[[], object]
NVLINK = Constraints(link=LinkKind.NVLINK)
ROUNDS = 5


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
        warm.append(min(_timed(ask) for _ in range(20)))
    return Cost(cold=median(cold), warm=median(warm))


def _timed(ask: Ask) -> float:
    started = time.perf_counter()
    ask()
    return 1000 * (time.perf_counter() - started)


def _cluster(count: int, states: int, seed: int) -> ClusterCost:
    """filter and prioritize of a pair over ``count`` nodes in ``states`` distinct states."""
    cluster, names = cluster_of(count, states, seed)
    pair = msgspec.convert(manifest("pair", 1, {"link": "nvlink"}, app(2)), Pod)
    double = msgspec.convert(manifest("double", 2, {"min-nvlinks": "2"}, app(2)), Pod)
    request = parse(pair)
    assert isinstance(request, GpuRequest)
    filtering = _verb_cost(
        cluster,
        request,
        lambda: verbs.filter_nodes(cluster, pair, names),
        lambda: verbs.filter_nodes(cluster, double, names),
        "filter",
    )
    prioritizing = _verb_cost(
        cluster,
        request,
        lambda: verbs.prioritize(cluster, pair, names),
        lambda: verbs.prioritize(cluster, double, names),
        "prioritize",
    )
    distinct = {cluster.facts(name).availability("nvidia.com/gpu") for name in names}
    forget()
    return ClusterCost(
        filter=filtering,
        prioritize=prioritizing,
        distinct_states=len(distinct),
        worst_verdict=max(_verdict_cost(cluster, name, request) for name in names[:states]),
    )


def _verb_cost(
    cluster: Cluster, request: GpuRequest, ask: Ask, ask_other: Ask, verb: str
) -> VerbCost:
    """A verb over all nodes; ``ask_other`` is the same verb for a pod with other constraints."""
    forget()
    cluster.forget_answers()
    cold = _timed(ask)
    warm = min(_timed(ask) for _ in range(5))
    _ask_for_more(cluster, request, verb)
    weights = _timed(ask)
    # Other constraints over the same states: what may be handed out is known already.
    return VerbCost(cold=cold, warm=warm, weights=weights, new=_timed(ask_other))


def _verdict_cost(cluster: Cluster, name: NodeName, request: GpuRequest) -> float:
    topology = cluster.facts(name).topology
    now = cluster.facts(name).availability("nvidia.com/gpu")
    if topology is None or not isinstance(now, Availability):
        return 0.0
    node = Kubelet(topology.shape, topology.allocator)
    return _timed(partial(assess, node, now, request))


def _ask_for_more(cluster: Cluster, request: GpuRequest, name: str) -> None:
    """So many waiting pods that the mix of requests is weighed anew; no node changes."""
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
    return table
