"""Groups whose members have different requests: each waiting member counts with its own."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.node.objects import NodeObject
from tests.nodes import pod, record_of
from tests.scheduler_extender.kube.test_waker import Api
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import NodeName

TOLERATES = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]


def wait(scheduler: Scheduler, *pods: dict[str, Any]) -> None:
    for each in pods:
        scheduler.cluster.put_pod(record_of(each))


def hold(scheduler: Scheduler, node: str, gpus: int) -> None:
    held = pod(gpus, {"link": "nvlink"} if gpus > 1 else {}, name=node, uid=node, node=node)
    held["status"]["phase"] = "Running"
    scheduler.cluster.put_pod(record_of(held))


def test_what_a_waiting_member_needs_is_reserved_for_it() -> None:
    scheduler = Scheduler({"a": 3})
    leader, worker = member("leader", size=2), member("worker", size=2, gpus=1)
    wait(scheduler, leader, worker)
    hold(scheduler, "a-02", 4)
    assert scheduler.place(worker)
    assert scheduler.place(member("other", "other", 2, gpus=1)) == scheduler.node_of(worker)
    assert not scheduler.passing(member("third", "third", 2, gpus=2))
    assert scheduler.place(leader)


def test_a_reservation_follows_the_requests_of_waiting_members() -> None:
    scheduler = Scheduler({"a": 2})
    worker, other = member("worker", size=2, gpus=1), member("other", "other", 2, gpus=2)
    wait(scheduler, worker)
    assert scheduler.place(worker)
    assert scheduler.passing(other)
    leader = record_of(member("leader", size=2))
    scheduler.cluster.put_pod(leader)
    assert not scheduler.passing(other)
    scheduler.cluster.drop_pod(leader.uid)
    assert scheduler.passing(other)


def test_a_member_is_woken_once_a_larger_one_is_gone() -> None:
    scheduler = Scheduler({"a": 1})
    leader, worker = (record_of(member(n, size=2, gpus=g)) for n, g in [("leader", 4), ("w", 1)])
    scheduler.cluster.put_pod(leader)
    scheduler.cluster.put_pod(replace(worker, called_unschedulable=True))
    api = Api()
    waker = Waker(scheduler.cluster, api, clock=lambda: 0.0)
    scheduler.cluster.tell_of_all_nodes()
    waker.round(0.0)
    assert not api.woken
    scheduler.cluster.drop_pod(leader.uid)
    waker.round(10.0)
    assert api.woken == [worker.uid]


@pytest.mark.parametrize("ends", [False, True])
def test_a_member_is_woken_once_a_sibling_asks_for_less(*, ends: bool) -> None:
    """A missing member counts as large as the member that asks."""
    scheduler = Scheduler({"a": 2})
    hold(scheduler, "a-01", 3)
    leader, small, large = (
        record_of(member(n, size=2, gpus=g)) for n, g in [("leader", 4), ("small", 1), ("large", 3)]
    )
    cluster = scheduler.cluster
    if ends:
        cluster.put_pod(small)
        cluster.put_pod(large)
    cluster.put_pod(replace(leader, called_unschedulable=True))
    api = Api()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    cluster.tell_of_all_nodes()
    waker.round(0.0)
    assert not api.woken
    cluster.put_pod(replace(large, terminating=True) if ends else replace(small, gated=True))
    waker.round(10.0)
    assert api.woken == [leader.uid]


@pytest.mark.parametrize("sibling", [True, False])
def test_a_cordoned_tray_is_reserved_for_members_that_tolerate_it(*, sibling: bool) -> None:
    scheduler = Scheduler({"a": 2})
    for name in map(NodeName, scheduler.names):
        scheduler.cluster.put_node(name, NodeObject(exists=True, cordoned=name == "a-01"))
    first, second = member("first", size=2), member("second", size=2)
    other = member("other", "other", 2, gpus=2)
    for each in (first, other, *([second] if sibling else [])):
        each["spec"]["tolerations"] = TOLERATES
    assert scheduler.bind(first, "a-00") == ""
    assert not scheduler.passing(other)
    wait(scheduler, second)
    assert bool(scheduler.passing(other)) != sibling


def test_few_trials_are_made_however_different_the_nodes_are() -> None:
    """The leader fits wherever the worker goes, since two nodes are free."""
    scheduler = Scheduler({"a": 5})
    for gpus in (1, 2, 3):
        hold(scheduler, f"a-0{gpus}", gpus)
    wait(scheduler, member("leader", size=2))
    assert scheduler.passing(member("worker", size=2, gpus=1)) == scheduler.names
    assert len(scheduler.cluster.answers.packed.young) == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_group_that_has_begun_is_placed_whole(seed: int) -> None:
    """No other pod comes, and each member goes to any node that passes."""
    random = Random(seed)
    scheduler = Scheduler({"a": random.randrange(1, 4), "b": random.randrange(1, 4)})
    for name in scheduler.names:
        if gpus := random.randrange(5):
            hold(scheduler, name, gpus)
    size = random.randrange(2, 6)
    members = [member(f"m{i}", size=size, gpus=random.randrange(1, 5)) for i in range(size)]
    wait(scheduler, *members)
    random.shuffle(members)
    placed = []
    for each in members:
        passing = scheduler.passing(each)
        if passing:
            assert scheduler.bind(each, random.choice(passing)) == ""
            placed.append(each)
    begun = [each for each in members if each in placed]
    late = [each for each in members if each not in placed and scheduler.place(each)]
    assert len(begun) + len(late) in (0, size)
