"""What filter and prioritize cost: once for each distinct question, and when remembered.

Cold means that nothing has been asked before (every cache is emptied), warm that the same question
was. The cluster has a few hundred distinct states however many nodes it has, since nodes of one
shape that hold the same GPUs share their answers. Times are CPU time, the least of several rounds.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from benchmarks.collector import no_collector
from benchmarks.output import table_of
from benchmarks.promises.pods import GpuContainer, app, manifest
from benchmarks.promises.workloads import EVERYTHING
from scheduler_extender import verbs
from scheduler_extender.annotations import Asks, parse
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.mix import REFRESH
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.node.facts import Offer
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import assess
from topology.core.remembering import forget
from topology.core.report import Health, Report
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet
from topology.machines import machine

Ask = Callable[[], object]
Verb = Callable[[Cluster, Pod, list[NodeName]], object]
ROUNDS = 5
ONE_BY_ONE = 200  # nodes that are asked about one by one


def measure(nodes: int, states: int, seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """The figures, in milliseconds, with every parameter."""
    begin("profile")
    cluster = _cluster(nodes, states, seed)
    return {"nodes": nodes, "states": states, "seed": seed, "cluster": cluster}


def _timed(ask: Ask) -> float:
    """Milliseconds of CPU: others may use the machine meanwhile."""
    started = time.process_time()
    ask()
    return 1000 * (time.process_time() - started)


def _cluster(count: int, states: int, seed: int) -> dict[str, Any]:
    """filter and prioritize of a pair over ``count`` nodes in ``states`` distinct states."""
    cluster, names = _cluster_of(count, states, seed)
    with no_collector():
        filtering = _verb_cost(cluster, names, verbs.filter_nodes)
        prioritizing = _verb_cost(cluster, names, verbs.prioritize)
        report, changed, changed_new = _one_node_costs(cluster, names[:ONE_BY_ONE])
        distinct = {_offer(cluster, name).availability for name in names}
        forget()
        asks = parse(_pod({"link": "nvlink"}))
        assert isinstance(asks, Asks)
        worst = max(_verdict_cost(cluster, name, asks.request) for name in names[:states])
    return {
        "filter": filtering,
        "prioritize": prioritizing,
        "report": report,  # to take in one node's report that has changed
        "changed": changed,  # filter of that node then; and for a request that no pod has made
        "changed, new constraints": changed_new,
        "distinct states": len(distinct),
        "worst verdict": worst,
    }


def _pod(annotations: dict[str, str]) -> Pod:
    """A pod that asks for two GPUs."""
    return msgspec.convert(manifest("pair", 1, annotations, app(2)), Pod)


def _verb_cost(cluster: Cluster, names: list[NodeName], verb: Verb) -> dict[str, float]:
    """A verb over all nodes, the least of some rounds.

    Before each round every node has reported anew and nothing is remembered.
    """
    pair, double = _pod({"link": "nvlink"}), _pod({"min-nvlinks": "2"})
    ask, ask_other = partial(verb, cluster, pair, names), partial(verb, cluster, double, names)
    found: dict[str, list[float]] = {"cold": [], "warm": [], "weights": [], "new": []}
    for round_ in range(ROUNDS):
        for name in names:
            report_anew(cluster, name)
        forget()
        cluster.forget_answers()
        found["cold"].append(_timed(ask))
        found["warm"] += [_timed(ask) for _ in range(5)]
        _ask_for_more(cluster, f"{verb.__name__}-{round_}")
        found["weights"].append(_timed(ask))
        # Other constraints over the same states: what may be handed out is known already.
        found["new"].append(_timed(ask_other))
    return {what: min(times) for what, times in found.items()}


def report_anew(cluster: Cluster, name: NodeName) -> None:
    """A node's next report: it says something new, and nothing that an answer depends on."""
    facts = cluster.facts(name)
    assert facts.topology is not None
    assert facts.report is not None
    sequence = facts.report.sequence + 1
    news = Health(facts.topology.gpus[0].uuid, healthy=True, reason=f"Xid{sequence}")
    cluster.feed.put_record(
        facts.topology, replace(facts.report, sequence=sequence, health=(news,))
    )


