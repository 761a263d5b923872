"""Gauges over the whole cluster, worked out when Prometheus asks: GPUs and nodes by state, and how
much can still be promised.

Nodes in the same state are worked out once. This runs in a thread, and holds the lock only to take
the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.state.answers.capacity import Capacities, Capacity, stranded
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.node.facts import NodeFacts, Offer
from scheduler_extender.told.waiting import WaitingReasons
from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.placement import UNUSABLE, Reason, Verdict
from topology.core.pools import count
from topology.core.remembering import remembered

# ``stranded``: free, and without an NVLink to another free GPU of its node, where the node has
# NVLinks. ``partly-free``: some shares are held. ``in-flight``: bound to pods that no report shows
# yet. ``mig``: split into instances. ``unknown``: of a node whose record cannot be used.
GPU_STATES = ("free", "stranded", "partly-free", "held", "in-flight", "sick", "mig", "unknown")
NODE_STATES = ("ready", "not-ready", "stale", "no-report", "unusable", "refusing-pods")
Counts = tuple[tuple[str, int], ...]
NOTHING = "none"  # the verdict for a pod without required constraints


class ClusterFigures(Collector):
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._capacities = Capacities(cluster.settings)
        self._waiting = WaitingReasons(cluster)

    def describe(self) -> Iterable[Metric]:
        """The families without figures, so that registering them works nothing out."""
        return [family for family, _ in self._families()]

    def collect(self) -> Iterator[Metric]:
        """The families with the figures of now."""
        cluster = self._cluster
        rejections, placements = cluster.tallies.read()
        gpus: Counter[str] = Counter(dict.fromkeys(GPU_STATES, 0))
        nodes: Counter[str] = Counter(dict.fromkeys(NODE_STATES, 0))
        possible = Capacity()
        for facts in cluster.snapshot().nodes:
            if facts.topology is None and facts.record.problem is None:
                continue  # a node without an agent, perhaps without GPUs
            nodes[node_state(facts)] += 1
            gpus.update(gpu_states(facts))
            possible += self._capacity(facts)
        verdicts = {v.value: placements[v.value] for v in Verdict} | {NOTHING: placements[""]}
        size = cluster.remembered()
        figures: dict[str, Mapping[str, int]] = {
            "gpus": dict(gpus),
            "nodes": dict(nodes),
            "promises_possible": {
                "pair": possible.pairs,
                "quad": possible.quads,
                "node": possible.nodes,
            },
            "placements": dict(verdicts),
            "rejections": {reason.value: rejections[reason] for reason in Reason},
            "waiting_pods": self._waiting.count(),
            "belief_states": {"": size.states},
            "remembered_answers": {"": size.answers},
            "build_info": {_version(): 1},
        }
        for family, name in self._families():
            for label, value in figures[name].items():
                family.add_metric([label] if label else [], value)
            yield family

    def _capacity(self, facts: NodeFacts) -> Capacity:
        try:
            return self._capacities.of(facts)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._cluster.faults.note(facts.name, error)
            return Capacity()

    @staticmethod
    def _families() -> list[tuple[GaugeMetricFamily | CounterMetricFamily, str]]:
        gauges = (
            ("gpus", "GPUs by state", "state"),
            ("nodes", "Nodes with a GPUTopology record, by state", "state"),
            (
                "promises_possible",
                "Guaranteed placements that still fit: NVLinked pairs, quads, and whole nodes",
                "kind",
            ),
            (
                "waiting_pods",
                "GPU pods that kube-scheduler has found no node for, by the reason of most nodes"
                " whose hardware could take them",
                "reason",
            ),
            ("belief_states", "Distinct states that nodes are in", ""),
            ("remembered_answers", "Answers of a state to a request that are remembered", ""),
            ("build_info", "1; the label has the version", "version"),
        )
        counters = (
            ("placements", "Binds written, by verdict; none: the pod requires nothing", "verdict"),
            ("rejections", "Nodes that filter has refused, by reason", "reason"),
        )
        families: list[tuple[GaugeMetricFamily | CounterMetricFamily, str]] = [
            (GaugeMetricFamily(f"gpu_topology_{name}", what, labels=[label] if label else []), name)
            for name, what, label in gauges
        ]
        families += [
            (CounterMetricFamily(f"gpu_topology_{name}", what, labels=[label]), name)
            for name, what, label in counters
        ]
        return families


def _version() -> str:
    try:
        return version("gpu-topology")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


def node_state(facts: NodeFacts) -> str:
    """One of :data:`NODE_STATES`."""
    if facts.record.problem is not None or not _usable(facts):
        return "unusable"
    if facts.report is None:
        return "no-report"
    if facts.record.stale:
        return "stale"
    if facts.report.not_ready:
        return "not-ready"
    return "refusing-pods" if facts.history.streaks else "ready"


def _usable(facts: NodeFacts) -> bool:
    if facts.topology is None or facts.report is None:
        return True
    return UNUSABLE not in (facts.last_offer(served.name) for served in facts.topology.resources)


def gpu_states(facts: NodeFacts) -> Counter[str]:
    """How many GPUs of a node are in each of :data:`GPU_STATES`."""
    topology, states = facts.topology, Counter[str]()
    if topology is None:
        return states
    every = len(topology.gpus)
    if node_state(facts) in ("unusable", "no-report", "stale"):
        return Counter(unknown=every)
    for served in topology.resources:
        offer = facts.last_offer(served.name)
        if served.strategy != "mig" and isinstance(offer, Offer):
            states.update(dict(_states_of(offer.kubelet, offer.availability)))
    states["mig"] += topology.shape.in_mig_mode.bit_count()
    states["unknown"] += max(0, every - states.total())
    return states


@remembered
def _states_of(kubelet: Kubelet, now: Availability) -> Counts:
    shape, width = kubelet.shape, kubelet.width
    states = Counter[str]()
    whole = 0
    for p in range(shape.size):
        if shape.in_mig_mode >> p & 1:
            continue
        free, every = count(now.free, p, width), kubelet.devices_on(1 << p)
        if now.sick >> p & 1:
            states["sick"] += 1
        elif free == every:
            whole |= 1 << p
        else:
            states["partly-free" if free else "held"] += 1
    coming = sum(pod.held for pod in now.unreported if not pod.departed)
    coming = min(whole.bit_count(), -(-coming // kubelet.replicas))
    states["in-flight"] += coming
    states["stranded"] += min(stranded(shape, whole).bit_count(), whole.bit_count() - coming)
    states["free"] += whole.bit_count() - coming - states["stranded"]
    return tuple(states.items())
