"""Which devices will do: sets of which any devices meet the constraints, at most eight."""

import random
import sys
from dataclasses import replace
from itertools import combinations
from math import comb
from types import FrameType

import pytest

from topology.core.alternatives import MOST, Alternatives, alternatives, grouped
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import satisfies
from topology.core.requests import Constraints, Pattern
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)


def made(names: list[str], count: int, constraints: Constraints) -> Alternatives:
    nodes = [machine(name).topology(f"{name}-{i}") for i, name in enumerate(names)]
    found = alternatives(grouped(nodes), count, constraints)
    assert len(found.sets) <= MOST
    for each in found.sets:
        for node in nodes:
            at = [p for p, gpu in enumerate(node.gpus) if (gpu.product, gpu.pci_bus_id) in each]
            for chosen in combinations(at, count):
                mask = sum(1 << p for p in chosen)
                assert satisfies(node.shape, constraints, mask), (node.name, chosen)
    return found


def sizes(found: Alternatives) -> list[int]:
    return [len(each) for each in found.sets]


def test_bridged_pairs_are_an_alternative_each() -> None:
    found = made(["a100-pcie-4-bridged"], 2, NVLINK)
    assert sizes(found) == [2, 2]
    assert [row[1:] for row in found.machines] == [(2, 2)]


def test_where_any_will_do_there_is_one() -> None:
    assert sizes(made(["hgx-h100-8"], 4, NVLINK)) == [8]


def test_a_cube_mesh_has_its_quads() -> None:
    found = made(["dgx1-v100"], 2, NVLINK)
    ((_, good, covered),) = found.machines
    assert good == 16
    assert covered == 16
    assert max(sizes(found)) == 4


def test_what_eight_cannot_say_is_counted() -> None:
    found = made(["dgx1-v100", "a100-pcie-4-bridged", "a30-4-bridged"], 2, NVLINK)
    assert len(found.sets) == MOST
    assert [good - covered for _, good, covered in found.machines] == [2, 0, 0]


def test_any_four_that_are_connected() -> None:
    found = made(["dgx1-v100"], 4, replace(NVLINK, pattern=Pattern.CONNECTED))
    assert [row[1:] for row in found.machines] == [(56, 56)]


def test_kinds_of_machines_share_the_eight() -> None:
    found = made(["a100-pcie-4-bridged", "a30-4-bridged", "hgx-h100-8"], 2, NVLINK)
    assert all(good == covered for _, good, covered in found.machines)
    assert sorted(sizes(found)) == [2, 2, 2, 2, 8]


def test_addresses_that_mean_something_else_elsewhere_are_no_alternative() -> None:
    """A machine of the same product whose bridges join other slots."""
    node = machine("a100-pcie-4-bridged").topology("one")
    slots = [node.gpus[p].pci_bus_id for p in (0, 2, 1, 3)]
    moved = tuple(replace(gpu, pci_bus_id=slot) for gpu, slot in zip(node.gpus, slots, strict=True))
    assert len(alternatives(grouped([node]), 2, NVLINK).sets) == 2
    assert alternatives(grouped([node, replace(node, gpus=moved)]), 2, NVLINK).sets == ()


@pytest.mark.parametrize("count", [1, 2])
def test_one_numa_node(count: int) -> None:
    found = made(["l40s-4"], count, Constraints(same_numa=True))
    assert sizes(found) == ([4] if count == 1 else [2, 2])


def test_no_address_no_alternative() -> None:
    node = machine("a100-pcie-4-bridged").topology("one")
    bare = replace(node, gpus=tuple(replace(gpu, pci_bus_id=None) for gpu in node.gpus))
    assert alternatives(grouped([bare]), 2, NVLINK).sets == ()


def test_of_very_many_sets_those_of_the_most_nodes_are_counted() -> None:
    """Any 8 of 16 GPUs, 12,870 sets of each of 20 machines whose addresses differ."""

    def other(kind: int, node: int) -> NodeTopology:
        found = machine("dgx2").topology(f"{kind}-{node}")
        gpus = (
            replace(g, pci_bus_id=f"0000:{kind:02x}:{i:02x}.0") for i, g in enumerate(found.gpus)
        )
        return replace(found, gpus=tuple(gpus))

    kinds = grouped(other(kind, node) for kind in range(20) for node in range(kind + 1))
    found = alternatives(kinds, 8, NVLINK)
    buses = [address.split(":")[1] for each in found.sets for _, address in each]
    assert sorted(set(buses)) == [f"{kind:02x}" for kind in range(20 - MOST, 20)]
    assert [covered for _, _, covered in found.machines] == [comb(16, 8)] * MOST + [0] * (20 - MOST)


def odd(kind: int, share: float) -> NodeTopology:
    """A machine with so large a share of 16 GPUs' bridges, at addresses of its own."""
    bridged = random.Random(kind)
    found = machine("dgx2").topology(f"{kind}")
    gpus = (replace(g, pci_bus_id=f"0000:{kind:02x}:{i:02x}.0") for i, g in enumerate(found.gpus))
    links = (each for each in found.links if bridged.random() < share)
    return replace(found, gpus=tuple(gpus), links=tuple(links))


@pytest.mark.parametrize("pattern", [Pattern.CONNECTED, Pattern.RING])
def test_machines_that_are_all_odd_cost_no_more_than_their_steps(pattern: Pattern) -> None:
    """Without a bound for all of it there are 57 million, and they take five seconds."""
    kinds = grouped(odd(kind, 0.3) for kind in range(64))
    events = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal events
        events += 1

    sys.setprofile(count)
    try:
        found = alternatives(kinds, 8, replace(NVLINK, pattern=pattern))
    finally:
        sys.setprofile(None)
    assert events < 6_000_000
    assert len(found.sets) == MOST


def test_tables_of_rings_are_made_for_the_machines_of_most_nodes() -> None:
    kinds = grouped(odd(kind, 0.5) for kind in (*range(63), 63, 63))
    found = alternatives(kinds, 6, replace(NVLINK, pattern=Pattern.RING))
    assert 15 < len(found.machines) < 64
    assert found.machines[0][2] > 0, "two nodes have it, and the others are one each"
