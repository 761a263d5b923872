"""Pods deleted before their kubelet was seen to release them, and recreated records."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.binder import Settler
from scheduler_extender.kube.sinks import PodSink, RecordSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.transitions import MOST_TERMINATED
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from tests.nodes import bridged, last_report, pod, record_of, switched
from tests.scheduler_extender.conftest import Kube, raw
from tests.scheduler_extender.serving import Clock
from topology import codec
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.report import Allocation, Condition, Report
from topology.core.requests import NO_CONSTRAINTS, Constraints

NODE = switched(4, "node")
NAME = NodeName("node")
NVLINK = {"link": "nvlink"}


def report(sequence: int, knows: int | None = None, *held: tuple[str, int], **more: Any) -> Report:
    """A report whose agent knew the pods up to version ``knows``; ``held`` are UIDs and GPUs."""
    shown = tuple(
        Allocation(PodUid(uid), "default", uid, "main", "nvidia.com/gpu", (DeviceId(f"GPU-{i}"),))
        for uid, i in held
    )
    version = "" if knows is None else str(knows)
    return Report("boot", sequence, allocations=shown, pods_version=version, **more)


def bound(uid: str = "uid-1", count: int = 4, **more: Any) -> dict[str, Any]:
    found = pod(count, name=uid, uid=uid, node="node", **more)
    found["metadata"]["resourceVersion"] = "10"
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> Cache:
    found = Cache(clock)
    found.put_record(NODE, report(1, 5))
    return found


def delete(cluster: Cache, manifest: dict[str, Any], version: int) -> None:
    manifest["metadata"]["resourceVersion"] = str(version)
    PodSink(cluster).delete(raw(manifest))


def fits(cluster: Cache, count: int = 2) -> bool:
    asked = msgspec.convert(pod(count, NVLINK, uid="next"), Pod)
    return verbs.filter_nodes(cluster, asked, ["node"]).node_names == ["node"]


def test_a_pod_that_is_gone_counts_once_while_the_watch_is_late(cluster: Cache) -> None:
    """The settler has read that the pod is gone. The watch on pods still shows it bound."""
    assert cluster.assume(NAME, record_of(pod(2, name="uid-1", uid="uid-1")))
    cluster.drop_assumed(PodUid("uid-1"), 20)
    cluster.put_record(NODE, report(2, 19, ("uid-1", 0), ("uid-1", 1)))
    assert fits(cluster)
    PodSink(cluster).apply(raw(bound(count=2)))
    assert fits(cluster), "two GPUs are free, whatever the two others are"
    delete(cluster, bound(count=2), 12)
    assert not fits(cluster, 4), "its kubelet has not let go"
    cluster.put_record(NODE, report(3, 20))
    assert fits(cluster, 4)


def test_a_pod_deleted_by_force_holds_until_its_agent_knew_of_it(cluster: Cache) -> None:
    PodSink(cluster).apply(raw(bound()))
    assert not fits(cluster)
    delete(cluster, bound(), 20)
    assert not fits(cluster), "the kubelet may be giving it GPUs right now"
    cluster.put_record(NODE, report(2, 19))
    assert not fits(cluster), "this was on its way before the deletion"
    cluster.put_record(NODE, report(3, 20, ("uid-1", 0)))
    assert not fits(cluster, 4), "the kubelet shows it still"
    cluster.put_record(NODE, report(4, 20))
    assert fits(cluster, 4)
    assert cluster.node_info(NAME).pods.every == ()


def test_a_report_that_its_agent_cannot_vouch_for_proves_nothing(cluster: Cache) -> None:
    admitted = bound(startTime="2026-01-01T00:00:00Z")
    PodSink(cluster).apply(raw(admitted))
    delete(cluster, admitted, 20)
    silent = (Condition("Ready", False, "KubeletUnavailable", "silent"),)
    cluster.put_record(NODE, report(2, 30, conditions=silent))
    assert [p.uid for p in cluster.node_info(NAME).pods.every] == ["uid-1"]
    cluster.put_record(NODE, report(3, 30))
    assert fits(cluster, 4)


def test_the_report_may_come_before_the_deletion(cluster: Cache) -> None:
    """The watches are not in step: the agent may know of it long before we do."""
    admitted = bound(startTime="2026-01-01T00:00:00Z")
    PodSink(cluster).apply(raw(admitted))
    cluster.put_record(NODE, report(2, 30))
    delete(cluster, admitted, 20)
    assert fits(cluster, 4), "its kubelet has taken it, so it knew the pod"


def test_a_terminating_pod_may_be_deleted_by_force(cluster: Cache) -> None:
    """A finalizer has kept it, as a Job's, or somebody had deleted it before, and did not wait. Its
    kubelet would have said first that the pod has failed or succeeded."""
    terminating = bound()
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    PodSink(cluster).apply(raw(terminating))
    delete(cluster, terminating, 20)
    cluster.put_record(NODE, report(2, 20))
    assert not fits(cluster, 4), "its kubelet may not have met it yet"
    cluster.put_record(NODE, report(3, 20))
    assert fits(cluster, 4)


def test_a_deletion_that_only_a_list_shows(cluster: Cache) -> None:
    PodSink(cluster).apply(raw(bound()))
    PodSink(cluster).replace([], "50")
    cluster.put_record(NODE, report(2, 49))
    assert not fits(cluster)
    cluster.put_record(NODE, report(3, 50))
    assert fits(cluster, 4)


@pytest.mark.parametrize("version", ["", "abc", "9" * 30])
def test_an_agent_that_does_not_say_what_it_knew_has_to_report_twice(
    cluster: Cache, version: str
) -> None:
    PodSink(cluster).apply(raw(bound()))
    delete(cluster, bound(), 20)
    cluster.put_record(NODE, Report("boot", 2, pods_version=version))
    assert not fits(cluster)
    cluster.put_record(NODE, Report("boot", 3, pods_version=version))
    assert fits(cluster, 4)


def test_a_pod_that_has_ended_lets_go_at_once(cluster: Cache) -> None:
    PodSink(cluster).apply(raw(bound(phase="Succeeded")))
    delete(cluster, bound(phase="Succeeded"), 20)
    assert fits(cluster, 4)


def test_a_node_without_an_agent_has_no_unconfirmed_pods() -> None:
    cluster = Cache(Clock())
    for i in range(100):
        PodSink(cluster).apply(raw(bound(f"u{i}")))
        delete(cluster, bound(f"u{i}"), 20 + i)
    assert sorted(cluster.snapshot().by_name) == []


def test_a_version_that_is_no_number_blocks_no_pod_for_ever(cluster: Cache) -> None:
    PodSink(cluster).apply(raw(bound()))
    PodSink(cluster).replace([], "not-a-number")
    cluster.put_record(NODE, report(2, 30))
    assert not fits(cluster)
    cluster.put_record(NODE, report(3, 30))
    assert fits(cluster, 4)


def test_a_recreated_record_releases_pods_deleted_before_it(cluster: Cache) -> None:
    """An agent that does not say what it knew, and starts its numbers again."""
    cluster.put_node(NAME, NodeObject())
    cluster.put_record(NODE, Report("boot", 900), uid="first")
    PodSink(cluster).apply(raw(bound()))
    delete(cluster, bound(), 20)
    cluster.drop_record(NAME)
    for sequence in (1, 2):
        cluster.put_record(NODE, Report("boot", sequence), uid="second")
        assert not fits(cluster)
    cluster.put_record(NODE, Report("boot", 3), uid="second")
    assert fits(cluster, 4)


def test_a_pod_deleted_while_its_node_has_no_record_holds_until_two_more_reports(
    cluster: Cache,
) -> None:
    PodSink(cluster).apply(raw(bound()))
    cluster.put_problem(NAME, "unreadable")
    delete(cluster, bound(), 20)
    for sequence in (7, 8):
        cluster.put_record(NODE, report(sequence, 20))
        assert not fits(cluster), "its kubelet may not have met it yet"
    cluster.put_record(NODE, report(9, 20))
    assert fits(cluster, 4)


def test_the_promise_to_a_deleted_pod_delays_no_other() -> None:
    cluster = Cache(Clock())
    cluster.put_record(bridged(4, "node"), report(1, 5))
    placement = json.dumps({"verdict": "guaranteed", "node": "node", "uid": "uid-1"})
    manifest = bound("uid-1", 2, annotations={**NVLINK, "placement": placement})
    PodSink(cluster).apply(raw(manifest))
    assert cluster.node_info(NAME).pods.every[0].promised == Constraints(link=LinkKind.NVLINK)
    delete(cluster, manifest, 20)
    assert cluster.node_info(NAME).pods.every[0].promised == NO_CONSTRAINTS


def test_waiting_pods_are_woken_when_a_deleted_pod_is_released_beside_unacknowledged_ones(
    cluster: Cache,
) -> None:
    """One pod is unconfirmed and then terminated: two changes that leave the count the same."""
    PodSink(cluster).apply(raw(bound("uid-1", 1)))
    PodSink(cluster).apply(raw(bound("stays", 3)))
    delete(cluster, bound("uid-1", 1), 20)
    assert not fits(cluster, 1)
    woken: list[str] = []
    cluster.on_change.append(woken.append)
    cluster.put_record(NODE, report(3, 20))
    assert woken == [NAME]
    assert fits(cluster, 1)


@pytest.mark.parametrize("confirmed", ["deleted", "missing from a list", "bound", "not changed"])
def test_terminated_pods_are_not_forgotten_while_the_pod_beside_them_is_replaced(
    clock: Clock, confirmed: str
) -> None:
    """The pair may have been admitted beside either single: what is left may be torn."""
    topology = replace(bridged(4, "node"), allocator=AllocatorConfig("best-effort"))
    cluster = Cache(clock)
    cluster.put_record(topology, report(1, 5))
    pair = bound("pair", 2)
    known = record_of(pair)
    if confirmed in ("deleted", "missing from a list"):
        PodSink(cluster).apply(raw(pair))
    else:
        cluster.assume(NAME, replace(known, node=None))
    for single in ("a", "b"):
        PodSink(cluster).apply(raw(bound(single, 1)))
        PodSink(cluster).apply(raw(bound(single, 1, phase="Succeeded")))
    assert set(cluster.node_info(NAME).pods.terminated) == {"a", "b"}
    assert not fits(cluster)
    if confirmed == "deleted":
        delete(cluster, pair, 50)
    elif confirmed == "missing from a list":
        cluster.keep_pods({PodUid("a"), PodUid("b")}, 50)
    elif confirmed == "bound":
        PodSink(cluster).apply(raw(pair))
    assert set(cluster.node_info(NAME).pods.terminated) == {"a", "b"}
    assert not fits(cluster)


@pytest.mark.parametrize("agent", ["never", "gone", "there"])
def test_pods_that_depart_beside_one_that_stays_unacknowledged(agent: str) -> None:
    """Work and memory stay bounded; nothing is promised while the order of the pods is unknown."""
    cluster = Cache(Clock())
    cluster.put_node(NAME, NodeObject())
    if agent != "never":
        cluster.put_record(NODE, report(1, 5))
    if agent == "gone":
        cluster.drop_record(NAME)
    PodSink(cluster).apply(raw(bound("stays", 1)))
    for i in range(3 * MOST_TERMINATED):
        PodSink(cluster).apply(raw(bound(f"u{i}", 1)))
        PodSink(cluster).apply(raw(bound(f"u{i}", 1, phase="Succeeded")))
        delete(cluster, bound(f"u{i}", 1), 20 + i)
    assert 0 < len(cluster.node_info(NAME).pods.terminated) <= MOST_TERMINATED
    cluster.put_record(NODE, report(2, 900))
    assert fits(cluster) is (agent == "never"), "its first report tells of everybody"
    assert verbs.filter_nodes(
        cluster, msgspec.convert(pod(1, uid="plain"), Pod), ["node"]
    ).node_names == ["node"]
    cluster.put_record(NODE, report(3, 900, ("stays", 0)))
    assert fits(cluster)
    assert not cluster.node_info(NAME).pods.terminated


def test_file_mode_learns_when_the_kubelet_has_released_a_pod(cluster: Cache) -> None:
    known = pod_record(msgspec.convert(bound(), Pod), MANAGED)
    assert isinstance(known, PodRecord)
    cluster.put_pod(known)
    cluster.drop_pod(known.uid)
    assert fits(cluster, 4)


# Records that come anew, and records of the dead.


def record(sequence: int, uid: str, *, boot: str = "boot", observed: str = "") -> msgspec.Raw:
    found = codec.encode(NODE, Report(boot, sequence, observed_at=observed))
    found["metadata"] = {"name": "node", "uid": uid}
    return msgspec.Raw(json.dumps(found).encode())


def sequence_of(cluster: Cache) -> int:
    return last_report(cluster.node_info(NAME)).sequence


def test_a_record_made_anew_starts_its_numbers_again(clock: Clock) -> None:
    """Deleted and created again while we did not look: the list shows the new one alone."""
    cluster = Cache(clock)
    sink = RecordSink(cluster)
    sink.apply(record(41, "first"))
    sink.apply(record(40, "first"))
    assert sequence_of(cluster) == 41, "older news of one record is passed over"
    clock.now = 100.0
    sink.replace([record(2, "second")], "9")
    assert sequence_of(cluster) == 2
    sink.apply(record(3, "second"))
    assert sequence_of(cluster) == 3
    clock.now = 270.0
    assert not cluster.node_info(NAME).record.stale, "and it is fresh"


NOON = 1_795_262_400.0  # 2026-11-21T12:00:00Z, in seconds


@pytest.mark.parametrize(
    ("observed", "stale"),
    [
        pytest.param("2026-11-21T11:59:30Z", False, id="alive"),
        pytest.param("2026-11-21T11:56:59Z", True, id="silent-for-longer"),
        pytest.param("2026-11-18T00:00:00Z", True, id="dead-for-days"),
        pytest.param("2026-11-21T12:10:00Z", False, id="its-clock-is-ahead"),
        pytest.param("", False, id="does-not-say"),
        pytest.param("yesterday", False, id="not-a-time"),
    ],
)
def test_a_dead_agents_record_is_stale_from_the_start(observed: str, stale: bool) -> None:
    """An extender that has just started has seen no change yet: it goes by the agent's word."""
    cluster = Cache(Clock())
    sink = RecordSink(cluster, lambda: NOON)
    sink.apply(record(7, "a", observed=observed))
    assert cluster.node_info(NAME).record.stale is stale
    assert fits(cluster) is not stale
    sink.apply(record(8, "a", observed=observed))
    assert not cluster.node_info(NAME).record.stale, "who writes is alive, whatever its clock says"


