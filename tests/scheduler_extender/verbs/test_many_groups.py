"""Anybody may start groups that never end, over all nodes: other groups are answered all the same.

The clock is this thread's own processor time, so that a busy machine makes no difference.
"""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest

from scheduler_extender.deadline import within
from scheduler_extender.limits import VERB_SECONDS
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.asking.askgroup import ask_group
from scheduler_extender.state.asking.members import member_of
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.groups.groups import ELSEWHERE
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs import filter_nodes
from scheduler_extender.wire import FilterResult, Pod
from tests.nodes import record_of
from tests.scheduler_extender.verbs.racks import Scheduler, member
from tests.waiting import FOREVER
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.machines import machine

NODES = 2_000
GROUPS = 300
ZONE = {"group-domain": "zone"}
TRIES = 3  # the first question works out what the next ones find


@pytest.fixture(scope="module")
def crowded() -> Scheduler:
    """A zone in which 300 groups have started, each of which waits for twenty members or so."""
    scheduler = Scheduler({"a": NODES})
    scheduler.cluster.board.clock = time.thread_time
    for i, name in enumerate(scheduler.names):
        labels = {"zone": "z", "block": f"{i // 16}"}
        scheduler.cluster.feed.put_node(NodeName(name), NodeObject(labels=labels))
    for i in range(GROUPS):
        manifest = member(f"g{i}", f"g{i}", 20 + i % 7, 1 + i % 4, ZONE)
        manifest["spec"]["nodeName"] = scheduler.names[i]
        scheduler.cluster.feed.put_pod(record_of(manifest))
    return scheduler


def ask(scheduler: Scheduler, name: str, seconds: float, **more: object) -> FilterResult:
    """What filter answers about all nodes."""
    asked = msgspec.convert(member(name, **more), Pod)  # type: ignore[arg-type]
    return filter_nodes(
        scheduler.cluster, asked, scheduler.names, within(scheduler.cluster.clock, seconds)
    )


BLOCKS = {"group-domain": "block"}


@pytest.fixture(scope="module")
def seconds(crowded: Scheduler) -> float:
    """What a verb has; with a slow processor as much as a first question takes there in all."""
    began = time.thread_time()
    ask(crowded, "first", FOREVER, group="first", size=2, gpus=2, annotations=BLOCKS)
    return max(VERB_SECONDS, time.thread_time() - began)


def test_a_group_is_answered_beside_hundreds_that_wait(crowded: Scheduler, seconds: float) -> None:
    blocks = {"group": "mine", "size": 2, "gpus": 4, "annotations": BLOCKS}
    for _ in range(TRIES):
        found = ask(crowded, "mine", seconds, **blocks)
    assert found.error == ""
    started = time.thread_time()
    again = ask(crowded, "mine", seconds, **blocks)
    assert again == found
    assert time.thread_time() - started < seconds / 5


def test_a_change_costs_no_more_than_one_question(crowded: Scheduler, seconds: float) -> None:
    """A member of a waiting group comes, and a node changes: both move kept places."""
    for i in range(3):
        manifest = member(f"g7-{i}", "g7", 20, 4, ZONE)
        manifest["spec"]["nodeName"] = crowded.names[NODES - 1 - i]
        crowded.cluster.feed.put_pod(record_of(manifest))
        found = ask(crowded, "x", seconds, group="x", size=2, gpus=1, annotations=ZONE)
        assert found.error == ""


def test_members_and_places_are_counted_at_one_moment() -> None:
    """A member that comes while places are counted takes one. Beside the members of before, the
    places of afterwards would be too few: a refusal that is never true."""
    cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
    for name in ("a-0", "b-0"):
        cluster.feed.put_record(machine("gb200-tray").topology(name, group=name[0]), Report())
    first = record_of(member("m0", size=4, gpus=1))
    cluster.feed.put_pod(replace(first, node=NodeName("a-0")))
    others = [record_of(member(f"m{i}", size=4, gpus=1)) for i in (1, 2, 3)]
    seen = cluster.snapshot()
    asked = member_of(seen, others[0].uid, others[0].membership, gpu_request(1))
    assert asked is not None
    for other in others[1:]:
        cluster.feed.put_pod(replace(other, node=NodeName("a-0")))
    for moment in (seen, cluster.snapshot()):
        found = ask_group(moment, asked, ["a-0", "b-0"])
        assert not found.late
        assert found.rejections == {"b-0": ELSEWHERE}
