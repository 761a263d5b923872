"""A node whose evaluation fails costs only itself; classes without a node are forgotten."""

import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.deadline import within
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.rules import devices
from scheduler_extender.kube import sinks as kube
from scheduler_extender.state.answers import answercache
from scheduler_extender.state.answers.answercache import Size
from scheduler_extender.state.cluster import cache
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.groups.groups import TOO_SMALL
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import last_report, pod, record_of, switched
from tests.scheduler_extender.conftest import raw
from tests.scheduler_extender.serving import Clock
from tests.waiting import PATIENCE
from topology import codec
from topology.core import placement, scoring
from topology.core.admission import device_manager_of
from topology.core.devices import DeviceId, GpuUuid, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import IN_PROGRESS
from topology.core.report import Allocation, Health, Report

NVLINK = {"link": "nvlink"}
NAMES = ["a", "b", "c"]


def ask(cluster: Cache, count: int, annotations: dict[str, str]) -> Any:
    return verbs.filter_nodes(
        cluster, msgspec.convert(pod(count, annotations, uid="next"), Pod), NAMES
    )


@pytest.fixture
def cluster() -> Cache:
    found = Cache(Clock())
    for i, name in enumerate(NAMES):
        found.put_record(switched(4 + i, name), Report("boot", 1))
    return found


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Deciding about the node with five GPUs fails, as a fault in the core would make it."""
    real, asked = placement.assess, []

    def assess(kubelet: Any, *rest: Any) -> Any:
        if kubelet.shape.size == 5:
            asked.append("b")
            raise OverflowError("a fault of ours")
        return real(kubelet, *rest)

    monkeypatch.setattr(devices, "assess", assess)
    return asked


def test_one_node_does_not_fail_the_answer_for_the_others(
    cluster: Cache, broken: list[str]
) -> None:
    logged: list[tuple[str, str]] = []
    cluster.faults.on_fault(lambda name, error: logged.append((name, str(error))))
    required = ask(cluster, 2, NVLINK)
    assert required.node_names == ["a", "c"]
    assert required.failed == {"b": UNDECIDED.message}
    assert ask(cluster, 2, {}).node_names == NAMES
    assert ask(cluster, 2, {**NVLINK, "policy": "preferred"}).node_names == NAMES
    assert logged == [("b", "a fault of ours")], "each fault is told once"
    assert cluster.faults.count == 3
    assert ask(cluster, 2, NVLINK) == required, "the same question has the same answer"


@pytest.mark.parametrize(("size", "passes"), [(2, ["a", "c"]), (9, [])])
def test_a_node_that_fails_costs_a_group_only_itself(
    monkeypatch: pytest.MonkeyPatch, size: int, passes: list[str]
) -> None:
    """Places are kept in its domain for another group, or the domain has too few."""

    def fails_on_b(topology: NodeTopology, *rest: Any) -> Any:
        return 1 // 0 if topology.name == "b" else device_manager_of(topology, *rest)

    monkeypatch.setattr("scheduler_extender.state.node.nodeinfo.device_manager_of", fails_on_b)
    cluster = Cache(Clock())
    for i, name in enumerate(NAMES):
        cluster.put_record(switched(4 + i, name), Report("boot", 1))
        cluster.put_node(NodeName(name), NodeObject(exists=True, labels={"zone": "z"}))
    group = {**NVLINK, "group-size": "2", "group-domain": "zone"}
    cluster.put_pod(record_of(pod(2, {**group, "group": "begun"}, node="a")))
    found = ask(cluster, 2, {**group, "group": "asks", "group-size": str(size)})
    assert found.node_names == passes
    refused = dict.fromkeys({"a", "c"} - {*passes}, TOO_SMALL.message)
    assert found.failed == {"b": UNDECIDED.message, **refused}


def test_a_plain_pod_does_not_pass_where_it_could_break_a_promise(
    cluster: Cache, broken: list[str]
) -> None:
    promised = record_of(pod(2, NVLINK, node="b"))
    cluster.put_pod(replace(promised, promised=promised.request.constraints))  # type: ignore[union-attr]
    found = ask(cluster, 1, {})
    assert found.node_names == ["a", "c"]
    assert found.failed == {"b": IN_PROGRESS.message}


def test_a_fault_is_not_cached(cluster: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(devices, "assess", lambda *_: 1 // 0)
        assert ask(cluster, 2, NVLINK).node_names == []
    assert ask(cluster, 2, NVLINK).node_names == NAMES


def test_a_bind_to_such_a_node_is_rejected_and_loses_no_assumed_pod(
    cluster: Cache, broken: list[str]
) -> None:
    train = record_of(pod(2, NVLINK))
    cluster.put_pod(train)
    cluster.assume(NodeName("b"), train)
    args = BindingArgs("train", "default", "uid-1", "b")
    with pytest.raises(verbs.BindError, match="could not be evaluated"):
        verbs.bind(cluster, None, args, lambda: "now")  # type: ignore[arg-type]
    assert [p.uid for p in list(cluster.snapshot().assumed.values())] == ["uid-1"]


def test_a_score_that_cannot_be_worked_out_is_neutral(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scoring.placement_cost

    def placement_cost(kubelet: Any, *rest: Any) -> Any:
        if kubelet.shape.size == 5:
            raise RecursionError
        return real(kubelet, *rest)

    monkeypatch.setattr(scoring, "placement_cost", placement_cost)
    asked = msgspec.convert(pod(2, {}, uid="next"), Pod)
    scores = {row.host: row.score for row in verbs.prioritize(cluster, asked, NAMES)}
    assert scores["b"] == 5
    assert max(scores.values()) == 10


def test_a_report_that_cannot_be_verified_is_taken_in(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    cluster.faults.on_fault(lambda name, error: logged.append(name))
    monkeypatch.setattr(cache, "verify", lambda *_: 1 // 0)
    cluster.put_report(NodeName("a"), Report("boot", 2))
    assert logged == ["a"]
    assert last_report(cluster.node_info(NodeName("a"))).sequence == 2


def test_what_fails_for_one_object_of_a_list_costs_only_that_one(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = codec.decode

    def decode(data: Any) -> Any:
        if data["metadata"]["name"] == "b":
            raise OverflowError("a fault of ours")
        return real(data)

    monkeypatch.setattr(kube, "decode", decode)
    records = [codec.encode(switched(6, name), Report("boot", 2)) for name in NAMES]
    kube.RecordSink(cluster).replace([raw(record) for record in records], "9")
    assert sorted(cluster.snapshot().by_name) == NAMES
    found = {name: cluster.node_info(NodeName(name)) for name in NAMES}
    assert found["b"].record.problem == "internal error: OverflowError"
    assert found["c"].topology is not None
    assert len(found["c"].topology.gpus) == 6


def test_a_pod_that_cannot_be_taken_in_stays_as_it_was(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = kube.PodSink(cluster)
    held, other = pod(2, node="a"), pod(1, name="other", uid="uid-2", node="a")
    sink.replace([raw(held)], "1")
    monkeypatch.setattr(
        kube,
        "counting_record",
        lambda p, _: 1 // 0 if p.metadata.uid == "uid-1" else record_of(other),
    )
    sink.replace([raw(held), raw(other)], "2")
    assert {p.uid for p in cluster.node_info(NodeName("a")).pods.every} == {"uid-1", "uid-2"}


def test_verification_holds_no_lock(cluster: Cache) -> None:
    """A listener to mispredictions may take as long as it likes."""
    free: list[bool] = []

    def listener(_: object) -> None:
        def try_lock() -> None:
            with cluster.lock:
                free.append(True)

        thread = threading.Thread(target=try_lock)
        thread.start()
        thread.join(PATIENCE)

    cluster.on_misprediction.append(listener)
    train = record_of(pod(2, NVLINK, node="a"))
    bad = replace(train, promised=replace(train.request.constraints, min_nvlinks=18))  # type: ignore[union-attr]
    cluster.put_pod(bad)
    ids = (DeviceId("GPU-0"), DeviceId("GPU-1"))
    held = Allocation(PodUid("uid-1"), "default", "train", "main", "nvidia.com/gpu", ids)
    cluster.put_report(NodeName("a"), Report("boot", 2, allocations=(held,)))
    assert free == [True]


# What is remembered.


def sick(node: NodeTopology, sequence: int) -> Report:
    """A report of a state that no other one shares."""
    bits = f"{sequence % 2 ** len(node.gpus):0{len(node.gpus)}b}"
    health = tuple(
        Health(GpuUuid(g.uuid), False, "x")
        for g, b in zip(node.gpus, bits, strict=True)
        if b == "1"
    )
    return Report("boot", sequence, health=health)


def test_a_state_that_no_node_is_in_is_forgotten() -> None:
    node = switched(8, "a")
    cluster = Cache(Clock())
    cluster.put_record(switched(8, "b"), Report("boot", 1))
    cluster.put_record(switched(8, "c"), Report("boot", 1))
    for sequence in range(1, 256):
        cluster.put_record(node, sick(node, sequence))
        ask(cluster, 2, NVLINK)
        verbs.prioritize(cluster, msgspec.convert(pod(2, NVLINK), Pod), NAMES)
    assert cluster.answers.size() == Size(classes=2, requests=1, answers=2)
    for name in NAMES:
        cluster.drop_record(NodeName(name))
    assert cluster.answers.size() == Size(classes=0, requests=1, answers=0)


def test_the_number_of_cached_answers_is_bounded(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answercache, "CACHED_ANSWERS", 7)
    for count in (1, 2, 3, 4):
        ask(cluster, count, {})
    assert cluster.answers.size() == Size(classes=3, requests=2, answers=6)


def test_requests_that_no_known_node_was_offered_for_are_forgotten_too(cluster: Cache) -> None:
    """A client may name nodes that do not exist, with constraints that no pod had before."""
    for speed in range(1, 2 * answercache.CACHED_REQUESTS):
        asked = msgspec.convert(pod(2, {"min-bandwidth": str(speed)}, uid="next"), Pod)
        verbs.filter_nodes(cluster, asked, ["nowhere"], within(cluster.clock, 1.0))
    assert cluster.answers.size().requests == answercache.CACHED_REQUESTS
