"""Metrics of the whole cluster, which are computed when Prometheus scrapes them.

They show GPUs and nodes by state, how much can still be promised, what has happened, and how fresh
the watches are. The figures of a node are cached until its NodeInfo changes, so a scrape of
thousands of nodes only walks through them. The scrape runs in a thread, and holds no lock while it
computes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.explain.gpustates import USED, Nodes, NodeState, Use
from scheduler_extender.explain.waitingreasons import WaitingReasons
from scheduler_extender.framework.capacity import Capacity
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology import our_version
from topology.core.devices import NodeName
from topology.core.placement import Reason, Verdict
from topology.core.spread import lacking

GPU_STATES = (
    "free",
    "stranded",  # free, without an NVLink to another free GPU of its node, if that has NVLinks
    "assumed",  # looks free, but an assumed pod will get it
    "reserved",  # looks free, but is reserved for a waiting pod
    "partly-free",  # some of its shares are in use
    "in-use",
    "sick",
    "mig",  # split into instances
    "unknown",  # of a node whose record cannot be used
)
NODE_STATES = (
    "ready",
    "not-ready",
    "stale",
    "maintenance",
    "no-report",
    "unusable",
    "refusing-pods",
)
NOTHING = "none"  # the verdict of a pod that requires nothing
# A name, its meaning, its label (or none), and the figure for each value of the label.
_Family = tuple[str, str, str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of one node, computed from this NodeInfo."""

    info: NodeInfo
    state: str
    gpus: Counter[str]
    capacity: Capacity
    spread: Counter[str]


class ClusterFigures(Collector):
    """The collector of the metrics that the module describes."""

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._nodes = Nodes(cluster)
        self._known: dict[NodeName, _Figures] = {}
        self._waiting = WaitingReasons(cluster)

    def collect(self) -> Iterator[Metric]:
        """Return the metric families with the current figures."""
        cluster = self._cluster
        rejections, placements = cluster.tallies.read()
        gpus: Counter[str] = Counter(dict.fromkeys(GPU_STATES, 0))
        nodes: Counter[str] = Counter(dict.fromkeys(NODE_STATES, 0))
        possible, spread = Capacity(), Counter(nvlink=0, numa=0)
        self._known = {
            info.name: self._of(info)
            for info in cluster.snapshot().nodes
            if info.topology is not None or info.record.problem is not None  # else it has no agent
        }
        for node in self._known.values():
            nodes[node.state] += 1
            gpus.update(node.gpus)
            possible += node.capacity
            spread.update(node.spread)
        verdicts = {v.value: placements[v.value] for v in Verdict} | {NOTHING: placements[""]}
        size, watches, now = cluster.answers.size(), cluster.watches(), cluster.clock()
        kinds = {"pair": possible.pairs, "quad": possible.quads, "node": possible.nodes}
        gauges: tuple[_Family, ...] = (
            (
                "gpus",
                "GPUs of nodes with a record. partly-free: some shares are in use; mig: split into"
                " instances; unknown: the record cannot be relied on.",
                "state",
                gpus,
            ),
            (
                "nodes",
                "Nodes with a record. not-ready: the agent does not know which pods hold the GPUs;"
                " unusable: the record contradicts itself.",
                "state",
                nodes,
            ),
            (
                "promises_possible",
                "Further pods that could be guaranteed two or four linked GPUs, or a whole node.",
                "kind",
                kinds,
            ),
            (
                "waiting_pods",
                "Unschedulable GPU pods, by the commonest reason of nodes with suitable hardware."
                " none: a node would take the pod; unknown: not evaluated yet.",
                "reason",
                self._waiting.count(),
            ),
            (
                "spread_pods",
                "Pods whose GPUs lack NVLinks to each other, or are on several NUMA nodes,"
                " although the empty node has better ones.",
                "lacks",
                spread,
            ),
            (
                "equivalence_classes",
                "Classes of nodes that give equal answers.",
                "",
                {"": size.classes},
            ),
            (
                "cached_answers",
                "Cached answers of equivalence classes.",
                "",
                {"": size.answers},
            ),
            ("build_info", "Always 1.", "version", {our_version(): 1}),
            (
                "watch_age_seconds",
                "Seconds since the last message of a watch.",
                "watch",
                {watch.name: watch.age(now) for watch in watches},
            ),
            (
                "watch_failing",
                "1 while a watch is broken and cannot be reopened.",
                "watch",
                {watch.name: watch.failing for watch in watches},
            ),
        )
        counters: tuple[_Family, ...] = (
            (
                "placements",
                "Binds written, by verdict. none: the pod has no required constraint.",
                "verdict",
                verdicts,
            ),
            (
                "rejections",
                "Nodes that filter rejected, counted at every attempt.",
                "reason",
                {reason.value: rejections[reason] for reason in Reason},
            ),
            (
                "node_faults",
                "Internal errors while a node was evaluated or verified. Report the log's"
                " traceback.",
                "",
                {"": cluster.faults.count},
            ),
            (
                "promises_kept",
                "Pods whose GPUs were verified to meet the promise.",
                "",
                {"": cluster.tallies.kept},
            ),
            (
                "dra_vetoes",
                "Binds refused because the GPUs of the pod's claim do not meet its constraints.",
                "",
                {"": cluster.tallies.vetoes},
            ),
            (
                "reports_out_of_order",
                "Reports ignored because a newer one had come before.",
                "",
                {"": cluster.reports_out_of_order},
            ),
        )
        for family, rows in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, what, label, figures in rows:
                made = family(f"gpu_topology_{name}", what, labels=[label] if label else [])
                for value, figure in figures.items():
                    made.add_metric([value] if label else [], figure)
                yield made

    def _of(self, info: NodeInfo) -> _Figures:
        known = self._known.get(info.name)
        if known is not None and known.info is info:
            return known
        node = self._nodes.of(info)
        allocations = info.report.allocations if info.report is not None else ()
        spread = lacking(info.topology, allocations)
        return _Figures(info, state_of(info), gpu_states(node), node.capacity, spread)


