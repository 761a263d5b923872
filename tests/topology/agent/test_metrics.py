"""What the agent tells Prometheus of a picture. Served, it is tried in test_command."""

from __future__ import annotations

from prometheus_client import generate_latest

from topology.agent.decides.record import Picture
from topology.agent.metrics import Metrics
from topology.core.report import Report


def test_unknown_ids_are_a_metric() -> None:
    metrics = Metrics()
    metrics.seen.picture = Picture(None, Report(), unknown=8, left_out=3)
    text = generate_latest(metrics.registry).decode()
    assert "gpu_topology_agent_unknown_devices 8.0" in text
    assert "gpu_topology_agent_unpublished_devices 3.0" in text