def _one_node_costs(cluster: Cluster, names: list[NodeName]) -> tuple[float, float, float]:
    """For one node: taking in its changed report, and filter of the node alone after that: of a
    request whose answers are known, and of one that no pod has made before. Medians."""
    known = _pod({"link": "nvlink"})
    for name in names:
        verbs.filter_nodes(cluster, known, [name])
    reports, asked, asked_anew = [], [], []
    for n, name in enumerate(names):
        reports.append(_timed(partial(report_anew, cluster, name)))
        asked.append(_timed(partial(verbs.filter_nodes, cluster, known, [name])))
        report_anew(cluster, name)
        new = _pod({"link": "nvlink", "min-gpu-memory": f"{n + 64}Mi"})
        asked_anew.append(_timed(partial(verbs.filter_nodes, cluster, new, [name])))
    return median(reports), median(asked), median(asked_anew)


def _verdict_cost(cluster: Cluster, name: NodeName, request: GpuRequest) -> float:
    offer = _offer(cluster, name)
    return _timed(partial(assess, offer.kubelet, offer.availability, request))


def _offer(cluster: Cluster, name: NodeName) -> Offer:
    offer = cluster.facts(name).offer("nvidia.com/gpu")
    assert isinstance(offer, Offer)
    return offer


def _ask_for_more(cluster: Cluster, name: str) -> None:
    """So many waiting pods that the mix of requests is weighed anew; no node changes."""
    asks = parse(_pod({"link": "nvlink"}))
    assert isinstance(asks, Asks)
    for i in range(REFRESH):
        cluster.feed.put_pod(
            PodRecord(PodUid(f"{name}-{i}"), "default", f"{name}-{i}", None, asks.request)
        )


# Clusters whose nodes have seen different pods come.


def _cluster_of(count: int, states: int, seed: int) -> tuple[Cluster, list[NodeName]]:
    """Nodes with so many different histories of pods, and their names."""
    rng = random.Random(seed)
    cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
    machines = ("dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8")
    patterns = [_history(rng.choice(machines), rng) for _ in range(states)]
    names = [NodeName(f"node-{i}") for i in range(count)]
    for i, name in enumerate(names):
        _let_come(cluster, name, patterns[i % states])
    return cluster, names


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


def _let_come(cluster: Cluster, name: str, history: _History) -> None:
    """Let the pods of a history come to a node, and publish its report."""
    node = machine(history.machine).topology(name)
    emulated = EmulatedKubelet(node, random.Random(history.seed))
    report: Report | None = None
    for i, containers in enumerate(history.came):
        pod = msgspec.convert(manifest(name, i, {}, *containers), Pod)
        asks = parse(pod)
        uid = PodUid(f"{name}-{i}")
        assert isinstance(asks, Asks)
        request = asks.request
        if request.effective_count > len(emulated.free()):
            continue
        if i >= len(history.came) - history.unreported:
            report = report or emulated.report()
        emulated.admit(uid, "default", f"{name}-{i}", request)
        cluster.feed.put_pod(PodRecord(uid, "default", f"{name}-{i}", NodeName(name), request))
    cluster.feed.put_record(node, report or emulated.report())


def table(found: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    cluster = found["cluster"]
    title = f"{found['nodes']} nodes in {cluster['distinct states']} distinct states, ms"
    costs = ("cold", "new constraints", "new weights", "warm", "cold / warm")
    table = table_of(("verb",), costs, title)
    for verb in ("filter", "prioritize"):
        cost = cluster[verb]
        cells = (
            f"{cost['cold']:.1f}",
            f"{cost['new']:.1f}",
            f"{cost['weights']:.2f}",
            f"{cost['warm']:.2f}",
            f"{cost['cold'] / cost['warm']:.0f}",
        )
        table.add_row(verb, *cells)
    table.add_row("slowest single verdict", f"{cluster['worst verdict']:.1f}")
    table.add_row("taking in one changed report", f"{cluster['report']:.3f}")
    table.add_row("filter of that node alone", f"{cluster['changed']:.3f}")
    table.add_row("the same, new constraints", "", f"{cluster['changed, new constraints']:.3f}")
    return table
