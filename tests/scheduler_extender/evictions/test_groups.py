"""Members of groups that move stay in the domain in which their group is."""

from dataclasses import replace

import pytest

from scheduler_extender.evictions import Advice, search
from scheduler_extender.groupreference import NODE, Group, GroupReference
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from tests.scheduler_extender.evictions.scenes import (
    NVLINKED,
    Held,
    cluster_of,
    node_name,
    relocations,
    waiting,
)
from topology.core.requests import Policy, gpu_request
from topology.machines import machine

BLOCK = "example.com/block"
PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
FAR, NEAR, UNLABELLED = (machine("l40s-4").topology(n) for n in ("far", "near", "unlabelled"))


def cluster(domain: str | None, policy: Policy = Policy.REQUIRED) -> Cache:
    """A full node whose pods are members of one group, and empty nodes in the same block, in
    another one, and in none."""
    found = cluster_of(
        {PAIRS: {f"h{i}": Held((i,)) for i in range(4)}, FAR: {}, NEAR: {}, UNLABELLED: {}}
    )
    for name, block in (("pairs", "a"), ("near", "a"), ("far", "b"), ("unlabelled", None)):
        labels = {} if block is None else {BLOCK: block}
        found.put_node(node_name(name), NodeObject(labels=labels))
    for info in found.snapshot().nodes:
        for pod in info.pods.bound.alive.values():
            group_ref = GroupReference(Group("team", "train"), 4, domain)
            request = replace(gpu_request(1), policy=policy)
            found.put_pod(replace(pod, group_ref=group_ref, request=request))
    return found


def plan(of: Cache) -> Advice:
    """For a pod that waits for a linked pair."""
    wants = waiting("wants", gpu_request(2, NVLINKED), SchedulingAttributes(0))
    return search(of.snapshot(), wants)


def test_a_member_moves_within_its_domain() -> None:
    assert relocations(plan(cluster(BLOCK))) == {"near"}


def test_a_member_of_a_group_on_one_node_is_not_relocated() -> None:
    found = plan(cluster(NODE))
    assert found.plan is None
    assert found.whole


@pytest.mark.parametrize(
    ("domain", "policy"),
    [(None, Policy.REQUIRED), (BLOCK, Policy.PREFERRED)],
    ids=["a group that may go anywhere", "a group that only prefers one domain"],
)
def test_pods_without_a_group_move_to_any_node(domain: str | None, policy: Policy) -> None:
    assert len(relocations(plan(cluster(domain, policy)))) == 2


def test_of_two_equal_nodes_the_one_whose_members_can_be_relocated_is_chosen() -> None:
    """They differ in their block alone, and so do the homes of their pods."""
    other = machine("a100-pcie-4-bridged").topology("a-pairs")  # comes first
    nodes = cluster(BLOCK)
    twin = cluster_of({other: {f"g{i}": Held((i,)) for i in range(4)}})
    (info,) = twin.snapshot().nodes
    members = [
        replace(pod, group_ref=GroupReference(Group("team", "serve"), 4, BLOCK))
        for pod in info.pods.bound.alive.values()
    ]
    for pod in members:
        twin.put_pod(pod)
    twin.put_node(info.name, NodeObject(labels={BLOCK: "c"}))
    wants = waiting("wants", gpu_request(2, NVLINKED), SchedulingAttributes(0))
    found = search(nodes.snapshot().with_node_infos(twin.snapshot().nodes), wants)
    assert found.plan is not None
    assert found.plan.node == "pairs"
    assert relocations(found) == {"near"}
