"""Which GPUs do not answer the driver at this moment, and since when."""

from dataclasses import replace

import pytest

from tests.topology.agent.entries import GPU
from tests.topology.agent.scriptednode import seen_gpu, vital
from topology.agent.model.observations import CountedDevices, NvmlState, SeenNode
from topology.agent.model.unresponsive import MissingGpuTracker
from topology.core.devices import DeviceId, GpuUuid
from topology.core.report import MissingGpu

NOON, LATER, LATEST = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z", "2026-01-01T14:00:00Z"
GONE = [GpuUuid("GPU-2")]


def state(*numbers: int, lost: tuple[int, ...] = (), nameless: tuple[int, ...] = ()) -> NvmlState:
    seen = SeenNode(tuple(seen_gpu(i, n) for i, n in enumerate(numbers)))
    vitals = tuple(replace(vital(n), lost=n in lost) for n in numbers)
    return NvmlState(seen, vitals, 1, "", asked=True, nameless=nameless)


def offers(*ids: str) -> dict[str, frozenset[DeviceId]]:
    """The kubelet hands out from these."""
    return {GPU: frozenset(map(DeviceId, ids))}


def test_what_the_driver_counts_without_a_name_is_what_is_gone() -> None:
    tracker = MissingGpuTracker()
    tracker.look(state(0, 1, nameless=(2,)), GONE, NOON)
    assert tracker.report("", {}) == (MissingGpu("GPU-2", True, NOON),)
    tracker.look(state(0, 1), GONE, LATER)
    assert tracker.report("", {}) == (MissingGpu("GPU-2", False, NOON),)
    tracker.look(state(0, 1, nameless=(2,)), (), LATER)
    assert tracker.report("", {}) == (MissingGpu("GPU 2", True, LATER),)


def test_a_plugin_that_started_without_a_gone_gpu_does_not_miss_it() -> None:
    tracker = MissingGpuTracker()
    tracker.look(state(0, 1), GONE, LATER)
    expected = (MissingGpu("GPU-2", False, LATER),)
    assert tracker.report("", {}) == expected
    assert tracker.report(NOON, {}) == expected
    assert tracker.report(LATER, {}) == expected, "nobody knows which came first"
    assert tracker.report(LATEST, offers("GPU-2")) == expected, "the kubelet hands it out still"
    assert tracker.report(LATEST, offers("GPU-0")) == ()
    tracker.look(state(0, 1, 2, lost=(2,)), (), LATEST)
    assert tracker.report("2026-01-01T15:00:00Z", {}) != (), (
        "one that is counted troubles every plugin"
    )


def test_an_agent_that_starts_anew_knows_since_when() -> None:
    tracker = MissingGpuTracker([MissingGpu("GPU-2", True, NOON)])
    tracker.look(NvmlState(), (), LATER)
    assert tracker.report("", {}) == (MissingGpu("GPU-2", True, NOON),), "nobody has looked yet"
    tracker.look(state(0, 1), GONE, LATER)
    assert tracker.report("", {}) == (MissingGpu("GPU-2", False, NOON),)


TWO, THREE = {GPU: 2}, {GPU: 3}
LEFT = offers("GPU-0", "GPU-1")
COUNTED = [
    # name, what the kubelet hands out, what it counts, whether the plugin knows of the GPU still
    ("nobody can say", LEFT, None, True),
    ("it counts those that are left", LEFT, CountedDevices(LATER, TWO, TWO), False),
    ("one is out of order", LEFT, CountedDevices(LATER, THREE, TWO), True),
    ("it said so before the loss", LEFT, CountedDevices(NOON, TWO, TWO), True),
    ("it hands out others meanwhile", offers("GPU-0"), CountedDevices(LATER, TWO, TWO), True),
    ("it hands out the GPU itself", offers("GPU-1", "GPU-2"), CountedDevices(LATER, TWO, TWO),
     True),
    ("it has just started and counts none", offers(), CountedDevices(LATER, {GPU: 0}, {GPU: 0}),
     True),
    ("one under another name is out of order", LEFT,
     CountedDevices(LATER, TWO | {"nvidia.com/a100": 1}, TWO | {"nvidia.com/a100": 0}), True),
    ("so is another vendor's device", LEFT,
     CountedDevices(LATER, TWO | {"rdma/hca": 1}, TWO | {"rdma/hca": 0}), False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("offered", "counted", "known"), [pytest.param(*row[1:], id=row[0]) for row in COUNTED]
)
def test_a_restarted_plugin_is_recognised_by_what_the_kubelet_counts(
    offered: dict[str, frozenset[DeviceId]], counted: CountedDevices | None, known: bool
) -> None:
    """Its container has run since before the loss, or since an unknown time."""
    tracker = MissingGpuTracker()
    tracker.look(state(0, 1), GONE, NOON)
    for started in ("", "2026-01-01T11:00:00Z"):
        assert bool(tracker.report(started, offered, counted)) is known
    tracker.look(state(0, 1, 2, lost=(2,)), (), NOON)
    assert tracker.report("", offered, counted), "one that the driver counts troubles every plugin"
