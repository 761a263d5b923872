"""No remedy names a pod on a node that is too small for the waiting pod."""

from dataclasses import dataclass

import pytest

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.idle import idle_pods, what_ends_would_do
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import pod, record_of, switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, IdleAllocation, Report

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class World:
    cluster: Cache
    waits: PodRecord


@pytest.fixture(name="world")
def _world() -> World:
    """A pod that is idle has the four GPUs of a node with 8 CPUs; one waits that asks for 64."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    node, holder = switched(4, "n"), PodUid("idle")
    cluster.put_pod(record_of(pod(4, name="idle", uid=holder, node="n", phase="Running")))
    ids = tuple(DeviceId(gpu.uuid) for gpu in node.gpus)
    held = Allocation(holder, "default", "idle", "main", GPU, ids)
    idle = IdleAllocation(holder, "main", GPU, "2026-11-20T09:00:00Z")
    cluster.put_record(node, Report("boot", 1, allocations=(held,), idle=(idle,)))
    cluster.put_node(NodeName("n"), NodeObject(allocatable=((GPU, 4), ("cpu", 8000))))
    resources = {"limits": {GPU: "2"}, "requests": {"cpu": "64"}}
    main = [{"name": "main", "resources": resources}]
    waits = record_of(pod(name="waits", uid="waits", containers=main))
    cluster.put_pod(waits)
    return World(cluster, waits)


def test_why_names_no_end_on_a_node_with_too_few_cpus(world: World) -> None:
    answer = explanation_of(world.cluster.snapshot(), world.waits)
    assert isinstance(answer, Explanation)
    assert [help_.words for help_ in answer.helps if help_.kind == "end"] == []


def test_idle_names_no_pod_that_waits_for_more_cpus_than_the_node_has(world: World) -> None:
    snapshot = world.cluster.snapshot()
    idle = idle_pods(snapshot, 0.0)
    assert idle
    assert what_ends_would_do(snapshot, idle, NO_DEADLINE).completes == {}