def state_of(info: NodeInfo) -> str:
    """Return the node's state, one of :data:`NODE_STATES`."""
    served = (
        info.topology.resources if info.topology is not None and info.report is not None else ()
    )
    contradictory = any(info.record.contradiction(each.name) for each in served)
    if info.record.problem is not None or contradictory:
        return "unusable"
    if info.report is None:
        return "no-report"
    if info.node_object.maintained:
        return "maintenance"
    if info.record.stale:
        return "stale"
    if info.report.not_ready:
        return "not-ready"
    return "refusing-pods" if info.history.backoffs else "ready"


def gpu_states(node: NodeState) -> Counter[str]:
    """Return how many GPUs of a node are in each of :data:`GPU_STATES`.

    The counts are those of :attr:`.NodeState.uses`, with two exceptions. GPUs in MIG mode and
    partly free shared GPUs count as such. All GPUs of a node count as ``unknown`` if its record is
    unusable or stale, if it has no report, or if it is under maintenance.
    """
    if state_of(node.info) in ("unusable", "no-report", "stale", "maintenance"):
        return Counter(unknown=len(node.gpus))
    states = Counter({_word(use): 0 for use in Use})
    for use, gpus in node.uses.items():
        states[_word(use)] += gpus
    split = node.topology.shape.in_mig_mode if node.topology is not None else 0
    for p, gpu in enumerate(node.gpus):
        if split >> p & 1 or (gpu.partly and gpu.use is not Use.SICK):
            states["mig" if split >> p & 1 else "partly-free"] += 1
            states[_word(gpu.use)] -= 1
    return +states


def _word(use: Use) -> str:
    return "in-use" if use in USED else use.value
