"""What the agent tells Prometheus of a picture. Served, it is tried in test_command."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from topology.agent.metrics import PREFIX, Metrics, ReportLatency
from topology.agent.model.observations import NvmlState, Vitals
from topology.agent.model.record import Picture
from topology.core.devices import DeviceId, PodUid
from topology.core.report import (
    READY,
    UNACCOUNTED_USE,
    Allocation,
    Condition,
    IdleAllocation,
    Report,
)
from topology.machines import machine

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
TOPOLOGY = machine("dgx1-v100").topology("n")


def with_everything() -> Metrics:
    """The metrics of an agent that has seen all that it can tell of."""
    metrics = Metrics()
    conditions = tuple(Condition(name, True, "", "", "") for name in (READY, UNACCOUNTED_USE))
    metrics.picture = Picture(TOPOLOGY, Report(conditions=conditions))
    vitals = tuple(Vitals(gpu.uuid, active_links=frozenset({0, 1})) for gpu in TOPOLOGY.gpus)
    metrics.nvml = NvmlState(vitals=vitals)
    return metrics


def test_unknown_ids_are_a_metric() -> None:
    metrics = Metrics()
    metrics.picture = Picture(None, Report(), unknown=8)
    text = generate_latest(metrics.registry).decode()
    assert "gpu_topology_agent_unknown_devices 8.0" in text


def test_the_version_is_reported_before_anything_is_known_of_the_node() -> None:
    (line,) = (
        line
        for line in generate_latest(Metrics().registry).decode().splitlines()
        if line.startswith("gpu_topology_agent_build_info{")
    )
    assert re.fullmatch(r'gpu_topology_agent_build_info\{version="[^"]+"\} 1\.0', line)


def test_a_report_ages_until_the_next_one_is_accepted() -> None:
    now = 100.0
    metrics = Metrics(lambda: now)

    def age() -> float | None:
        return metrics.registry.get_sample_value("gpu_topology_agent_report_age_seconds")

    now = 130.0
    assert age() == 30, "none has been accepted since the start"
    metrics.writes.report_at = 120.0
    assert age() == 10
    now = 200.0
    assert age() == 80


def test_an_unused_allocation_is_reported_with_its_pod() -> None:
    metrics = Metrics()
    gpu = "nvidia.com/gpu"
    held = tuple(
        Allocation(PodUid(n), "ns", n, "main", gpu, (DeviceId(n),)) for n in ("busy", "rests")
    )
    idle = (IdleAllocation(PodUid("rests"), "main", gpu, "2026-01-01T00:00:00Z"),)
    metrics.picture = Picture(TOPOLOGY, Report(allocations=held, idle=idle))
    name = "gpu_topology_agent_idle_since_timestamp_seconds"
    (family,) = [f for f in metrics.registry.collect() if f.name == name]
    assert [(s.labels, s.value) for s in family.samples] == [
        ({"namespace": "ns", "pod": "rests", "container": "main", "resource": gpu}, 1767225600.0)
    ]


def test_refused_pods_and_pods_whose_gpus_lie_apart_are_counted() -> None:
    metrics = Metrics()
    metrics.refusals = {"TopologyAffinityError": 3}
    # GPUs 0 and 5 have no NVLink. GPUs 0 to 3 are on NUMA node 0, so 0 and 4 are on two.
    held = {"linked": (1, 2), "apart": (0, 5), "over": (3, 7), "one": (4,)}
    metrics.picture = Picture(
        TOPOLOGY,
        Report(
            allocations=tuple(
                Allocation(PodUid(n), "ns", n, "main", "nvidia.com/gpu", tuple(
                    DeviceId(TOPOLOGY.gpus[p].uuid) for p in gpus
                ))
                for n, gpus in held.items()
            )
        ),
    )  # fmt: skip
    value = metrics.registry.get_sample_value
    assert value(f"{PREFIX}_refused_pods_total", {"reason": "TopologyAffinityError"}) == 3
    assert value(f"{PREFIX}_spread_pods", {"lacks": "nvlink"}) == 1
    assert value(f"{PREFIX}_spread_pods", {"lacks": "numa"}) == 2


@pytest.mark.parametrize(
    ("policy", "unknown"), [("unknown", 1.0), ("none", 0.0), ("restricted", 0.0)]
)
def test_an_unknown_topology_manager_is_reported(policy: str, unknown: float) -> None:
    metrics = Metrics()
    allocator = replace(TOPOLOGY.allocator, topology_manager_policy=policy)
    topology = replace(TOPOLOGY, allocator=allocator)
    name = "gpu_topology_agent_topology_manager_policy_unknown"
    metrics.picture = Picture(topology, Report())
    assert metrics.registry.get_sample_value(name) == unknown
    metrics.picture = Picture(topology, Report(allocatable=frozenset()))
    assert metrics.registry.get_sample_value(name) == 0.0, "as under DRA: it hands nothing out"


def test_the_page_names_every_metric_and_no_other() -> None:
    there = {
        f"{family.name}{'_total' if family.type == 'counter' else ''}".removeprefix(f"{PREFIX}_")
        for family in with_everything().registry.collect()
        if family.name.startswith(PREFIX)
    }
    rows = re.findall(rf"^\|`{PREFIX}_([a-z_]+)[`{{]", PAGE.read_text(), re.MULTILINE)
    assert set(rows) == there


A, B, C = PodUid("a"), PodUid("b"), PodUid("c")


def test_the_time_from_the_first_wait_to_the_write_that_shows_a_pod() -> None:
    latency = ReportLatency()
    latency.waiting([A], 1.0)
    latency.waiting([A, B, C], 3.0)
    assert latency.written([A, B, C], [], 3.5) == []
    assert latency.written([B, C], [A], 4.0) == [3.0]
    assert latency.written([C], [A], 5.0) == [], "B went without ever being shown"
    assert latency.written([], [A, C], 5.5) == [2.5]
    assert latency.written([], [A, C], 9.0) == []
