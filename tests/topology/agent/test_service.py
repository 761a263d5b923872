"""The agent as it runs, threads and all: what stands in the API server in the end.

test_loop and model/ test what it decides and when, test_publisher tests what it writes.
test_publisher. Here are threads that wait for one another, and the outside that hangs or is gone.
"""

import threading
import time
from dataclasses import replace

import pytest

from tests.fakes.kubelet import GPU
from tests.topology.agent.conftest import HUNG, PODS, QUICK, RECORD, Node, holders
from tests.waiting import FOREVER, PATIENCE
from topology import codec
from topology.core.report import CLIENT
from topology.machines import machine


def test_it_publishes_the_machine(node: Node) -> None:
    node.start()
    node.until(node.ready)
    record = codec.decode(node.record())
    expected = machine("dgx1-v100").topology("n")
    # The fake kubelet was told of no NUMA nodes, so that is what the record says of the plugin.
    assert record.topology.gpus == tuple(replace(g, topology_nodes=()) for g in expected.gpus)
    assert record.topology.links == expected.links
    assert record.topology.allocator.policy == "best-effort"
    assert record.topology.allocator.plugin_version == "v0.17.1"
    assert record.report is not None
    assert record.report.allocatable == frozenset(node.gpus)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-1"}
    assert node.record()["metadata"]["ownerReferences"] == [owner]


def test_a_pod_comes_and_goes(node: Node) -> None:
    service = node.start()
    node.until(node.ready)
    uid = node.pod("a", 2)["metadata"]["uid"]
    node.admit("a", 0, 3)
    node.until(lambda: node.holders() == {"a": (0, 3)})
    assert node.report().allocations[0].pod_uid == uid
    node.pod("a", 2, phase="Succeeded")
    node.kubelet.hide("a")
    node.until(lambda: node.holders() == {})
    assert service.unwell() is None


def test_an_agent_is_ready_once_its_record_is_taken_and_then_for_good(node: Node) -> None:
    node.api.refuse(403, times=None, path="gputopologies")
    service = node.start()
    assert "no record has been written yet" in str(service.unready())
    node.api.allow()
    node.until(lambda: service.unready() is None)
    node.api.refuse(503, times=None)
    node.kubelet.stop()
    assert service.unready() is None


def test_an_agent_that_cannot_vouch_is_ready_where_the_one_before_could_not(node: Node) -> None:
    """An update that breaks on the node stops there; a node that was broken before stops none."""
    node.kubelet.stop()
    service = node.start()
    node.until(lambda: service.unready() is None)
    assert node.report().not_ready
    node.kubelet.start()
    node.until(node.ready)
    node.stop()
    node.kubelet.stop()
    service = node.start()
    node.until(lambda: node.report().not_ready)
    node.until(lambda: "the record is not Ready" in str(service.unready()))
    node.kubelet.start()
    node.until(lambda: service.unready() is None)


def test_an_agent_that_makes_way_says_so_and_the_next_one_goes_on(node: Node) -> None:
    """The GPU operator stops the agent while it upgrades the driver, and lets it come back."""
    node.start()
    node.until(node.ready)
    node.pod("a", 2)
    node.admit("a", 0, 3)
    node.until(lambda: node.holders() == {"a": (0, 3)})
    node.label(**{CLIENT: "paused-for-driver-upgrade"})
    node.stop()
    assert node.report().not_ready.endswith(f"{CLIENT} is paused-for-driver-upgrade")
    assert node.holders() == {"a": (0, 3)}, "who holds what is told to the end"
    node.label(**{CLIENT: "true"})
    node.start()
    node.until(node.ready)
    assert node.holders() == {"a": (0, 3)}
    node.stop()
    assert not node.report().not_ready, "an update of the agent is no maintenance"


def test_an_agent_that_makes_way_says_so_though_its_writes_fail_at_first(node: Node) -> None:
    service = node.start()
    node.until(node.ready)
    node.label(**{CLIENT: "paused-for-driver-upgrade"})
    node.api.refuse(503, times=None, path="gputopologies")
    service.stop()
    publisher = service._publisher
    assert publisher is not None
    node.until(lambda: publisher.problem)
    node.api.allow()
    node.stop()
    assert node.report().not_ready.endswith(f"{CLIENT} is paused-for-driver-upgrade")


@pytest.mark.parametrize("init", [False, True], ids=["app", "init-only"])
def test_a_deletion_is_reported_with_its_version(node: Node, *, init: bool) -> None:
    """The agent's loop may be quicker than the reflector, which notes an event's version last."""
    service = node.start()
    node.until(node.ready)
    manifest = node.pod("a", 0 if init else 1)
    if init:
        asks = [{"name": "warm", "resources": {"limits": {GPU: "1"}}}]
        manifest["spec"]["initContainers"] = asks
        node.api.put(PODS, manifest)
    bound = str(node.api.resource_version)
    assert service._reflector is not None
    state = service._reflector
    node.until(lambda: state.state.resource_version == bound)
    note, answer = service._pods._on_change, threading.Event()

    def slow() -> None:
        note()
        answer.wait(FOREVER)

    service._pods._on_change = slow
    node.api.remove(f"{PODS}/a")
    deleted = node.api.resource_version
    try:
        node.until(lambda: node.report().knew_pods_at(deleted))
    finally:
        answer.set()


