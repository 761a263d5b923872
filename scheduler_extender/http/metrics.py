"""The extender's metrics for Prometheus, and the log lines about mispredictions."""

from collections.abc import Callable, Iterator

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.http.certificates import Certificates
from scheduler_extender.http.clustermetrics import ClusterFigures
from scheduler_extender.ratelimit import LogLimit
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.verification import BROKEN, OUTSIDE, Misprediction
from scheduler_extender.verbs import BindLimiter, WouldReject
from scheduler_extender.verbs.bindlimiter import KUBELET, REPORT, WRITE
from topology.core.devices import NodeName
from topology.core.placement import Reason
from topology.core.refusal import LABELS

log = structlog.get_logger(__name__)

# Seconds between two log lines about one pod, or about one node's refusals for one reason; lines a
# second about all of them; lines in a burst.
LOG_PAUSE, LOG_RATE, LOG_BURST = 60.0, 1.0, 20


class Metrics:
    """The counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._followed = _Followed()
        self.registry.register(self._followed)
        self.requests = Counter(
            "gpu_topology_requests",
            "Answered requests.",
            ["verb", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "gpu_topology_verb_duration_seconds",
            "Seconds from the complete request to its answer.",
            ["verb"],
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
        )
        self.bind_errors = Counter(
            "gpu_topology_bind_errors",
            "Binds that were refused or that failed; kube-scheduler tries them again.",
            registry=self.registry,
        )
        self.mispredictions = Counter(
            "gpu_topology_mispredictions",
            "Pods whose GPUs were not predicted, or break a promise.",
            ["kind"],
            registry=self.registry,
        )
        for kind in (OUTSIDE, BROKEN):
            self.mispredictions.labels(kind)
        self.refusals = Counter(
            "gpu_topology_refusals",
            "Pods that a kubelet refused, by the kubelet's reason.",
            ["reason"],
            registry=self.registry,
        )
        for label in LABELS:
            self.refusals.labels(label)
        self.ready = Gauge(
            "gpu_topology_ready", "1 while /readyz answers 200.", registry=self.registry
        )

    def watch(self, cluster: Cache) -> None:
        """Count and log mispredictions and refusals, and add the metrics of the cluster.

        Each event is counted. The log has at most one line a minute about the same pod, or about
        one node's refusals for one reason, and about one line a second in all. The line of a
        misprediction has everything that replays it.
        """
        mispredictions = LogLimit(LOG_PAUSE, LOG_RATE, LOG_BURST)
        refusals = LogLimit(LOG_PAUSE, LOG_RATE, LOG_BURST)

        def note(misprediction: Misprediction) -> None:
            self.mispredictions.labels(misprediction.kind).inc()
            untold = mispredictions.untold((misprediction.pod.uid, misprediction.kind))
            if untold is None:
                return
            log.error(
                misprediction.message,
                kind=misprediction.kind,
                pod=f"{misprediction.pod.namespace}/{misprediction.pod.name}",
                node=misprediction.node,
                got=list(misprediction.got),
                foreign=list(misprediction.foreign),
                cluster_file=misprediction.cluster_file,
                untold=untold,
            )

        def note_refusal(refused: NodeRefusal) -> None:
            self.refusals.labels(refused.refusal.label).inc()
            # The back-off's length is part of the key, so the first refusal at each length is
            # logged, however soon it comes.
            key = (refused.node, refused.refusal.reason, refused.pause)
            untold = refusals.untold(key)
            if untold is None:
                return
            log.warning(
                refused.words,
                node=refused.node,
                pod=f"{refused.pod.namespace}/{refused.pod.name}",
                reason=refused.refusal.reason,
                kubelet=refused.refusal.message,
                foreseen=list(refused.foreseen),
                in_a_row=refused.in_a_row,
                pause_seconds=refused.pause,
                untold=untold,
            )

        def fault(node: NodeName, error: Exception) -> None:
            log.error("a node could not be evaluated", node=node, exc_info=error)

        cluster.on_misprediction.append(note)
        cluster.on_refusal.append(note_refusal)
        cluster.faults.on_fault(fault)
        self.registry.register(ClusterFigures(cluster))

    def certificates(self, files: Certificates) -> None:
        """Show when our certificate expires, and whether changed files could be read."""
        self.show(
            "tls_expires_timestamp_seconds",
            "Expiry of the certificate of the port for kube-scheduler.",
            lambda: files.contexts.expires.timestamp(),
        )
        self.show(
            "tls_reload_failing",
            "1 while changed TLS files are unusable and the previous ones stay in use.",
            lambda: files.problem is not None,
        )
        self.follow("tls_reloads", "Changed TLS files that were loaded.", lambda: files.renewed)
        self.follow(
            "tls_reloads_failed", "Changed TLS files that were unusable.", lambda: files.failed
        )

    def show_term(self, term: Callable[[], int]) -> None:
        """Show whether this replica leads."""
        self.show("leader_term", "The term in which this replica leads; else 0.", term)

    def follow(self, name: str, what: str, count: Callable[[], int]) -> None:
        """Show the result of ``count`` as a counter, a number that only grows."""
        self._followed.kinds[name, what] = CounterMetricFamily, count

    def show(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Show the result of ``value`` as a gauge."""
        self._followed.kinds[name, what] = GaugeMetricFamily, value

    def show_limiter(self, limiter: BindLimiter) -> BindLimiter:
        """Show how many binds wait, and for what. Returns ``limiter``."""
        waiting = Gauge(
            "gpu_topology_binds_waiting",
            "Binds that wait for the kubelet to admit earlier pods, or for a report of the node.",
            ["awaits"],
            registry=self.registry,
        )
        waiting.labels("kubelet").set_function(lambda: len(limiter.waiting(KUBELET)))
        waiting.labels("report").set_function(lambda: len(limiter.waiting(REPORT)))
        waited = Histogram(
            "gpu_topology_bind_wait_seconds",
            "Seconds that binds waited; write: for the API server.",
            ["awaits"],
            registry=self.registry,
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3.5),
        )
        of = {awaits: waited.labels(awaits) for awaits in (KUBELET, REPORT, WRITE)}
        limiter.waited = lambda awaits, seconds: of[awaits].observe(seconds)
        self.follow(
            "binds_late_for_kubelet",
            "Binds refused because the kubelet admitted earlier pods too late.",
            lambda: limiter.late[KUBELET],
        )
        self.follow(
            "binds_late_for_report",
            "Binds refused because a report came too late, or too many binds waited.",
            lambda: limiter.late[REPORT],
        )
        return limiter

    def tell_shadow(
        self, tell: Callable[[WouldReject], object] = bool
    ) -> Callable[[WouldReject], None]:
        """Show that shadow mode is on. Returns a function that counts a would-be refusal.

        The function then calls ``tell``.
        """
        self.show("shadow", "1 in shadow mode.", lambda: 1)
        rejected = Counter(
            "gpu_topology_would_have_rejected",
            "Shadow mode: requests that would have lost nodes for this reason.",
            ["reason"],
            registry=self.registry,
        )
        for reason in Reason:
            rejected.labels(reason.value)
        waited = Counter(
            "gpu_topology_would_have_waited",
            "Shadow mode: requests that would have lost all nodes.",
            registry=self.registry,
        )

        def note(would: WouldReject) -> None:
            for reason in would.reasons:
                rejected.labels(reason.value).inc()
            if would.none_left:
                waited.inc()
            tell(would)

        return note


class _Followed(Collector):
    """Numbers that other parts count, by name and meaning, read when Prometheus scrapes."""

    def __init__(self) -> None:
        self.kinds: dict[
            tuple[str, str],
            tuple[type[CounterMetricFamily | GaugeMetricFamily], Callable[[], float]],
        ] = {}

    def collect(self) -> Iterator[Metric]:
        for (name, what), (family, value) in self.kinds.items():
            yield family(f"gpu_topology_{name}", what, value=value())
