"""The shape that nodes of the same hardware share, and when two are the same machine."""

from dataclasses import replace

from tests.nodes import bridged, gpus, line, switched
from tests.wiring import isomorphic
from topology.core.graph import NodeTopology
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.shape import numa_nodes, wide_rows
from topology.machines import machine


def test_equal_hardware_is_one_object_whatever_it_is_called() -> None:
    one, two = switched(name="one").shape, switched(name="two").shape
    assert one is two
    assert one is not switched(3).shape
    assert one != bridged().shape


def test_a_shape_has_the_links_both_ways_and_without_positions() -> None:
    shape = line().shape
    assert (
        shape.links[0][1] == shape.links[1][0] == Link(0, 0, LinkKind.SYS, 2, Via.DIRECT, GBps(25))
    )
    assert shape.links[0][0] is None
    assert len(shape.distinct_links) == 3


def test_rows_join_the_pairs_that_meet_a_level() -> None:
    shape = bridged().shape
    nvlinked = frozenset(link for link in shape.distinct_links if link.nvlinks)
    assert shape.rows(nvlinked) == (0b0010, 0b0001, 0b1000, 0b0100)


def test_wide_rows_join_what_carries_enough() -> None:
    assert wide_rows(line().shape, GBps(100)) == (0b010, 0b001, 0b000)
    assert wide_rows(line().shape, GBps(50)) == (0b010, 0b101, 0b010)


def test_numa_nodes_leave_out_gpus_of_none() -> None:
    assert numa_nodes(switched(4).shape) == (0b0011, 0b1100)
    some = replace(switched(4), gpus=(replace(gpus(4)[0], numa_node=None), *gpus(4)[1:]))
    assert numa_nodes(some.shape) == (0b0010, 0b1100)


def renumbered(topology: NodeTopology, new: list[int]) -> NodeTopology:
    """The same machine with its GPUs renumbered."""
    links = []
    for link in topology.links:
        a, b = sorted((new[link.a], new[link.b]))
        links.append(replace(link, a=a, b=b))
    moved = tuple(replace(gpu, index=new[gpu.index]) for gpu in topology.gpus)
    return NodeTopology(topology.name, moved, tuple(links))


def test_a_machine_numbered_differently_is_isomorphic_and_another_is_not() -> None:
    topology = replace(machine("dgx1-v100").topology("n"), nics=())
    other = renumbered(topology, [3, 1, 4, 0, 5, 7, 2, 6]).shape
    assert other != topology.shape
    assert isomorphic(other, topology.shape)
    assert not isomorphic(other, machine("titanv-8").topology("n").shape)
