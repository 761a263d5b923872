"""What the agent tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

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

from topology.agent.decides.observed import Vitals
from topology.agent.decides.record import Picture
from topology.agent.publisher import Counts
from topology.core.devices import GpuUuid, PodUid, base_uuid
from topology.core.report import READY, UNACCOUNTED_USE, Report
from topology.times import seconds_of

PREFIX = "gpu_topology_agent"
SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Seen:
    """What there is to tell; the loop replaces its parts, a scrape reads them."""

    picture: Picture | None = None
    vitals: tuple[Vitals, ...] = ()
    expected_links: dict[GpuUuid, int] = field(default_factory=dict)
    writes: Counts = field(default_factory=Counts)
    kubelet_failures: int = 0
    nvml_up: bool = False
    looks: int = 0
    look_seconds: float = 0.0


class Metrics(Collector):
    """The registry, fed from :class:`Seen` at each scrape; ``clock`` is the publisher's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._started = clock()
        self.registry = CollectorRegistry()
        self.seen = Seen()
        self.latency = Histogram(
            f"{PREFIX}_report_seconds",
            "From a pod's bind seen by the agent to its devices in the published record.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics are known once there is something to tell."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything but the latency."""
        seen = self.seen
        build = _labelled("build_info", "1; the label has the version.", ["version"])
        build.add_metric([_version()], 1.0)
        yield build
        yield _gauge("nvml_up", "Whether NVML answers.", float(seen.nvml_up))
        yield SummaryMetricFamily(
            f"{PREFIX}_nvml_look_seconds",
            "Time that looks at the GPUs through NVML have taken, and how many ended.",
            count_value=seen.looks,
            sum_value=seen.look_seconds,
        )
        since = seen.writes.report_at
        yield _gauge(
            "report_age_seconds",
            "Seconds since the API server accepted a report; since the start where it has none.",
            self._clock() - (self._started if since is None else since),
        )
        failures = CounterMetricFamily(
            f"{PREFIX}_kubelet_failures", "PodResources calls that failed."
        )
        failures.add_metric([], seen.kubelet_failures)
        yield failures
        written = CounterMetricFamily(
            f"{PREFIX}_writes", "Writes of the record that worked.", labels=["what"]
        )
        for what, count in seen.writes.written.items():
            written.add_metric([what], count)
        yield written
        failed = CounterMetricFamily(
            f"{PREFIX}_write_failures", "Writes of the record that failed.", labels=["cause"]
        )
        for cause, count in sorted(seen.writes.failed.items()):
            failed.add_metric([cause], count)
        yield failed
        if seen.picture is not None:
            yield from _of_record(seen.picture)
            yield _health(seen.picture)
            yield from _of_gpus(seen, seen.picture)
            yield _idle(seen.picture.report)


def _version() -> str:
    try:
        return version("gpu-topology")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


def _of_record(picture: Picture) -> Iterator[Metric]:
    """What the record says as a whole."""
    yield _gauge("pods_due", "GPU pods of which news from the kubelet is due.", len(picture.due))
    yield _gauge("unseen_facts", "Facts that could not be had.", len(picture.unseen))
    yield _gauge(
        "unknown_devices", "Device ids of no GPU of this node that is known.", picture.unknown
    )
    yield _gauge(
        "unpublished_devices", "Device ids that the record does not show.", picture.left_out
    )
    for condition in picture.report.conditions:
        if condition.type == UNACCOUNTED_USE:
            yield _gauge(
                "unaccounted_use", "Somebody computes on a GPU of no pod.", condition.status
            )
        if condition.type == READY:
            yield _gauge("ready", "Whether the record can be relied on.", condition.status)
    if picture.topology is not None:
        policy = picture.topology.allocator.topology_manager_policy
        yield _gauge(
            "topology_manager_policy_unknown",
            "1 while nobody knows the kubelet's Topology Manager policy.",
            policy == "unknown",
        )
    gpus = picture.topology.gpus if picture.topology else ()
    yield _gauge("gpus", "GPUs of the node, lost ones included.", len(gpus))
    ids = sum(len(a.device_ids) for a in picture.report.allocations)
    yield _gauge("allocated_devices", "Devices that containers hold.", ids)


def _health(picture: Picture) -> Metric:
    sick = {h.uuid for h in picture.report.health if not h.healthy}
    healthy = _labelled("gpu_healthy", "Whether the GPU is healthy.", ["gpu", "uuid"])
    for gpu in picture.topology.gpus if picture.topology else ():
        healthy.add_metric([str(gpu.index), gpu.uuid], float(gpu.uuid not in sick))
    return healthy


def _idle(report: Report) -> Metric:
    """Allocations that are not used; the others have no such figure."""
    found = _labelled(
        "idle_since_timestamp_seconds",
        "Since when none of an allocation's devices is used, in seconds since 1970.",
        ["namespace", "pod", "container", "resource"],
    )
    names = {a.pod_uid: (a.namespace, a.pod) for a in report.allocations}
    for idle in report.idle:
        since = seconds_of(idle.since)
        if since is not None:
            found.add_metric([*names[idle.pod_uid], idle.container, idle.resource], since)
    return found


def _of_gpus(seen: Seen, picture: Picture) -> Iterator[Metric]:
    """What moves on each GPU, with the pod that holds it."""
    labels = ["gpu", "uuid"]
    active = _labelled("nvlinks_active", "NVLinks that are up.", labels)
    expected = _labelled(
        "nvlinks_expected", "NVLinks that were up at some time of this boot.", labels
    )
    ecc = _labelled(
        "gpu_uncorrected_ecc_errors", "Uncorrected ECC errors since the driver load.", labels
    )
    labels = [*labels, "namespace", "pod", "container"]
    used = _labelled("gpu_memory_used_bytes", "Memory in use.", labels)
    utilisation = _labelled("gpu_utilization_ratio", "Time in use, 0 to 1.", labels)
    gpus = picture.topology.gpus if picture.topology else ()
    index = {gpu.uuid: str(gpu.index) for gpu in gpus}
    held = {base_uuid(i): a for a in picture.report.allocations for i in a.device_ids}
    for vital in seen.vitals:
        at = [index.get(vital.uuid, ""), vital.uuid]
        holder = held.get(vital.uuid)
        whose = [holder.namespace, holder.pod, holder.container] if holder else ["", "", ""]
        if vital.active_links is not None:
            active.add_metric(at, len(vital.active_links))
        if vital.uuid in seen.expected_links:
            expected.add_metric(at, seen.expected_links[vital.uuid])
        if vital.memory_used is not None:
            used.add_metric([*at, *whose], vital.memory_used)
        if vital.utilisation is not None:
            utilisation.add_metric([*at, *whose], vital.utilisation)
        if vital.uncorrected_ecc is not None:
            ecc.add_metric(at, vital.uncorrected_ecc)
    yield from (active, expected, used, utilisation, ecc)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _labelled(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


class ReportLatency:
    """How long a bind takes until a written record shows it, in seconds of one clock."""

    def __init__(self) -> None:
        self._since: dict[PodUid, float] = {}

    def waiting(self, due: Collection[PodUid], now: float) -> None:
        """News of these pods is due."""
        for uid in due:
            self._since.setdefault(uid, now)

    def written(
        self, due: Collection[PodUid], shown: Collection[PodUid], now: float
    ) -> list[float]:
        """A record was written just now; how long the pods took that are waited for no more.

        Who is not ``shown`` has gone without ever being in a record, and took no time.
        """
        over = [uid for uid in self._since if uid not in due]
        since = {uid: self._since.pop(uid) for uid in over}
        return [now - at for uid, at in since.items() if uid in shown]
