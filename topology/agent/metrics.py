"""The agent's metrics for Prometheus."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from topology import our_version
from topology.agent.model.observations import NvmlState
from topology.agent.model.record import Picture
from topology.agent.publisher import Counts
from topology.core.devices import GpuUuid, PodUid, base_uuid
from topology.core.report import READY, UNACCOUNTED_USE, Report
from topology.core.spread import lacking
from topology.times import seconds_of

PREFIX = "gpu_topology_agent"
SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)

# Labels of a metric: GPU identifies the GPU, POD also the container that holds it.
GPU = ("gpu", "uuid")
POD = (*GPU, "namespace", "pod", "container")
NO_POD = ("", "", "")
OF_GPUS = (
    ("nvlinks_active", "NVLinks that are up.", GPU),
    ("nvlinks_expected", "NVLinks that were up since the boot, or that the model has.", GPU),
    (
        "fabric_ready",
        "1 if the GPU can use its NVLinks through a switch; absent without a fabric.",
        GPU,
    ),
    ("gpu_memory_used_bytes", "Memory in use.", POD),
    (
        "gpu_utilization_ratio",
        "Share of time in use, 0 to 1.",
        POD,
    ),
    ("gpu_uncorrected_ecc_errors", "Uncorrected ECC errors since the driver was loaded.", GPU),
)

Sample = tuple[list[str], float]  # the values of the labels, and the metric's value


class Metrics(Collector):
    """The agent's metrics. The loop replaces the attributes, and a scrape reads them.

    ``clock`` is the publisher's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._started = clock()
        self.picture: Picture | None = None
        self.nvml = NvmlState()
        self.expected_links: Mapping[GpuUuid, int] = {}
        self.kubelet_failures = 0
        self.refusals: Mapping[str, int] = {}
        self.writes = Counts()
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            f"{PREFIX}_report_seconds",
            "Seconds from a bind that the agent sees to the pod's devices in the record.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics except the latency."""
        yield _gauge("build_info", "Always 1.", [([our_version()], 1)], "version")
        yield _gauge("nvml_up", "1 while NVML answers.", [([], not self.nvml.problem)])
        yield SummaryMetricFamily(
            f"{PREFIX}_nvml_look_seconds",
            "Seconds that queries of all GPUs took.",
            count_value=self.nvml.looks,
            sum_value=self.nvml.look_seconds,
        )
        since = self.writes.report_at
        yield _gauge(
            "report_age_seconds",
            "Seconds since the API server accepted a report, or since the start.",
            [([], self._clock() - (self._started if since is None else since))],
        )
        failures: list[Sample] = [([], self.kubelet_failures)]
        yield _counter(
            "kubelet_failures", "Failed calls of the kubelet's PodResources API.", failures
        )
        refused = [([reason], count) for reason, count in sorted(self.refusals.items())]
        yield _counter(
            "refused_pods", "Pods with GPUs that the kubelet refused.", refused, "reason"
        )
        written = [([what], count) for what, count in self.writes.written.items()]
        yield _counter("writes", "Successful writes of the record.", written, "what")
        failed = [([cause], count) for cause, count in sorted(self.writes.failed.items())]
        yield _counter("write_failures", "Failed writes of the record.", failed, "cause")
        if self.picture is not None:
            yield from _of_record(self.picture)
            yield from self._of_gpus(self.picture)
            yield _idle(self.picture.report)
            spread = lacking(self.picture.topology, self.picture.report.allocations)
            apart: list[Sample] = [([lacks], pods) for lacks, pods in spread.items()]
            yield _gauge(
                "spread_pods",
                "Pods whose GPUs lack NVLinks to each other, or are on several NUMA nodes, "
                "although the empty node has better ones.",
                apart,
                "lacks",
            )

    def _of_gpus(self, picture: Picture) -> Iterator[Metric]:
        """Yield the values that change on each GPU, with the pod that holds it."""
        gpus = picture.topology.gpus if picture.topology else ()
        index = {gpu.uuid: str(gpu.index) for gpu in gpus}
        held = {base_uuid(i): a for a in picture.report.allocations for i in a.device_ids}
        families: dict[str, list[Sample]] = defaultdict(list)
        for vital in self.nvml.vitals:
            gpu = [index.get(vital.uuid, ""), vital.uuid]
            holder = held.get(vital.uuid)
            pod = [*gpu, *((holder.namespace, holder.pod, holder.container) if holder else NO_POD)]
            links = None if vital.active_links is None else len(vital.active_links)
            for name, labels, value in (
                ("nvlinks_active", gpu, links),
                ("nvlinks_expected", gpu, self.expected_links.get(vital.uuid)),
                ("fabric_ready", gpu, None if vital.fabric is None else vital.fabric.usable),
                ("gpu_memory_used_bytes", pod, vital.memory_used),
                ("gpu_utilization_ratio", pod, vital.utilisation),
                ("gpu_uncorrected_ecc_errors", gpu, vital.uncorrected_ecc),
            ):
                if value is not None:
                    families[name].append((labels, value))
        for name, text, names in OF_GPUS:
            yield _gauge(name, text, families[name], *names)


