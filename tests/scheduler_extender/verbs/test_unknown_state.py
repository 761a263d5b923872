"""A node with unknown state takes no pod that could break a promise there.

Every row of the filter table that is about unknown state, each with every kind of promise, in
filter and in bind.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.deadline import within
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.framework.rules.promises import PROMISED
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import SILENT_AFTER, Watch
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import pcie, pod, record_of, switched
from tests.scheduler_extender.binding import bind_error
from tests.scheduler_extender.serving import Clock
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.placement import IN_PROGRESS
from topology.core.report import Allocation, Condition, Report

NODE = NodeName("node")
SHARES = tuple(f"GPU-0::{share}" for share in range(4))


def shared() -> NodeTopology:
    """Two GPUs with four shares each."""
    served = GpuResource("nvidia.com/gpu", "time-slicing", 4, refuses_several=False)
    config = AllocatorConfig("distributed", "v0.20.0")
    return replace(pcie(2, "node"), resources=(served,), allocator=config)


class World:
    """A node with a pod to which something was promised, as the extender learns of them."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology
        self.clock = Clock()
        self.watches: list[Watch] = []
        self.cluster = Cache(self.clock, Settings(stale_after=100.0), lambda: self.watches)
        self.cluster.put_node(NODE, NodeObject())
        self.binder = FileBinder(self.cluster)
        self.sequence = 0
        self.held: tuple[Allocation, ...] = ()
        self.report()

    def report(self, **how: Any) -> None:
        self.sequence += 1
        ready = (Condition("Ready", True, "Watching"),)
        found = Report("boot", self.sequence, allocations=self.held, conditions=ready)
        self.cluster.put_record(self.topology, replace(found, **how))

    def promise(self, count: int, annotations: dict[str, str], held: tuple[str, ...]) -> None:
        """A pod is bound with a promise, and runs if it holds something."""
        phase = "Running" if held else "Pending"
        first = pod(count, annotations, name="first", uid="first", node=NODE, phase=phase)
        written = {"verdict": "guaranteed", "node": NODE, "uid": "first", "sets": [[0]], "time": ""}
        first["metadata"]["annotations"]["gpu-topology.io/placement"] = json.dumps(written)
        self.cluster.put_pod(record_of(first))
        if held:
            ids = tuple(map(DeviceId, held))
            self.held = (Allocation(PodUid("first"), "default", "first", "main", MANAGED[0], ids),)
        self.report()

    def ends(self) -> None:
        """The pod that was promised something has ended, as its status says."""
        (pod_here,) = self.cluster.node_info(NODE).pods.every
        self.cluster.put_pod(replace(pod_here, phase="Succeeded"))

    def is_deleted(self) -> None:
        """The pod is gone from the API server; no report shows that its kubelet knows."""
        self.cluster.drop_pod(PodUid("first"), 99)


def assumed() -> World:
    world = World(switched(4, "node"))
    world.promise(2, {"link": "nvlink"}, ())
    return world


def memory() -> World:
    world = World(shared())
    world.promise(1, {"gpu-memory": "12Gi"}, SHARES[:1])
    return world


def alone() -> World:
    """The pod has all shares of one GPU, and holds them."""
    world = World(shared())
    world.promise(4, {"sharing": "exclusive"}, SHARES)
    return world


PROMISES = {
    "in flight": (assumed, IN_PROGRESS.message),
    "memory": (memory, PROMISED.message),
    "alone": (alone, PROMISED.message),
}


def no_report(world: World) -> None:
    world.cluster.drop_record(NODE)


def stale(world: World) -> None:
    world.clock.now += 100.0


def malformed(world: World) -> None:
    world.cluster.put_problem(NODE, "spec.links: bad")


def contradictory(world: World) -> None:
    twice = Allocation(PodUid("a"), "d", "a", "m", MANAGED[0], (DeviceId("GPU-0"),) * 2)
    world.report(allocations=(*world.held, twice, replace(twice, pod_uid=PodUid("b"))))


def a_share_too_many(world: World) -> None:
    """The record says that there are fewer shares than the kubelet hands out."""
    served = replace(world.topology.resources[0], strategy="time-slicing", replicas=2)
    world.topology = replace(world.topology, resources=(served,))
    world.report(allocatable=frozenset(map(DeviceId, SHARES)))


def not_ready(world: World) -> None:
    world.report(conditions=(Condition("Ready", False, "Starting", "pods are not known"),))


def stale_watch(world: World) -> None:
    world.watches.append(Watch("pods", world.clock.now - SILENT_AFTER))


ROWS: dict[str, Callable[[World], None]] = {
    row.__name__: row
    for row in (
        no_report,
        stale,
        malformed,
        contradictory,
        a_share_too_many,
        not_ready,
        stale_watch,
    )
}
NEWCOMERS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (1, {}),
    "preferred": (1, {"min-gpu-memory": "1Gi", "policy": "preferred"}),
}


def refusal(world: World, newcomer: str, seconds: float = float("inf")) -> str:
    """Why filter refuses the pod; empty where it passes."""
    asked = msgspec.convert(pod(*NEWCOMERS[newcomer], name="next", uid="next"), Pod)
    world.binder.saw(asked)
    answer = verbs.filter_nodes(world.cluster, asked, [NODE], within(world.cluster.clock, seconds))
    return {**answer.failed, **answer.unresolvable}.get(NODE, answer.error)


def refused_bind(world: World) -> str:
    args = BindingArgs("next", "default", "next", NODE)
    return bind_error(world.cluster, world.binder, args)


@pytest.mark.parametrize("end", [World.ends, World.is_deleted])
@pytest.mark.parametrize("newcomer", NEWCOMERS)
@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("row", ROWS)
def test_no_row_about_unknown_state_opens_a_node_on_which_a_promise_stands(
    row: str, promise: str, newcomer: str, end: Callable[[World], None]
) -> None:
    make, reason = PROMISES[promise]
    world = make()
    ROWS[row](world)
    assert refusal(world, newcomer) == reason
    assert refused_bind(world) == reason
    end(world)
    assert refusal(world, newcomer) == ""
    assert refused_bind(world) == ""


@pytest.mark.parametrize("newcomer", NEWCOMERS)
@pytest.mark.parametrize("promise", PROMISES)
def test_nor_does_a_node_for_which_there_was_no_time(promise: str, newcomer: str) -> None:
    make, reason = PROMISES[promise]
    assert refusal(make(), newcomer, seconds=-1.0) in (reason, verbs.STILL_WORKING)
