"""Faults that a fresh pair of eyes found once, each kept from coming back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.settler import Settler
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.objects import contradiction
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import pcie, pod, switched
from tests.scheduler_extender.serving import Clock
from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess
from topology.core.pools import pack
from topology.core.report import Allocation, Health, Report
from topology.core.requests import Constraints, gpu_request
from topology.kubeapi.apiserver import ApiServer, ApiUnreachable

NODE = switched(4, "node")
NAME = NodeName("node")
NVLINK = {"link": "nvlink"}


def record(manifest: dict[str, Any]) -> PodRecord:
    found = pod_record(msgspec.convert(manifest, Pod), MANAGED)
    assert found is not None
    return found


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(Clock(), Settings())
    found.feed.put_record(NODE, Report("boot", 1))
    return found


class Unsure:
    """A binder whose writes may or may not have happened."""

    def __init__(self) -> None:
        self.writes = 0
        self.there: PodRecord | None = None

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return self.there

    def write(self, binding: Binding) -> None:
        self.writes += 1
        raise BindUnknownError("no answer")


def bind(cluster: Cluster, binder: Unsure) -> None:
    verbs.bind(cluster, binder, BindingArgs("train", "default", "uid-1", "node"), lambda: "now")


def test_a_repeated_bind_does_not_write_what_no_longer_holds(cluster: Cluster) -> None:
    cluster.feed.put_pod(record(pod(2, NVLINK)))
    binder = Unsure()
    with pytest.raises(BindError):
        bind(cluster, binder)
    sick = tuple(Health(g.uuid, False, "Xid79") for g in NODE.gpus)
    cluster.feed.put_report(NAME, Report("boot", 2, health=sick))
    with pytest.raises(BindError, match="would hand out a sick GPU"):
        bind(cluster, binder)
    assert binder.writes == 1
    (kept,) = list(cluster.snapshot().in_flight.values())
    assert kept.promised == Constraints(link=LinkKind.NVLINK)


def test_the_settler_leaves_a_newer_bind_alone(cluster: Cluster) -> None:
    cluster.feed.put_pod(record(pod(4)))
    cluster.binds.begin(NAME, record(pod(4)))

    class Overtaken(Unsure):
        def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
            cluster.binds.release(uid)
            cluster.binds.begin(NAME, record(pod(4)))
            return record(pod(4))

    settler = Settler(cluster, Overtaken(), patience=1)  # type: ignore[arg-type]
    settler.round(0)
    settler.round(2)
    assert len(list(cluster.snapshot().in_flight.values())) == 1


def test_the_settler_does_not_revive_a_deleted_pod(cluster: Cluster) -> None:
    cluster.binds.begin(NAME, record(pod(4)))

    class Deleted(Unsure):
        def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
            cluster.feed.drop_pod(uid)
            return record(pod(4, node="node"))

    settler = Settler(cluster, Deleted(), patience=1)  # type: ignore[arg-type]
    settler.round(0)
    settler.round(2)
    assert cluster.facts(NAME).pods.every == ()


def test_the_watch_may_overtake_a_bind(cluster: Cluster) -> None:
    cluster.feed.put_pod(record(pod(2, node="node")))
    cluster.binds.begin(NAME, record(pod(2)))
    cluster.feed.put_pod(record(pod(2, node="node")))
    assert list(cluster.snapshot().in_flight.values()) == []


def test_shares_of_one_gpu_are_no_pair_even_when_sets_are_too_many() -> None:
    kubelet = Kubelet(switched(16).shape, replicas=8)
    now = Availability(pack([8] * 16, 4), width=4)
    for count in (2, 8):
        request = gpu_request(count, Constraints(link=LinkKind.NVLINK))
        assert assess(kubelet, now, request).verdict is Verdict.POSSIBLE


def test_a_large_node_does_not_hold_everybody_up() -> None:
    request = gpu_request(24, Constraints(link=LinkKind.PIX))
    found = assess(Kubelet(pcie(48).shape), Availability((1 << 48) - 1), request)
    assert not found.verdict.holds


def test_a_bound_pod_with_a_bad_annotation_still_holds_its_gpus() -> None:
    bad = record(pod(4, {"oops": "1"}, node="node"))
    assert ledger(NODE, Report(), [bad], "nvidia.com/gpu").availability.devices_left == 0


@pytest.mark.parametrize(
    ("report", "words"),
    [
        pytest.param(
            Report(allocatable=frozenset({DeviceId("GPU-0"), DeviceId("GPU-x")})),
            "GPU-x is not among the devices",
            id="unknown",
        ),
        pytest.param(
            Report(
                allocations=(
                    Allocation(
                        PodUid("a"), "d", "a", "m", "nvidia.com/gpu", (DeviceId("GPU-0::1"),)
                    ),
                )
            ),
            "is a share",
            id="share",
        ),
        pytest.param(
            Report(
                allocations=(
                    Allocation(
                        PodUid("a"), "d", "a", "m", "nvidia.com/gpu", (DeviceId("GPU-0"),) * 2
                    ),
                )
            ),
            "is listed twice for one container",
            id="twice",
        ),
    ],
)
def test_a_report_that_cannot_be_true(report: Report, words: str) -> None:
    assert words in (contradiction(NODE, report, "nvidia.com/gpu") or "")


def test_another_resource_retires_no_bind_in_flight() -> None:
    ids = (DeviceId("MIG-1"), DeviceId("MIG-2"))
    slices = Allocation(PodUid("uid-1"), "d", "train", "main", "nvidia.com/mig-1g.5gb", ids)
    bound = record(pod(2, node="node"))
    now = ledger(NODE, Report(allocations=(slices,)), [bound], "nvidia.com/gpu").availability
    assert now.devices_left == 2


def test_one_unreadable_pod_costs_only_itself(cluster: Cluster) -> None:
    good = msgspec.json.encode(pod(2, node="node"))
    empty = b'{"metadata":{"name":"a","uid":"u"},"spec":{"containers":null},"status":{}}'
    broken = b'{"metadata":{"name":"b","uid":"v"},"spec":{"containers":3}}'
    PodSink(cluster).replace([msgspec.Raw(x) for x in (broken, empty, good)], "1")
    assert [p.uid for p in cluster.facts(NAME).pods.every] == ["uid-1"]


class Patches(ApiServer):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fail = False

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        if self.fail:
            raise ApiUnreachable("down")
        self.bodies.append(body)
        return b"{}"


def test_a_wake_that_failed_is_tried_again_and_one_due_later_is_not_lost(cluster: Cluster) -> None:
    api = Patches()
    waker = Waker(cluster, api)
    unschedulable = replace(record(pod(2, NVLINK)), called_unschedulable=True)
    cluster.feed.put_pod(unschedulable)
    api.fail = True
    cluster.feed.put_report(NAME, Report("boot", 2, health=(Health(NODE.gpus[0].uuid, True),)))
    waker.round(0)
    api.fail = False
    waker.round(Waker.SHORTEST + 1)
    assert len(api.bodies) == 1
    for step in range(200):  # changes all the time: ever rarer, never never
        cluster.feed.put_report(
            NAME, Report("boot", 3 + step, health=(Health(NODE.gpus[0].uuid, bool(step % 2)),))
        )
        waker.round(10.0 + step)
    before = len(api.bodies)
    assert before <= 200 / Waker.LONGEST_ALONE + 4
    for step in range(100):
        waker.round(210.0 + step)
    assert len(api.bodies) <= before + 1


def test_a_crowd_is_woken_in_rounds(cluster: Cluster) -> None:
    api = Patches()
    waker = Waker(cluster, api)
    for i in range(120):
        one = record(pod(2, NVLINK, name=f"p{i}", uid=f"u{i}"))
        cluster.feed.put_pod(replace(one, called_unschedulable=True))
    cluster.feed.put_report(NAME, Report("boot", 2, health=(Health(NODE.gpus[0].uuid, True),)))
    sizes = []
    for step in range(4):
        waker.round(0.1 * step)
        sizes.append(len(api.bodies))
    assert sizes == [50, 100, 120, 120]