def test_a_kubelet_that_restarts_is_asked_for_its_configuration_again(node: Node) -> None:
    """A list that is empty for a while releases no pod."""
    node.start()
    node.until(node.ready)
    node.pod("a", 2, phase="Running", startTime="2026-01-01T00:00:00Z")
    node.admit("a", 0, 3)
    node.until(lambda: node.holders() == {"a": (0, 3)})

    def looks_at_the_node() -> int:
        return sum(r.path.startswith("/api/v1/nodes/n") for r in node.api.requests)

    before = looks_at_the_node()
    shown = node.restart_kubelet()
    node.until(lambda: looks_at_the_node() > before)
    node.kubelet.recall(shown)
    node.pod("b")
    node.admit("b", 6)
    node.until(lambda: node.holders() == {"a": (0, 3), "b": (6,)} and node.ready())
    held = [holders(r, node.gpus) for r in node.reports()]
    first = next(i for i, h in enumerate(held) if h)
    assert all(h.get("a") == (0, 3) for h in held[first:]), held


def test_a_lost_gpu_is_lost_and_not_free(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.lose(3)
    node.until(lambda: 3 in node.health())
    assert not node.health()[3].healthy
    node.until(
        lambda: [(m.name, m.counted) for m in node.report().missing] == [(node.gpus[3], True)]
    )
    assert node.ready()

    def received() -> bool:
        """The agent receives events of the others once it has subscribed again."""
        node.nvml.xid(5, 79)
        return 5 in node.health()

    node.until(received)
    topology = codec.decode(node.record()).topology
    assert len(topology.gpus) == 8
    assert topology.links == machine("dgx1-v100").topology("n").links


def test_a_call_that_hangs_holds_up_only_what_it_was_for(node: Node) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    node.start()
    node.until(node.ready)
    node.nvml.hang("nvmlDeviceGetCount")
    node.until(lambda: "hangs" in node.report().not_ready)
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    node.nvml.lift()
    node.until(node.ready)


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetNvLinkState"]
)
def test_a_gpu_over_which_a_call_hangs_is_missing_and_the_others_are_asked(
    node: Node, function: str
) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    service = node.start()
    node.until(node.ready)
    before = codec.decode(node.record()).topology
    node.nvml.hang(function, 3)

    def missing() -> list[tuple[int, bool]]:
        return [(node.gpus.index(gpu.name), gpu.counted) for gpu in node.report().missing]

    node.until(lambda: missing() == [(3, True)])
    node.until(
        lambda: (
            [(h.reason, h.healthy) for i, h in node.health().items() if i == 3]
            == [("Hangs", False)]
        )
    )
    assert node.ready(), "the others are looked at as before"
    topology = codec.decode(node.record()).topology
    assert (topology.gpus, topology.links) == (before.gpus, before.links)
    looks = service.looks
    node.until(lambda: service.looks > looks + 3)
    node.nvml.xid(5, 79)
    node.until(lambda: 5 in node.health())
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    node.nvml.lift()
    node.until(lambda: missing() == [] and list(node.health()) == [5])
    node.nvml.xid(3, 79)
    node.until(lambda: 3 in node.health())
    assert service.unwell() is None


def test_an_agent_that_starts_beside_a_gpu_that_hangs_reports_the_others(node: Node) -> None:
    """The kubelet allocates the GPU, and its model is unknown: not Ready."""
    node.cadence = replace(QUICK, hung=HUNG)
    node.nvml.hang("nvmlDeviceGetMemoryInfo", 3)
    node.start()
    node.until(lambda: [gpu.name for gpu in node.report().missing] == [node.gpus[3]])
    others = [uuid for uuid in node.gpus if uuid != node.gpus[3]]
    node.until(lambda: [gpu.uuid for gpu in codec.decode(node.record()).topology.gpus] == others)
    node.until(lambda: node.gpus[3] in node.report().not_ready)
    node.nvml.lift()
    node.until(lambda: len(codec.decode(node.record()).topology.gpus) == 8)
    node.until(lambda: node.ready() and node.report().missing == ())


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID"])
def test_a_gpu_that_hangs_over_an_agents_restart_is_well_when_it_answers(
    node: Node, function: str
) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    node.start()
    node.until(node.ready)
    node.nvml.hang(function, 3)
    node.until(lambda: 3 in node.health())
    node.stop()
    service = node.start()
    node.until(lambda: service.looks > 3 and node.ready())
    assert [gpu.name for gpu in node.report().missing] == [node.gpus[3]]
    assert node.health()[3].reason == "Hangs"
    node.nvml.lift()
    node.until(lambda: node.report().missing == () and node.health() == {})


