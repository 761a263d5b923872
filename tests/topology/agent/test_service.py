"""The agent as it runs: what stands in the API server after all that can happen to a node."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.fakes.kubelet import GPU
from tests.topology.agent.conftest import PODS, QUICK, RECORD, RECORDS, Node, holders
from topology import codec
from topology.agent.decides.allocation import KubeletFacts
from topology.machines import machine


def test_it_publishes_the_machine(node: Node) -> None:
    node.start()
    node.until(node.ready)
    record = codec.decode(node.record())
    expected = machine("dgx1-v100").topology("n")
    assert record.topology.gpus == expected.gpus
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
    assert service.alive()


def test_the_sequence_only_grows_and_nothing_is_written_without_news(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.pod("a")
    node.admit("a", 5)
    node.until(node.holders)
    settled = len(node.reports())
    node.until(lambda: node.kubelet.calls["List"] > 8, within=20)
    assert len(node.reports()) == settled
    numbers = [r.sequence for r in node.reports()]
    assert numbers == sorted(set(numbers))


def test_a_heartbeat_raises_the_sequence(node: Node) -> None:
    node.heartbeat = 1.0
    node.start()
    node.until(node.ready)
    first = node.report()
    node.until(lambda: node.report().sequence >= first.sequence + 2)
    assert node.report().follows(first)


def test_a_departure_is_told_though_nothing_else_changes(node: Node) -> None:
    """The extender holds a deleted pod's GPUs until the agent knew of it when it looked."""
    node.start()
    node.until(node.ready)
    node.pod("a")  # bound, deleted by force, and never shown by the kubelet
    node.pod("other", 0)
    node.until(lambda: int(node.report().pods_version or 0) > 0)
    before = node.report()
    node.api.remove(f"{PODS}/other")
    node.api.remove(f"{PODS}/a")
    deleted = node.api.resource_version
    node.until(lambda: node.report().knew_pods_at(deleted))
    after = node.report()
    assert after == replace(before, sequence=after.sequence)
    assert after.sequence == before.sequence + 1, "who asked for no GPU is no news"


@pytest.mark.parametrize("init", [False, True], ids=["app", "init-only"])
def test_a_departure_is_told_with_its_version(node: Node, *, init: bool) -> None:
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
    note, told = service._pods._on_change, threading.Event()

    def slow() -> None:
        note()
        told.wait(20)

    service._pods._on_change = slow
    node.api.remove(f"{PODS}/a")
    deleted = node.api.resource_version
    try:
        node.until(lambda: node.report().knew_pods_at(deleted))
    finally:
        told.set()


def test_a_report_says_when_the_kubelet_was_asked(node: Node) -> None:
    node.heartbeat = 1.0
    began = datetime.now(UTC).replace(microsecond=0)
    node.start()
    node.until(node.ready)
    first = datetime.fromisoformat(node.report().observed_at)
    assert began <= first <= datetime.now(UTC)
    node.until(lambda: datetime.fromisoformat(node.report().observed_at) > first)
    node.kubelet.stop()
    node.until(lambda: not node.ready())
    silent = node.report()
    node.until(lambda: node.report().sequence >= silent.sequence + 2)
    assert node.report().observed_at == silent.observed_at, "nobody has looked since"


