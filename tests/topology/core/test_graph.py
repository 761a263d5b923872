"""A node's graph: what makes a valid node, what its shape has of it, and rings through GPUs."""

from dataclasses import replace

import pytest

from tests.nodes import (
    gpus,
    line,
    pcie,
    switched,
)
from topology.core.devices import Gpu, GpuResource, GpuUuid, Nic, NodeName
from topology.core.graph import MAX_GPUS, NodeTopology, TopologyError, plugin_version
from topology.core.links import Link, LinkKind
from topology.core.scoring import best_ring
from topology.core.shape import Shape
from topology.machines import machine


def node(**changes: object) -> NodeTopology:
    """Two GPUs 0 and 1, with what a case changes."""
    return replace(NodeTopology(NodeName("n"), gpus(2)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"gpus": gpus(MAX_GPUS + 1)}, "65 GPUs, but at most 64", id="too many GPUs"),
        pytest.param(
            {"gpus": (gpus(1)[0], replace(gpus(2)[1], index=0))},
            "devices.index: 0 occurs 2 times",
            id="an index twice",
        ),
        pytest.param(
            {"gpus": (gpus(1)[0], replace(gpus(1)[0], index=1))},
            "devices.uuid: GPU-0 occurs 2 times",
            id="a UUID twice",
        ),
        pytest.param({"links": (Link(1, 0),)}, "a=1 b=0, but a must be less", id="a above b"),
        pytest.param({"links": (Link(1, 1),)}, "a=1 b=1, but a must be less", id="to itself"),
        pytest.param({"links": (Link(0, 2),)}, "GPU 2 is not among", id="a link to no GPU"),
        pytest.param(
            {"links": (Link(0, 1), Link(0, 1, LinkKind.SYS))}, "links: (0, 1)", id="a pair twice"
        ),
        pytest.param(
            {"nics": (Nic("mlx5_0", ((7, LinkKind.PIX),)),)},
            "nics[mlx5_0]: GPU 7",
            id="a NIC near no GPU",
        ),
        pytest.param(
            {"nics": (Nic("mlx5_0", ((0, LinkKind.SYS), (0, LinkKind.PIX))),)},
            "nics[mlx5_0].distances: 0 occurs 2 times",
            id="a GPU at two distances",
        ),
        pytest.param({"nics": (Nic("a"), Nic("a"))}, "nics.name: a", id="a NIC twice"),
        pytest.param(
            {"resources": (GpuResource(), GpuResource())}, "resources.name", id="a resource twice"
        ),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError) as error:
        node(**changes)
    assert message in str(error.value)


def test_positions_follow_the_index_and_not_the_order_given() -> None:
    a, b, c = (Gpu(i, GpuUuid(f"GPU-{i}"), "X", gpus(1)[0].memory) for i in (5, 0, 3))
    found = NodeTopology(NodeName("n"), (a, b, c))
    assert [gpu.index for gpu in found.gpus] == [0, 3, 5]
    assert found.position_of_index == {0: 0, 3: 1, 5: 2}
    assert found.position_of_uuid[GpuUuid("GPU-5")] == 2
    assert found.indices(0b101) == (0, 5)


def test_a_pair_that_is_not_listed_is_unknown() -> None:
    shape = node().shape
    assert shape.links[0][1] is None
    assert shape.rows(frozenset({Link(0, 0)})) == (0, 0)


def test_the_nearest_nic_counts() -> None:
    far, near = (0, LinkKind.NODE), (0, LinkKind.PIX)
    shape = node(nics=(Nic("a", (far, (1, LinkKind.SYS))), Nic("b", (near,)))).shape
    assert shape.nic == (LinkKind.PIX, LinkKind.SYS)


def test_a_gpu_that_no_nic_names_is_at_an_unknown_distance() -> None:
    assert line().shape.nic == (LinkKind.PIX, LinkKind.NODE, LinkKind.UNKNOWN)


@pytest.mark.parametrize(
    ("shape", "mask", "expected"),
    [
        pytest.param(line().shape, 0b001, float("inf"), id="one GPU has no hop"),
        pytest.param(line().shape, 0b011, 100, id="of two GPUs it is the pair"),
        pytest.param(line().shape, 0b111, 5, id="the weakest hop: back from 2 to 0 over PCIe"),
        pytest.param(switched(4).shape, 0b1111, 600, id="a switch"),
        pytest.param(pcie(4).shape, 0b1111, 12, id="PCIe"),
        pytest.param(node().shape, 0b11, 0, id="unknown links carry nothing"),
    ],
)
def test_the_best_ring(shape: Shape, mask: int, expected: float) -> None:
    assert best_ring(shape, mask) == expected


@pytest.mark.parametrize(
    ("topology", "summary"),
    [
        pytest.param(machine("dgx1-v100").topology("n"), "NVLink 1-2", id="from one to two links"),
        pytest.param(switched(), "NVLink 12", id="as many for each pair"),
        pytest.param(pcie(), "PCIe NODE", id="no NVLink"),
        pytest.param(pcie(1), "", id="one GPU"),
    ],
)
def test_a_summary_of_the_links(topology: NodeTopology, summary: str) -> None:
    assert topology.link_summary() == summary
    assert topology.summary().endswith(summary)


def test_a_summary_counts_the_products() -> None:
    found = machine("dgx1-v100").topology("n").summary()
    assert found == "8 × Tesla V100-SXM2-16GB, NVLink 1-2"


def test_a_resource_that_is_not_served_is_none() -> None:
    assert switched().resource("nvidia.com/gpu") == GpuResource()
    assert switched().resource("example.com/gpu") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("v0.20.1", (0, 20, 1), id="v"),
        pytest.param("0.17.0-rc.1", (0, 17, 0), id="candidate"),
        pytest.param(None, None, id="unknown"),
        pytest.param("latest", None, id="no number"),
    ],
)
def test_plugin_versions(text: str | None, version: tuple[int, ...] | None) -> None:
    assert plugin_version(text) == version
