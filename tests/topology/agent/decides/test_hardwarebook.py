"""The hardware over one boot: when it is looked at anew, and what is kept."""

from __future__ import annotations

from dataclasses import replace

from tests.topology.agent.moments import BUS, seen_gpu, vital
from topology.agent.decides.hardwarebook import Down, HardwareBook
from topology.agent.decides.observed import NvmlState, SeenNode, Unseen
from topology.agent.decides.pcitree import PciTree
from topology.core.devices import GpuUuid, NodeName
from topology.core.graph import TopologyError
from topology.core.links import LinkKind

NO_TREE = PciTree()
NONE_DOWN: Down = {}


def node(*numbers: int) -> SeenNode:
    found = tuple(seen_gpu(i, n) for i, n in enumerate(numbers))
    pairs = [(a.index, b.index) for a in found for b in found if a.index < b.index]
    return SeenNode(found, pcie=dict.fromkeys(pairs, LinkKind.PIX))


def book(*numbers: int) -> HardwareBook:
    found = HardwareBook(NodeName("n"))
    found.look(node(*numbers), NONE_DOWN, NO_TREE)
    return found


def test_it_is_looked_at_again_where_something_is_new() -> None:
    found = HardwareBook(NodeName("n"))
    down = {GpuUuid("GPU-0"): frozenset({0})}
    assert found.is_news(node(0, 1), NONE_DOWN)
    found.look(node(0, 1), NONE_DOWN, NO_TREE)
    assert not found.is_news(node(0, 1), NONE_DOWN)
    assert found.is_news(node(0, 1), down)
    assert found.is_news(node(0), NONE_DOWN)


def test_nothing_is_expected_before_the_first_look() -> None:
    former = book(0, 1, 2, 3).hardware.topology
    assert former is not None
    found = HardwareBook(NodeName("n"))
    assert (found.hardware.expected_gpus, found.hardware.looked) == (None, False)
    found.remember(former)
    assert (found.hardware.expected_gpus, found.hardware.looked) == (None, False)
    found.look(node(0, 1), NONE_DOWN, NO_TREE)
    assert (found.hardware.expected_gpus, found.hardware.looked) == (4, True)


def test_gpus_that_are_not_counted_any_more_are_gone() -> None:
    found = book(0, 1, 2, 3)
    seen = node(0, 1)
    found.look(seen, NONE_DOWN, NO_TREE)
    assert found.gone(NvmlState(seen, (vital(0), vital(1)))) == ["GPU-2", "GPU-3"]
    lost = replace(vital(3), lost=True)
    assert found.gone(NvmlState(seen, (vital(0), vital(1), lost))) == ["GPU-2"]
    assert found.hardware.topology is not None
    assert [g.uuid for g in found.hardware.topology.gpus] == [f"GPU-{i}" for i in range(4)]


def test_a_contradiction_leaves_the_topology_as_it_was() -> None:
    found = book(0, 1)
    before = found.hardware.topology
    twice = SeenNode((seen_gpu(0, 0), seen_gpu(1, 0)))
    error = found.look(twice, NONE_DOWN, NO_TREE)
    assert isinstance(error, TopologyError)
    assert found.hardware.topology is before
    assert found.hardware.contradiction == f"the driver contradicts itself: {error}"
    assert found.hardware.unseen == (Unseen("topology", found.hardware.contradiction),)
    assert found.look(node(0, 1), NONE_DOWN, NO_TREE) is None
    assert not found.hardware.contradiction
    assert not found.hardware.unseen


def test_links_that_do_not_count_make_the_plugins_choice_doubtful() -> None:
    found = book(0, 1)
    assert found.hardware.doubt == ""
    both = {GpuUuid(f"GPU-{i}"): frozenset({0}) for i in (0, 1)}
    found.look(node(0, 1), both, NO_TREE)
    assert "it sees NVLinks that have dropped before" in found.hardware.doubt


def test_what_sysfs_cannot_tell_is_unseen() -> None:
    found = HardwareBook(NodeName("n"))
    tree = PciTree({BUS(0): ("pci0000:00", "gpu")}, unseen=(Unseen("RDMA NICs", "denied"),))
    found.look(node(0, 1), NONE_DOWN, tree)
    assert found.hardware.unseen == (Unseen("RDMA NICs", "denied"),)