def test_half_a_pod_is_published_and_followed(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.pod("a", 2)
    node.admit("a", 0)
    node.until(lambda: node.holders() == {"a": (0,)})
    node.kubelet.hide("a")
    node.admit("a", 0, 3)
    node.until(lambda: node.holders() == {"a": (0, 3)})


def test_a_kubelet_that_restarts_releases_nobody(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.pod("a", 2, phase="Running", startTime="2026-01-01T00:00:00Z")
    node.admit("a", 0, 3)
    node.until(lambda: node.holders() == {"a": (0, 3)})
    shown = node.restart_kubelet()
    node.pod("b")
    node.admit("b", 6)
    node.until(lambda: "b" in node.holders())  # who comes is not held up by who is in doubt
    node.kubelet.recall([*shown, *node.kubelet.forget()])
    seen = len(node.reports())
    node.until(lambda: node.kubelet.calls["List"] > 18, within=20)
    held = [holders(r, node.gpus) for r in node.reports()]
    first = next(i for i, h in enumerate(held) if h)
    assert all(h.get("a") == (0, 3) for h in held[first:]), held
    assert len(node.reports()) <= seen + 1


def test_a_pod_that_a_restarted_kubelet_does_not_know_keeps_its_devices(node: Node) -> None:
    """While it is alive for all that anybody knows; but the record is not to be relied on."""
    node.start()
    node.until(node.ready)
    node.pod("a", phase="Running", startTime="2026-01-01T00:00:00Z")
    node.admit("a", 0)
    node.until(node.holders)
    node.restart_kubelet()
    node.until(lambda: "does not show" in node.report().not_ready, within=20)
    assert node.holders() == {"a": (0,)}
    node.pod("a", phase="Failed")
    node.until(lambda: node.holders() == {} and node.ready())


def test_devices_that_somebody_else_has_are_let_go(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.pod("a", phase="Running", startTime="2026-01-01T00:00:00Z")
    node.admit("a", 0)
    node.until(node.holders)
    node.restart_kubelet()
    node.pod("b")
    node.admit("b", 0)
    node.until(lambda: node.holders() == {"b": (0,)} and node.ready())


def test_a_silent_kubelet_is_no_empty_node(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    node.kubelet.stop()
    node.until(lambda: not node.ready())
    assert node.holders() == {"a": (0,)}
    assert "kubelet.sock" in node.report().not_ready
    node.kubelet.start()
    node.until(node.ready)


def test_a_busy_kubelet_is_asked_again(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.kubelet.exhaust(3)
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    assert all(not r.not_ready for r in node.reports()[1:])


def test_a_kubelet_that_stays_busy_is_a_silent_one(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.kubelet.exhaust(1000)
    node.until(lambda: "RESOURCE_EXHAUSTED" in node.report().not_ready)
    node.kubelet.exhaust(0)
    node.until(node.ready)


def test_pods_of_one_name_are_told_apart(node: Node) -> None:
    node.start()
    node.until(node.ready)
    old = node.pod("a")["metadata"]["uid"]
    node.admit("a", 0)
    node.until(node.holders)
    node.api.remove(f"{PODS}/a")  # by force: the kubelet is slower
    new = node.pod("a")["metadata"]["uid"]
    node.admit("a", 4)
    node.until(lambda: len(node.report().allocations) == 2)
    found = {a.pod_uid: node.gpus.index(a.device_ids[0]) for a in node.report().allocations}
    assert found == {old: 0, new: 4}
    node.kubelet.hide("a")
    node.until(lambda: len(node.report().allocations) == 1)
    assert node.report().allocations[0].pod_uid == new


def test_a_new_self_knows_whose_devices_the_former_saw(node: Node) -> None:
    """A pod deleted by force, held by the kubelet still, and its successor waits for admission."""
    node.start()
    node.until(node.ready)
    old = node.pod("a")["metadata"]["uid"]
    node.admit("a", 0)
    node.until(node.holders)
    node.api.remove(f"{PODS}/a")
    node.pod("a")
    node.stop()
    before = len(node.reports())
    node.start()
    node.until(lambda: len(node.reports()) > before)
    assert [a.pod_uid for a in node.report().allocations] == [old]


def test_shared_gpus_and_dra_claims_are_recognised(node: Node) -> None:
    node.kubelet.allocatable(*(f"{uuid}::{n}" for uuid in node.gpus for n in range(2)))
    node.kubelet.show("default", "a", {"main": {GPU: [f"{node.gpus[0]}::1"]}})
    node.kubelet.show("default", "claims", {"main": {}}, claims={"main": "gpu-3"})
    node.pod("a")
    node.pod("claims", 0)
    node.start()
    node.until(lambda: len(node.report().allocations) == 2)
    a, claims = node.report().allocations
    assert a.device_ids == (f"{node.gpus[0]}::1",)
    assert (claims.resource, claims.device_ids) == ("gpu.nvidia.com", ("n/gpu-3",))
    (served,) = codec.decode(node.record()).topology.resources
    assert (served.strategy, served.replicas) == ("time-slicing", 2)
    assert codec.decode(node.record()).topology.allocator.policy == "distributed"


def test_a_sick_gpu_stays_sick_over_an_agents_restart_and_not_over_a_reboot(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.xid(2, 79)
    node.until(lambda: 2 in node.health())
    said = node.health()[2]
    assert (said.healthy, said.reason) == (False, "Xid79")
    node.stop()
    before = node.report()
    node.start()
    node.until(lambda: len(node.reports()) > 1 and node.report().sequence > before.sequence)
    assert node.health()[2] == said
    node.stop()
    node.boot("boot-2")
    node.start()
    node.until(lambda: node.report().boot_id == "boot-2" and node.ready())
    assert node.health() == {}
    assert node.report().sequence <= 3


def test_a_reset_makes_a_sick_gpu_well(node: Node) -> None:
    node.nvml.energy(2, 10**9)
    node.start()
    node.until(node.ready)
    node.nvml.xid(2, 79)
    node.until(lambda: 2 in node.health())
    node.nvml.reset(2)
    node.until(lambda: node.health() == {})


def test_a_lost_gpu_is_lost_and_not_free(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.lose(3)
    node.until(lambda: 3 in node.health())
    assert not node.health()[3].healthy
    assert "refuse" in node.report().not_ready  # the plugin asks NVML over every GPU
    assert codec.decode(node.record()).topology.allocator.policy == "any"
    node.nvml.xid(5, 79)  # the others are listened to all the same
    node.until(lambda: 5 in node.health())
    topology = codec.decode(node.record()).topology
    assert len(topology.gpus) == 8
    assert topology.links == machine("dgx1-v100").topology("n").links


def test_a_gpu_that_is_gone_at_the_agents_restart_keeps_its_index(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.stop()
    node.nvml.remove(3)
    before = node.report().sequence
    node.start()
    node.until(lambda: node.report().sequence > before and 3 in node.health())
    topology = codec.decode(node.record()).topology
    assert [(g.index, g.uuid) for g in topology.gpus] == list(enumerate(node.gpus))


def test_a_dropped_link_does_not_count_any_more(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.drop_link(0, 1)

    def counts() -> int:
        return sum(k.nvlinks for k in codec.decode(node.record()).topology.links)

    before = sum(k.nvlinks for k in machine("dgx1-v100").topology("n").links)
    node.until(lambda: counts() == before - 1)
    node.nvml.raise_link(0, 1)
    node.stop()
    node.start()
    node.until(node.ready)
    assert counts() == before - 1
    assert [h.healthy for h in node.health().values()] == [True, True]


def test_a_call_that_hangs_holds_up_only_what_it_was_for(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.hang("nvmlDeviceGetNvLinkState")
    node.until(lambda: "hangs" in node.report().not_ready)
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    node.nvml.lift()
    node.until(node.ready)


def test_without_a_driver_the_record_says_so(node: Node) -> None:
    node.nvml.fail("nvmlInitWithFlags", 9)
    node.nvml.fail("nvmlInit_v2", 9)
    node.start()
    node.until(lambda: "Driver Not Loaded" in node.report().not_ready)
    assert codec.decode(node.record()).topology.gpus == ()
    node.nvml.lift()
    node.until(node.ready)
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_a_driver_that_goes_leaves_the_hardware_as_it_was(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.stop()
    node.nvml.fail("nvmlInitWithFlags", 9)
    node.nvml.fail("nvmlInit_v2", 9)
    node.start()
    node.until(lambda: not node.ready())
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_use_by_nobody_is_said(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.processes(6, [(4711, 1 << 28)])

    def unaccounted() -> str:
        return next(
            (
                c.message
                for c in node.report().conditions
                if c.type == "UnaccountedUse" and c.status
            ),
            "",
        )

    node.until(lambda: unaccounted() == "GPU 6")
    node.pod("a")
    node.admit("a", 6)
    node.until(lambda: node.holders() == {"a": (6,)} and not unaccounted())


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
    node.until(lambda: node.holders() == {"a": (0,)}, within=30)


def test_writes_without_an_answer_are_not_lost_and_not_doubled(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.api.commit_then_hang(f"{RECORD}/status")
    node.pod("a")
    node.admit("a", 0)
    node.until(lambda: node.holders() == {"a": (0,)})
    node.api.allow()
    node.pod("b")
    node.admit("b", 1)
    node.until(lambda: node.holders() == {"a": (0,), "b": (1,)}, within=30)
    numbers = [r.sequence for r in node.reports()]
    assert numbers == sorted(set(numbers))


def test_somebody_elses_changes_are_overwritten(node: Node) -> None:
    node.start()
    node.until(node.ready)
    wrong = copy.deepcopy(node.record())
    wrong["spec"]["devices"] = wrong["spec"]["devices"][:2]
    wrong["spec"]["links"] = []
    wrong["status"]["allocations"] = []
    node.api.put(RECORDS, wrong)
    node.pod("a")
    node.admit("a", 0)
    node.until(lambda: node.holders() == {"a": (0,)})
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_a_deleted_record_is_there_again_with_the_next_heartbeat(node: Node) -> None:
    node.heartbeat = 1.0
    node.start()
    node.until(node.ready)
    node.api.remove(RECORD)
    node.until(node.ready)
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_a_record_that_cannot_be_read_is_replaced(node: Node) -> None:
    node.api.put(RECORDS, {"metadata": {"name": "n"}, "spec": {"devices": "none"}})
    node.start()
    node.until(node.ready)
    assert len(codec.decode(node.record()).topology.gpus) == 8


def test_a_node_that_was_made_anew_owns_the_record(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.stop()
    node.api.remove("/api/v1/nodes/n")
    node.api.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "n", "uid": "node-2"}})
    node.start()
    node.until(lambda: node.record()["metadata"]["ownerReferences"][0]["uid"] == "node-2")


def test_an_unknown_topology_manager_is_published_as_unknown(node: Node) -> None:
    node.told = KubeletFacts()
    node.start()
    node.until(node.ready)
    facts = codec.decode(node.record()).topology.allocator
    assert facts.topology_manager_policy == "unknown"
    complete = next(c for c in node.report().conditions if c.type == "Complete")
    assert not complete.status
    assert "Topology Manager" in complete.message


def test_once_writes_once(node: Node) -> None:
    picture = node.service().once(write=True)
    assert picture.topology is not None
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


def test_another_boots_hardware_is_nobodys(node: Node) -> None:
    """A reboot with another GPU, a driver that is slow, and an agent that restarts meanwhile."""
    node.start()
    node.until(node.ready)
    node.stop()
    node.boot("boot-2")
    node.nvml.fail("nvmlInit", 9)
    node.start()
    node.until(lambda: node.report().boot_id == "boot-2")
    assert codec.decode(node.record()).topology.gpus == ()
    node.stop()
    other = machine("hgx-h100-8").topology("other")
    node.nvml.lift()
    node.nvml.replace(other)
    node.kubelet.allocatable(*(str(gpu.uuid) for gpu in other.gpus))
    node.start()
    node.until(node.ready)
    assert codec.decode(node.record()).topology.gpus == other.gpus
    assert node.report().health == ()


def test_a_wait_for_events_that_hangs_is_noticed(node: Node) -> None:
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
    before = service.looks
    time.sleep(2)
    assert service.looks - before < 2 / QUICK.vitals * 1.5
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


def test_a_foreign_sequence_is_caught_up_with(node: Node) -> None:
    """The extender passes over whatever does not follow."""
    node.start()
    node.until(node.ready)
    foreign = copy.deepcopy(node.record())
    foreign["status"]["sequence"] = 1000
    node.api.put(RECORDS, foreign)
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
    assert node.report().sequence > 1000


def test_after_an_xid_the_kubelet_is_asked_what_it_hands_out(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.nvml.xid(2, 79)
    rest = [uuid for i, uuid in enumerate(node.gpus) if i != 2]
    node.kubelet.allocatable(*rest)
    node.until(lambda: node.report().allocatable == frozenset(rest))


def test_a_plugin_that_comes_late_is_waited_for(node: Node) -> None:
    node.kubelet.allocatable()
    node.start()
    node.until(node.ready)
    node.pod("a")
    node.kubelet.allocatable(*node.gpus)
    node.admit("a", 0)
    node.until(lambda: node.holders() == {"a": (0,)})
    node.until(lambda: node.report().allocatable == frozenset(node.gpus))


def test_gpu_feature_discovery_is_not_the_plugin(node: Node) -> None:
    """It runs the same image, on every node that our DaemonSet selects."""
    container = {
        "name": "gfd",
        "image": "example/k8s-device-plugin:v0.17.1",
        "command": ["gpu-feature-discovery"],
    }
    gfd = {"metadata": {"name": "plugin"}, "spec": {"nodeName": "n", "containers": [container]}}
    node.api.put("/api/v1/namespaces/system/pods", gfd)
    node.start()
    node.until(node.ready)
    assert codec.decode(node.record()).topology.allocator.policy == "any"


def test_a_record_is_written_again_after_its_backoff(node: Node) -> None:
    node.start()
    node.until(node.ready)
    node.api.refuse(500, times=2, path="status")
    node.pod("a")
    node.admit("a", 0)
    node.until(node.holders)