@pytest.mark.long
def test_calls_that_hang_over_every_gpu_leave_no_more_threads_than_gpus(node: Node) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    service = node.start()
    node.until(node.ready)
    node.nvml.hang("nvmlDeviceGetMemoryInfo")
    node.until(lambda: {gpu.name for gpu in node.report().missing} == set(node.gpus))
    looks = service.looks
    node.until(lambda: service.looks > looks + 3)
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) <= 9
    node.nvml.lift()
    node.until(lambda: node.ready() and node.report().missing == () and node.health() == {})


def test_a_gpu_that_answers_again_is_asked_while_another_one_hangs(
    node: Node,
) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    node.start()
    node.until(node.ready)

    def missing() -> list[int]:
        return [node.gpus.index(gpu.name) for gpu in node.report().missing]

    node.nvml.hang("nvmlDeviceGetMemoryInfo", 3)
    node.until(lambda: missing() == [3])
    node.nvml.hang("nvmlDeviceGetMemoryInfo", 5)
    node.until(lambda: sorted(missing()) == [3, 5])
    node.nvml.lift("nvmlDeviceGetMemoryInfo", 3)
    node.until(lambda: missing() == [5] and list(node.health()) == [5])


def test_without_a_driver_the_record_says_so(node: Node) -> None:
    node.nvml.fail("nvmlInitWithFlags", 9)
    node.nvml.fail("nvmlInit_v2", 9)
    node.start()
    node.until(lambda: "Driver Not Loaded" in node.report().not_ready)
    assert codec.decode(node.record()).topology.gpus == ()
    node.nvml.lift()
    node.until(node.ready)
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_an_outage_ends_right(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.api.refuse(503, times=None)
    node.pod("a")
    node.admit("a", 0)
    asked = node.kubelet.calls["List"]
    node.until(lambda: node.kubelet.calls["List"] > asked + 5)
    assert node.holders() == {}
    node.api.allow()
    node.until(lambda: node.holders() == {"a": (0,)})


def test_writes_without_an_answer_are_not_lost_and_not_doubled(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topology.agent.publisher.TIMEOUT", 1.0)
    node.start()
    node.until(node.ready)
    node.api.commit_then_hang(f"{RECORD}/status")
    node.pod("a")
    node.admit("a", 0)
    node.until(lambda: node.holders() == {"a": (0,)})
    node.api.allow()
    node.pod("b")
    node.admit("b", 1)
    node.until(lambda: node.holders() == {"a": (0,), "b": (1,)})
    numbers = [r.sequence for r in node.reports()]
    assert numbers == sorted(set(numbers))


def test_once_writes_once(node: Node) -> None:
    assert node.service().once(PATIENCE, write=True).topology is not None
    assert len(codec.decode(node.record()).topology.gpus) == 8
    assert len(node.reports()) == 1


def test_once_says_when_it_could_not_write(node: Node) -> None:
    node.api.refuse(403, times=None, path="gputopologies")
    with pytest.raises(TimeoutError, match=r"403|does not answer"):
        node.service().once(patience=0.5, write=True)


def test_an_agent_that_comes_late_to_the_record_forgets_nothing(node: Node) -> None:
    """While the record cannot be read, what happens waits where it was noted."""
    node.start()
    node.until(node.ready)
    node.stop()
    node.api.refuse(503, times=None, path="gputopologies")
    node.start()
    node.until(lambda: any("gputopologies" in r.path for r in node.api.requests[-3:]))
    time.sleep(0.5)
    node.nvml.xid(2, 79)
    time.sleep(0.5)
    node.api.allow()
    node.until(lambda: 2 in node.health())


def test_a_wait_for_events_that_hangs_is_noticed(node: Node) -> None:
    node.cadence = replace(QUICK, hung=HUNG)
    node.start()
    node.until(node.ready)
    node.nvml.hang("nvmlEventSetWait")
    node.until(lambda: "hangs" in node.report().not_ready)
    node.nvml.lift()
    node.until(node.ready)


def test_a_wait_for_events_that_fails_at_once_does_not_spin(node: Node) -> None:
    service = node.start()
    node.until(node.ready)
    node.nvml.fail("nvmlEventSetWait", 999)
    began, before = time.monotonic(), service.looks
    time.sleep(2)
    looks = service.looks - before
    assert looks < (time.monotonic() - began) / QUICK.vitals * 1.5
    node.nvml.lift()
    before = service.looks
    node.until(lambda: service.looks > before + 2)  # it listens again from the next look on
    node.nvml.xid(2, 79)
    node.until(lambda: 2 in node.health())


def test_a_gpu_that_was_taken_out_and_put_back_is_seen_again(node: Node) -> None:
    node.nvml.energy(3, 10**9)
    node.start()
    node.until(node.ready)
    node.stop()
    node.nvml.remove(3)
    node.start()
    node.until(lambda: 3 in node.health())
    node.nvml.reset(3)
    node.until(lambda: node.health() == {} and node.ready())
