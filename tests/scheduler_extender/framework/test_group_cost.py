"""Groups with thousands of members, and as many kinds of domains: what a change of them costs.

Work is counted in calls and look-ups, and no time is measured.
"""

from typing import Any

import msgspec
import pytest

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs import filter_nodes
from scheduler_extender.wire import Pod
from tests.counting import calls
from tests.nodes import pod, record_of, switched
from tests.scheduler_extender.verbs.racks import member
from topology.core.devices import NodeName
from topology.core.report import Report

GROUP = {"group-domain": "node"}


def come(cluster: Cache, count: int, phase: str) -> None:
    """So many members of one group are seen, one after the other."""
    for i in range(count):
        manifest = member(f"m{i}", "crowd", 4096, 1, GROUP)
        manifest["spec"]["nodeName"] = f"n{i % 7}"
        manifest["status"]["phase"] = phase
        cluster.put_pod(record_of(manifest))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running"])
def test_twice_as_many_members_take_twice_the_steps(phase: str) -> None:
    few, many = Cache(lambda: 0.0), Cache(lambda: 0.0)
    once = calls(lambda: come(few, 60, phase))
    assert calls(lambda: come(many, 240, phase)) <= 4.5 * once


@pytest.mark.parametrize("phase", ["Succeeded", "Running"])
def test_a_change_of_a_group_costs_the_same_however_many_members_it_has(phase: str) -> None:
    def change(cluster: Cache) -> None:
        manifest = member("next", "crowd", 4096, 1, GROUP)
        manifest["spec"]["nodeName"] = "n0"
        cluster.put_pod(record_of(manifest))
        CapacityCounter(cluster.snapshot(), NO_DEADLINE).reservations()

    few, many = Cache(lambda: 0.0), Cache(lambda: 0.0)
    come(few, 20, phase)
    come(many, 200, phase)
    assert calls(lambda: change(many)) <= 2 * calls(lambda: change(few))


class Labels(dict[str, str]):
    """A node's labels, which count how often they are looked at, all nodes' together."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        Labels.reads += 1
        return super().get(key, default)


def of_kinds(nodes: int, kinds: int, *, known: bool) -> Cache:
    """Nodes with as many labels as there are groups that wait, each for places by its own label:
    one of all nodes, or else one that no node has."""
    found = Cache(lambda: 0.0, Settings(stale_after=None))
    labels = {f"nvidia.com/l{i}": "same" for i in range(kinds)}
    for i in range(nodes):
        found.put_record(switched(4, f"n{i}"), Report())
        found.put_node(NodeName(f"n{i}"), NodeObject(labels=Labels(labels)))
    for i in range(kinds):
        domain = f"nvidia.com/l{i}" if known else f"example.com/{i}"
        manifest = member(f"g{i}", f"g{i}", 2, 1, {"group-domain": domain})
        manifest["spec"]["nodeName"] = f"n{i}"
        found.put_pod(record_of(manifest))
    return found


@pytest.mark.parametrize("known", [True, False])
def test_groups_with_a_label_each_are_counted_without_listing_all_nodes_anew(known: bool) -> None:
    nodes, kinds = 50, 40
    cluster = of_kinds(nodes, kinds, known=known)
    asked = msgspec.convert(member("w", "mine", 2, 1, GROUP), Pod)
    names = [f"n{i}" for i in range(nodes)]
    filter_nodes(cluster, asked, names)
    for i in range(3):
        cluster.put_pod(record_of(pod(1, name=f"x{i}", uid=f"x{i}", node=f"n{i + 40}")))
        Labels.reads = 0
        assert filter_nodes(cluster, asked, names).node_names
        assert Labels.reads <= 3 * kinds
    Labels.reads = 0
    cluster.put_node(NodeName("n0"), NodeObject(labels=Labels({"nvidia.com/l0": "other"})))
    filter_nodes(cluster, asked, names)
    assert Labels.reads <= 6 * kinds
