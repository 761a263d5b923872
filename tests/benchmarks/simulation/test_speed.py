"""What slow links cost a job."""

from itertools import combinations, pairwise, permutations

import pytest

from benchmarks.simulation.simulation import Speed, weakest_hop
from tests import recorded
from tests.benchmarks.simulation.samples import DGX
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.links import GBps, Link, LinkKind, Via
from topology.machines import machine


def test_slow_links_make_jobs_longer() -> None:
    shape = machine("l40s-4").topology("n").shape
    speed = Speed(communication=0.1, full=50, network=10)
    assert weakest_hop([shape], [0b1], speed) == 0
    assert weakest_hop([DGX], [0b1001], speed) == 100
    assert weakest_hop([DGX, DGX], [0b1001, 0b1001], speed) == 10
    assert speed.slowdown(10) == pytest.approx(1.4)
    assert speed.slowdown(0) == speed.slowdown(80) == 1


def test_nominal_hops_are_near_what_eight_v100_measured() -> None:
    path = recorded.shared("traces", "bandwidth") / "v100x8_measured_GBps.tsv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    measured = [[float(cell) for cell in line.split("\t")] for line in lines]

    def hop(a: int, b: int) -> float:
        return min(measured[a][b], measured[b][a])

    def link(a: int, b: int) -> Link:
        count = round(hop(a, b) / 48) if hop(a, b) > 40 else 0
        return Link(a, b, LinkKind.NODE, count, Via.DIRECT, GBps(25))

    gpus = machine("dgx1-v100").topology("n").gpus
    pairs = [link(a, b) for a, b in combinations(range(8), 2)]
    shape = NodeTopology(NodeName("measured"), gpus, tuple(pairs)).shape
    degrees = sorted(sum(k.nvlinks for k in pairs if p in (k.a, k.b)) for p in range(8))
    assert degrees == [6] * 8  # a cube mesh, six links a GPU
    linked = 0
    for size in (2, 3, 4):
        for members in combinations(range(8), size):
            best = max(
                min(hop(a, b) for a, b in pairwise((*order, order[0])))
                for order in permutations(members)
            )
            nominal = weakest_hop([shape], [sum(1 << p for p in members)], Speed())
            if nominal >= 50:
                linked += 1
                assert best == pytest.approx(nominal, rel=0.05)
            else:
                assert 4 < best < 20  # PCIe, 12 in our table
    assert linked > 20