def test_what_is_old_when_first_seen_has_less_time_left() -> None:
    clock = Clock()
    cluster = Cache(clock)
    RecordSink(cluster, lambda: NOON).apply(record(7, "a", observed="2026-11-21T11:58:00Z"))
    clock.now = 59.0
    assert not cluster.node_info(NAME).record.stale
    clock.now = 61.0
    assert cluster.node_info(NAME).record.stale


def test_an_assumed_pod_that_is_gone_counts_until_its_agent_knew_of_it(kube: Kube) -> None:
    """The watch was stale: it showed neither the bind nor the forced deletion."""
    kube.cluster.put_record(NODE, report(1, 5))
    kube.cluster.assume(NAME, record_of(pod(4, name="gone", uid="uid-1")))
    kube.fake.put("/api/v1/namespaces/default/pods/other", pod(1, name="other", uid="uid-2"))
    settler = Settler(kube.cluster, kube.binder, patience=10)
    settler.round(0)
    settler.round(10)
    assert list(kube.cluster.snapshot().assumed.values()) == []
    assert not fits(kube.cluster), "its kubelet may hold its GPUs"
    kube.cluster.put_record(NODE, report(2, kube.binder.version() - 1))
    assert not fits(kube.cluster)
    kube.cluster.put_record(NODE, report(3, kube.binder.version()))
    assert fits(kube.cluster, 4)
