"""Nodes that kube-scheduler keeps in mind for another pod: who is nominated counts as placed."""

from dataclasses import replace

import pytest

from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from tests.scheduler_extender.evictions.scenes import (
    NVLINKED,
    Held,
    cluster_of,
    node_name,
    singles,
    waiting,
)
from topology.core.devices import Bytes, NodeName
from topology.core.requests import Constraints, gpu_request
from topology.machines import machine

LINKED = machine("hgx-a100-4").topology("linked")
BRIDGED = machine("a100-pcie-4-bridged").topology("bridged")
PAIR = gpu_request(2, NVLINKED)


@pytest.mark.parametrize("priority", [0, 5, 10])
@pytest.mark.parametrize("terminating", [True, False])
def test_a_nominated_pod_takes_the_node_of_a_relocation(
    priority: int, *, terminating: bool
) -> None:
    """Two of four GPUs are free. They are nominated for a pod: it comes first unless its priority
    is lower, or it is on its way out."""
    cluster = cluster_of({LINKED: {"runs": Held((0, 1))}})
    cluster.put_pod(waiting("wants", PAIR, SchedulingAttributes(5)))
    coming = waiting("coming", PAIR, SchedulingAttributes(priority, nominated=NodeName("linked")))
    cluster.put_pod(replace(coming, terminating=terminating))
    found = eviction_advice(cluster, "team", "wants")
    assert found is not None
    if terminating or priority < 5:
        assert found.takes == "linked"
    else:
        assert found.plan is not None
        assert [step.pod for step in found.plan.steps] == ["runs"]


def test_a_plan_leaves_the_links_that_a_nominated_pod_requires() -> None:
    """A bridged pair is free for who is nominated, and one GPU of the other one. To evict h2 would
    leave three GPUs: the waiting pod could be handed one of the pair."""
    held = {name: pod for name, pod in singles(0, 0, 0, 0).items() if name in ("h2", "h3")}
    cluster = cluster_of({BRIDGED: held})
    cluster.put_pod(waiting("wants", gpu_request(1), SchedulingAttributes(5)))
    found = eviction_advice(cluster, "team", "wants")
    assert found is not None
    assert found.takes == "bridged"
    cluster.put_pod(waiting("coming", PAIR, SchedulingAttributes(7, nominated=NodeName("bridged"))))
    found = eviction_advice(cluster, "team", "wants")
    assert found is not None
    assert found.takes is None
    steps = found.plan.steps if found.plan is not None else []
    assert {step.pod for step in steps} in ({"h2", "h3"}, set())


@pytest.mark.parametrize("priority", [0, 7])
def test_no_pod_is_relocated_to_a_node_that_another_pod_is_nominated_to(priority: int) -> None:
    """The only other node has two free GPUs, nominated for a pod of any priority."""
    other = machine("hgx-a100-4").topology("other")
    cluster = cluster_of(
        {LINKED: {"a": Held((0, 1)), "b": Held((2, 3))}, other: {"c": Held((0, 1), 100)}}
    )
    cluster.put_pod(waiting("wants", gpu_request(4, NVLINKED), SchedulingAttributes(5)))
    relocations = []
    for nominated in (None, NodeName("other")):
        coming = waiting("coming", PAIR, SchedulingAttributes(priority, nominated=nominated))
        cluster.put_pod(coming)
        found = eviction_advice(cluster, "team", "wants")
        assert found is not None
        assert found.plan is not None
        relocations.append(sorted(step.relocation or "" for step in found.plan.steps))
    assert relocations == [["", "other"], ["", ""]]


@pytest.mark.parametrize(("priority", "beside"), [(3, 1), (-1, 2)])
def test_a_reservation_that_yields_to_one_member_leaves_nothing_for_its_peers(
    priority: int, beside: int
) -> None:
    """Two of the GPUs that come free are nominated for a pod that gives way to the first member of
    the gang. It gives way to its siblings, too, only where their priority is above its own."""
    second = machine("hgx-a100-4").topology("second")
    cluster = cluster_of({LINKED: {"runs": Held((0, 1, 2, 3))}, second: {"stays": Held((0, 1, 2))}})
    for name in ("linked", "second"):
        cluster.put_node(node_name(name), NodeObject(labels={"block": "a"}))
    for pod in cluster.snapshot().node_info(node_name("second")).pods.bound.alive.values():
        cluster.put_pod(replace(pod, attributes=SchedulingAttributes(9)))
    gang = GroupReference(Group("team", "train"), 3, "block", gang=True)
    one = gpu_request(1, Constraints(min_gpu_memory=Bytes(1)))
    for name, its in (("wants", 5), ("sibling", 0), ("another", 0)):
        cluster.put_pod(replace(waiting(name, one, SchedulingAttributes(its)), group_ref=gang))
    cluster.put_pod(
        waiting("coming", PAIR, SchedulingAttributes(priority, nominated=NodeName("linked")))
    )
    found = eviction_advice(cluster, "team", "wants")
    assert found is not None
    assert f"{beside} more members of its group fit there" in found.text[-1]
