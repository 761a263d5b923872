"""What can still be promised, held against the code that decides; and which GPUs are stranded."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler_extender.framework.capacity import NVLINKED, Capacities, Capacity, stranded
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from tests.nodes import bridged, pcie, switched
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Condition, Health, Report
from topology.core.requests import gpu_request
from topology.machines import MACHINES, machine

SETTINGS = Settings(stale_after=None, all_pods_known=False)


def held(node: NodeTopology, positions: Sequence[int], *, resource: str = "") -> Report:
    """A report that shows one pod with these GPUs."""
    ids = tuple(DeviceId(node.gpus[p].uuid) for p in positions)
    name = resource or node.resources[0].name
    pods = (Allocation(PodUid("p"), "n", "p", "c", name, ids),) if ids else ()
    return Report("boot", 1, allocations=pods)


def cluster_of(node: NodeTopology, report: Report) -> Cache:
    cluster = Cache(lambda: 0.0, SETTINGS)
    cluster.put_record(node, report)
    return cluster


def capacity(node: NodeTopology, report: Report) -> Capacity:
    return Capacities(SETTINGS).of(cluster_of(node, report).node_info(node.name))


@pytest.mark.parametrize(
    ("node", "holds", "possible"),
    [
        pytest.param(switched(4), [], Capacity(2, 1, 1), id="free"),
        pytest.param(switched(4), [0], Capacity(1), id="one held"),
        pytest.param(bridged(4), [0], Capacity(), id="a pair is free, and others may come"),
        pytest.param(bridged(4), [0, 2], Capacity(), id="no pair is left"),
        pytest.param(pcie(4), [], Capacity(0, 0, 1), id="no NVLinks"),
    ],
)
def test_what_fits(node: NodeTopology, holds: list[int], possible: Capacity) -> None:
    assert capacity(node, held(node, holds)) == possible


def test_a_node_that_is_not_ready_promises_nothing() -> None:
    node = switched(4)
    silent = replace(held(node, []), conditions=(Condition("Ready", False, "KubeletSilent"),))
    assert capacity(node, silent) == Capacity()


def test_a_resource_of_another_name_counts_too() -> None:
    node = switched(4)
    (served,) = node.resources
    named = replace(node, resources=(replace(served, name="example.com/gpu"),))
    assert capacity(named, held(named, [])) == Capacity(2, 1, 1)


def test_gpus_that_pods_share_are_no_whole_node() -> None:
    node = switched(4)
    (served,) = node.resources
    shared = replace(node, resources=(replace(served, replicas=4),))
    assert capacity(shared, held(shared, [])).nodes == 0


@pytest.mark.parametrize("kind", sorted(MACHINES))
def test_the_first_of_each_is_what_filter_would_promise(kind: str) -> None:
    node = machine(kind).topology("node")
    every = range(len(node.gpus))
    for holds in (every[:0], every[:1], every[:2], every[:-1]):
        info = cluster_of(node, held(node, holds)).node_info(node.name)
        found = Capacities(SETTINGS).of(info)
        for count, many in ((2, found.pairs), (4, found.quads)):
            decided = decide(info, gpu_request(count, NVLINKED), SETTINGS)
            assessed = decided.assessment
            promised = decided.rejection is None and assessed is not None and assessed.verdict.holds
            assert bool(many) == promised, (holds, count)
            assert many * count <= len(node.gpus) - len(holds)


def test_a_sick_gpu_strands_others_and_is_not_stranded_itself() -> None:
    node = bridged(4)
    sick = replace(held(node, []), health=(Health(node.gpus[0].uuid, False, "Xid"),))
    assert capacity(node, sick).nodes == 0
    assert stranded(node.shape, 0b1110) == 0b0010


@pytest.mark.parametrize("kind", sorted(MACHINES))
def test_stranded_gpus_are_free_ones_without_a_linked_free_one(kind: str) -> None:
    node = machine(kind).topology("node")
    at = node.position_of_index
    pairs = [(at[link.a], at[link.b]) for link in node.links if link.nvlinks]
    for free in (0, 1, 0b101, 0b0110, node.shape.all_gpus):
        free &= node.shape.all_gpus
        joined = {p for a, b in pairs if free >> a & free >> b & 1 for p in (a, b)}
        alone = {p for p in range(len(node.gpus)) if free >> p & 1} - joined if pairs else set()
        assert stranded(node.shape, free) == sum(1 << p for p in alone)
