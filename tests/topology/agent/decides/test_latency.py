"""From a bind to the record that shows it."""

from __future__ import annotations

from topology.agent.decides.latency import ReportLatency
from topology.core.devices import PodUid

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
