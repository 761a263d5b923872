"""Bounds of what is kept of DRA's objects."""

import tracemalloc

import pytest

from scheduler_extender.state.node.nodeinfo import Offer
from tests.dranodes import (
    PUBLISHED,
    Json,
    a_slice,
    device,
    order,
    slice_of,
    two_pairs,
)
from topology.core.devices import NodeName
from topology.core.memo import forget


def large(index: int, size: int, kind: str = "gpu") -> Json:
    found = device(index, kind)
    found["attributes"]["x.example/long"] = {"string": "x" * size}
    return found


def test_the_slices_of_a_node_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_extender.kube.drasinks.MOST_OF_NODE", 5000)
    world, other = two_pairs(), NodeName("other")
    world.speak(1, other)
    world.slices.apply(slice_of(other, device(0), name="o", pool=other))
    world.slices.apply(a_slice(large(5, 5000), name="t", pool="another"))
    assert "the ResourceSlices are too large: at most 2 MiB" in world.problem
    assert len(world.problem) < 200
    assert world.slices.outside == 1
    assert isinstance(world.cluster.node_info(other).offer("nvidia.com/gpu"), Offer)
    world.slices.delete(a_slice(large(5, 5000), name="t", pool="another"))
    assert order(world) == PUBLISHED


def test_the_slices_of_all_nodes_have_a_bound_and_the_largest_node_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_extender.kube.drasinks.MOST_SLICES", 5500)
    world, other = two_pairs(), NodeName("other")
    world.speak(1, other)
    evil = slice_of(other, large(0, 2500), name="o", pool=other)
    world.slices.apply(evil)
    assert isinstance(world.cluster.node_info(other).offer("nvidia.com/gpu"), Offer)
    world.slices.apply(a_slice(large(4, 800, "nic"), name="t", pool="another"))
    assert "too large" in (world.cluster.node_info(other).record.problem or "")
    assert world.problem == ""
    world.slices.delete(a_slice(name="t", pool="another"))
    assert world.slices.again()
    world.slices.replace(iter([a_slice(*map(device, PUBLISHED)), evil]), "2")
    assert isinstance(world.cluster.node_info(other).offer("nvidia.com/gpu"), Offer)


def test_a_list_that_would_end_as_the_last_one_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_extender.kube.drasinks.MOST_SLICES", 9000)
    monkeypatch.setattr("scheduler_extender.kube.drasinks.AGAIN", 0.0)
    world = two_pairs()
    mine = [
        a_slice(large(at, size), name=f"s{at}", pool=f"p{at}")
        for at, size in enumerate((3000, 4000, 2000))
    ]
    other = slice_of(NodeName("other"), large(3, 500), name="o", pool="o")
    for _ in range(2):
        world.slices.replace(iter([*mine, other]), "2")
        assert world.slices.outside == 2
        assert not world.slices.again()
    world.slices.delete(other)
    assert world.slices.again()


def test_little_is_kept_of_what_devices_say() -> None:
    """Their attributes are read when they are asked for."""
    world = two_pairs()
    many = [large(n, 900) for n in range(4, 1000)]
    tracemalloc.start()
    world.slices.apply(a_slice(*many, name="t", pool="another"))
    world.slices.apply(slice_of(NodeName("x"), device(0), name="x", pool="x"))
    forget()
    world.cluster.foresees("ns", ())
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2.0 * 996 * 1000, kept
