"""Idle pods, and the pods that their end would unblock, by the extender's code."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.idle import IdlePod, Tried, idle_pods, what_ends_would_do
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.selecting import EligibleNodes, Requirement
from tests.deadlines import ending_when
from tests.nodes import last_report
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import MIB, Bytes, DeviceId, MigInstance, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, IdleAllocation, Report
from topology.core.requests import gpu_request
from topology.machines import machine

GPU = "nvidia.com/gpu"
OBSERVED = "2026-01-01T12:07:00Z"
TODAY = 1767269220.0 + 3600  # an hour after that look
PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
OTHER = machine("a100-pcie-4-bridged").topology("other")


def scene(
    nodes: Mapping[NodeTopology, Mapping[str, Held]], **since: str
) -> tuple[Cache, list[IdlePod]]:
    """A cluster in which some pods have been idle since a time of that day."""
    cluster = cluster_of(nodes)
    for info in cluster.snapshot().nodes:
        report = last_report(info)
        idle = tuple(
            IdleAllocation(a.pod_uid, a.container, a.resource, f"2026-01-01T{since[a.pod]}:00Z")
            for a in report.allocations
            if a.pod in since
        )
        report = replace(report, sequence=2, idle=idle, observed_at=OBSERVED)
        assert cluster.put_report(info.name, report)
    return cluster, idle_pods(cluster.snapshot(), TODAY)


def tried(cluster: Cache, idle: list[IdlePod]) -> Tried:
    return what_ends_would_do(cluster.snapshot(), idle, NO_DEADLINE)


def helped(found: Tried) -> dict[str, list[tuple[list[str], set[str]]]]:
    """By idle pod: the waiting pods whom its end helps, and who would have to end, too."""
    return {
        uid: [([pod.name for pod in each.pods], set(each.together)) for each in completes]
        for uid, completes in found.completes.items()
    }


def test_idle_pods_are_reported_with_their_gpus_the_longest_idle_first() -> None:
    _, idle = scene(
        {PAIRS: {"a": Held((0, 2)), "b": Held((1,))}, OTHER: {"c": Held((3,)), "d": Held((0,))}},
        a="11:00",
        c="09:30",
    )
    assert [(p.node, p.pod, p.gpus, p.since[11:16]) for p in idle] == [
        ("other", "c", (3,), "09:30"),
        ("pairs", "a", (0, 2), "11:00"),
    ]
    assert [p.seconds / 60 for p in idle] == [157, 67], "as the agent's clock said at its last look"
    assert not any(p.partly for p in idle)


def test_a_container_that_works_makes_its_pod_partly_idle() -> None:
    cluster = cluster_of({PAIRS: {}})
    a, b, c = (DeviceId(PAIRS.gpus[i].uuid) for i in range(3))
    uid = PodUid("a")
    held = tuple(
        Allocation(uid, "team", "a", container, GPU, (device,))
        for container, device in (("x", a), ("y", b), ("z", c))
    )
    idle = tuple(
        IdleAllocation(uid, name, GPU, f"2026-01-01T{hour}:00:00Z")
        for name, hour in (("x", "10"), ("z", "11"))
    )
    cluster.put_record(PAIRS, Report("boot", 2, allocations=held, idle=idle))
    cluster.put_pod(waiting("wants", gpu_request(2, NVLINKED)))
    cluster.put_pod(waiting("most", gpu_request(4)))
    (pod,) = found = idle_pods(cluster.snapshot(), TODAY)
    assert (pod.containers, pod.gpus, pod.partly) == (("x", "z"), (0, 2), True)
    assert (pod.since[11:16], pod.seconds) == ("11:00", TODAY - 1767265200)
    assert tried(cluster, found) == Tried(), "its end would end work, too"


def test_a_mig_instance_is_recognised_by_its_gpu() -> None:
    part = MigInstance("MIG-1", "1g.5gb", Bytes(MIB))
    gpus = tuple(replace(gpu, mig_mode="enabled", mig_instances=()) for gpu in PAIRS.gpus)
    node = replace(PAIRS, gpus=(*gpus[:3], replace(gpus[3], mig_instances=(part,))), links=())
    cluster = cluster_of({})
    held = (Allocation(PodUid("a"), "team", "a", "m", GPU, (DeviceId("MIG-1::0"),)),)
    idle = (IdleAllocation(PodUid("a"), "m", GPU, "2026-01-01T10:00:00Z"),)
    cluster.put_record(node, Report("boot", 1, allocations=held, idle=idle))
    (pod,) = idle_pods(cluster.snapshot(), TODAY)
    assert (pod.gpus, pod.devices) == ((3,), ("MIG-1::0",))


@pytest.mark.parametrize("since", ["soon", ""])
def test_a_time_that_is_none_is_passed_over(since: str) -> None:
    cluster = cluster_of({PAIRS: {"a": Held((0,))}})
    (info,) = cluster.snapshot().nodes
    idle = (IdleAllocation(PodUid("a"), "main", GPU, since),)
    cluster.put_report(info.name, replace(last_report(info), sequence=2, idle=idle))
    assert idle_pods(cluster.snapshot(), TODAY) == []


def test_only_pods_in_the_way_of_a_pair_are_named() -> None:
    cluster, idle = scene(
        {PAIRS: {"a": Held((0,)), "b": Held((2,)), "c": Held((3,))}},
        a="10:00",
        b="10:00",
    )
    for name in ("w1", "w2"):
        cluster.put_pod(waiting(name, gpu_request(2, NVLINKED)))
    assert helped(tried(cluster, idle)) == {"a": [(["w1", "w2"], set())]}


def test_idle_pods_that_help_together_only_are_named_together() -> None:
    cluster, idle = scene(
        {
            PAIRS: {"a": Held((0,)), "b": Held((1,)), "c": Held((2,)), "d": Held((3,))},
            OTHER: {"e": Held((0,)), "f": Held((1,)), "g": Held((2,)), "h": Held((3,))},
        },
        a="10:00", b="11:00", e="10:00", g="10:00",
    )  # fmt: skip
    cluster.put_pod(waiting("w", gpu_request(2, NVLINKED)))
    assert helped(tried(cluster, idle)) == {
        "a": [(["w"], {"b"})],
        "b": [(["w"], {"a"})],
    }, "GPUs 0 and 2 of the other node are no pair"


def test_a_pod_that_some_node_takes_does_not_wait_for_idle_gpus() -> None:
    cluster, idle = scene(
        {PAIRS: {"a": Held((0,)), "c": Held((2,))}, OTHER: {"b": Held((0,))}}, a="10:00"
    )
    cluster.put_pod(waiting("w", gpu_request(2, NVLINKED)))
    assert helped(tried(cluster, idle)) == {}


def test_an_idle_pod_on_an_ineligible_node_unblocks_no_pod() -> None:
    cluster, idle = scene({PAIRS: {"a": Held((0,)), "c": Held((2,))}}, a="10:00")
    cluster.put_node(NodeName("pairs"), NodeObject())
    elsewhere = SchedulingAttributes(
        eligible_nodes=EligibleNodes((Requirement("pool", "In", ("other",)),))
    )
    cluster.put_pod(waiting("w", gpu_request(2, NVLINKED), elsewhere))
    assert helped(tried(cluster, idle)) == {}
    cluster.put_pod(waiting("v", gpu_request(2, NVLINKED)))
    assert helped(tried(cluster, idle)) == {"a": [(["v"], set())]}


def test_where_there_is_no_time_the_answer_says_so() -> None:
    cluster, idle = scene({PAIRS: {"a": Held((0,)), "c": Held((2,))}}, a="10:00")
    cluster.put_pod(waiting("w", gpu_request(2, NVLINKED)))
    found = what_ends_would_do(cluster.snapshot(), idle, ending_when(lambda: True))
    assert (found.completes, found.whole) == ({}, False)


def test_an_idle_pod_changes_no_answer_and_wakes_no_pod() -> None:
    """An extender from before reads a record without the field, and this one decides alike."""
    cluster = cluster_of({PAIRS: {"a": Held((0,)), "b": Held((2,))}})
    (before,) = cluster.snapshot().nodes
    assert before.report is not None
    idle = (IdleAllocation(PodUid("a"), "main", GPU, "2026-01-01T10:00:00Z"),)
    cluster.put_report(before.name, replace(before.report, sequence=2, idle=idle))
    (after,) = cluster.snapshot().nodes
    assert after.report is not None
    assert after.report.idle == idle
    assert after.key(GPU) == before.key(GPU)
    assert after.report.allocations == before.report.allocations


def test_a_reservation_that_yields_to_the_waiting_pod_is_not_in_its_way() -> None:
    cluster, idle = scene({PAIRS: {"a": Held((0,))}}, a="11:00")
    nominated = SchedulingAttributes(nominated=PAIRS.name, priority=1)
    cluster.put_pod(replace(waiting("low", gpu_request(2, NVLINKED)), attributes=nominated))
    for name, priority in (("same", 1), ("high", 2)):
        pod = waiting(name, gpu_request(4))
        cluster.put_pod(replace(pod, attributes=SchedulingAttributes(priority=priority)))
    assert helped(tried(cluster, idle)) == {"a": [(["high"], set())]}