def _of_record(picture: Picture) -> Iterator[Metric]:
    """Yield the metrics of the record as a whole."""
    gpus = picture.topology.gpus if picture.topology else ()
    held = sum(len(a.device_ids) for a in picture.report.allocations)
    status = {condition.type: condition.status for condition in picture.report.conditions}
    gives = picture.report.allocatable != frozenset()  # not so under DRA
    policy = picture.topology and picture.topology.allocator.topology_manager_policy
    for name, text, value in (
        ("pods_due", "GPU pods that the kubelet has yet to report.", len(picture.due)),
        (
            "unseen_facts",
            "Facts that the agent could not read; the condition Complete names them.",
            len(picture.unseen),
        ),
        ("unknown_devices", "Device ids that belong to no known GPU.", picture.unknown),
        (
            "ready",
            "The condition Ready: 1 while the agent knows which pods hold the GPUs.",
            status.get(READY),
        ),
        (
            "unaccounted_use",
            "1 while a process computes on a GPU that no pod holds.",
            status.get(UNACCOUNTED_USE),
        ),
        (
            "topology_manager_policy_unknown",
            "1 while the Topology Manager policy of a kubelet that assigns GPUs is unknown.",
            None if policy is None else policy == "unknown" and gives,
        ),
        ("gpus", "GPUs of the node, including those that do not answer.", len(gpus)),
        ("allocated_devices", "Devices that containers hold.", held),
    ):
        if value is not None:
            yield _gauge(name, text, [([], value)])
    sick = {h.uuid for h in picture.report.health if not h.healthy}
    healthy: list[Sample] = [([str(gpu.index), gpu.uuid], gpu.uuid not in sick) for gpu in gpus]
    yield _gauge("gpu_healthy", "1 while the GPU is healthy.", healthy, *GPU)


def _idle(report: Report) -> Metric:
    """Return since when each idle allocation has been idle. A used allocation has no sample."""
    names = {a.pod_uid: (a.namespace, a.pod) for a in report.allocations}
    found: list[Sample] = [
        ([*names[idle.pod_uid], idle.container, idle.resource], since)
        for idle in report.idle
        if (since := seconds_of(idle.since)) is not None
    ]
    return _gauge(
        "idle_since_timestamp_seconds",
        "When the container stopped using its GPUs; absent while it uses them.",
        found,
        *("namespace", "pod", "container", "resource"),
    )


def _gauge(name: str, text: str, samples: Iterable[Sample], *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, samples: Iterable[Sample], *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels), samples)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]
) -> GaugeMetricFamily | CounterMetricFamily:
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


class ReportLatency:
    """The time from a bind until a written record shows it, in seconds of one clock."""

    def __init__(self) -> None:
        self._since: dict[PodUid, float] = {}

    def waiting(self, due: Collection[PodUid], now: float) -> None:
        """Note that a change of each of these pods is due."""
        for uid in due:
            self._since.setdefault(uid, now)

    def written(
        self, due: Collection[PodUid], shown: Collection[PodUid], now: float
    ) -> list[float]:
        """Return the latencies of the pods that are no longer due, after a record was written.

        A pod that is not ``shown`` has gone without ever being in a record, and does not count.
        """
        over = [uid for uid in self._since if uid not in due]
        since = {uid: self._since.pop(uid) for uid in over}
        return [now - at for uid, at in since.items() if uid in shown]
