"""The generated parts of docs/reference/metrics.md: what extender and agent register, and its help.

The extender is a replica in shadow mode that serves TLS, and the agent one of a node with NVLinks,
so that both have every metric.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from kubernetes.client import Configuration
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from manifests.reference.pages import Parts, table
from scheduler_extender.http.clustermetrics import ClusterFigures
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import BindLimiter
from topology.agent import metrics as agent
from topology.agent.model.observations import NvmlState, Vitals
from topology.agent.model.record import Picture
from topology.core.report import READY, UNACCOUNTED_USE, Condition, Report
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

OURS = "gpu_topology_"
BUCKET = "le"  # the label of a histogram's buckets
MOST_VALUES = 9  # a label with more values has a page of its own


def of_extender() -> tuple[CollectorRegistry, Cache]:
    """Return the registry of an extender with every metric, and its cluster."""
    cluster = Cache(lambda: 0.0, Settings(shadow=True))
    metrics = Metrics()
    metrics.watch(cluster)
    metrics.show_limiter(BindLimiter(cluster))
    metrics.tell_shadow()
    metrics.show_term(lambda: 0)
    expires = datetime.fromtimestamp(0, UTC)
    files = SimpleNamespace(
        contexts=SimpleNamespace(expires=expires), problem=None, renewed=0, failed=0
    )
    metrics.certificates(cast(Any, files))
    metrics.requests.labels("filter", "200")
    metrics.seconds.labels("filter")
    source = KubeSource(ApiServer(Configuration()), cluster)  # connects only when it follows
    source.measure(metrics.follow, metrics.show)
    return metrics.registry, cluster


def of_agent() -> CollectorRegistry:
    """Return the registry of an agent with every metric."""
    topology = machine("dgx1-v100").topology("example")
    conditions = tuple(Condition(name, True, "", "", "") for name in (READY, UNACCOUNTED_USE))
    metrics = agent.Metrics()
    metrics.picture = Picture(topology, Report(conditions=conditions))
    metrics.nvml = NvmlState(vitals=tuple(Vitals(gpu.uuid) for gpu in topology.gpus))
    return metrics.registry


def cluster() -> str:
    """Return the table of the metrics about the cluster."""
    return _table(ClusterFigures(of_extender()[1]).collect())


def service() -> str:
    """Return the table of the extender's other metrics."""
    registry, cache = of_extender()
    others = {family.name for family in ClusterFigures(cache).collect()}
    return _table(family for family in registry.collect() if family.name not in others)


def node() -> str:
    """Return the table of the agent's metrics."""
    return _table(of_agent().collect())


def _table(families: Iterable[Metric]) -> str:
    ours = [family for family in families if family.name.startswith(OURS)]
    return table(("metric", "meaning"), ((_name(each), _meaning(each)) for each in ours))


def _name(family: Metric) -> str:
    labels = ",".join(_labels(family))
    total = "_total" if family.type == "counter" else ""
    return f"`{family.name}{total}{f'{{{labels}}}' if labels else ''}`"


def _labels(family: Metric) -> tuple[str, ...]:
    """Return the labels of a metric. Those of a gauge without samples are in the family."""
    named = getattr(family, "_labelnames", ())
    seen = (name for sample in family.samples for name in sample.labels)
    return tuple(name for name in dict.fromkeys([*named, *seen]) if name != BUCKET)


def _meaning(family: Metric) -> str:
    """Return the help text, with the values of the label if there is one and they are few."""
    labels = _labels(family)
    values = {each.labels[name]: None for name in labels for each in family.samples}
    if len(labels) != 1 or labels == ("version",) or not 1 < len(values) <= MOST_VALUES:
        return family.documentation
    listed = ", ".join(f"`{value}`" for value in values)
    return f"{family.documentation} `{labels[0]}`: {listed}."


PARTS: Parts = (cluster, service, node)
