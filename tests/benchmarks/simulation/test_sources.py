"""Workloads: what a seed draws, loads, demands, and traces."""

import resource
from dataclasses import replace
from hashlib import sha256
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from benchmarks.simulation import sources
from benchmarks.simulation.fleet import cluster
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.sources import Workload
from tests import recorded
from tests.benchmarks.simulation.samples import LINK, RING
from topology.core.devices import GpuUuid
from topology.core.graph import MAX_GPUS
from topology.machines import machine

ROOT = Path(__file__).resolve().parents[3]


def test_a_seed_draws_the_same_jobs_again() -> None:
    nodes = cluster("dgx1-v100=4")
    what = Workload("synthetic", 200)
    assert sources.jobs(what, 0.8, nodes, 3) == sources.jobs(what, 0.8, nodes, 3)
    assert sources.jobs(what, 0.8, nodes, 3) != sources.jobs(what, 0.8, nodes, 4)


@pytest.mark.parametrize("load", [0.5, 1.3])
def test_a_load_is_gpu_time_asked_over_there(load: float) -> None:
    found = sources.jobs(Workload("synthetic", 300), load, cluster("dgx1-v100=4"), 1)
    asked = sum(job.gpus * job.runs for job in found)
    assert asked / (32 * found[-1].arrives) == pytest.approx(load)
    assert found[0].arrives == 0


def test_demands_are_what_some_node_could_give() -> None:
    dgx, bridged, l40s = (
        machine(name).topology("n").shape for name in ("dgx1-v100", "a100-pcie-4-bridged", "l40s-8")
    )
    demand = sources.demanding
    assert demand(Ask(1), (dgx,)) == Ask(1)
    assert demand(Ask(2), (dgx,)).annotations == LINK
    assert demand(Ask(4), (l40s, dgx)).annotations == RING
    assert demand(Ask(4), (bridged,)) == Ask(4)
    assert demand(Ask(2), (l40s,)) == Ask(2)
    assert demand(Ask(2), (bridged,), "preferred").annotations == (*LINK, ("policy", "preferred"))
    asked = Ask(2, 0, 0, (("same-numa", "true"),))
    assert demand(asked, (dgx,)) == asked


@pytest.mark.parametrize(("nvlinks", "annotations"), [(18, RING), (0, ())])
def test_demands_on_the_largest_machine_do_not_take_all_memory(
    nvlinks: int, annotations: tuple[tuple[str, str], ...]
) -> None:
    """It has four billion sets of 8 GPUs."""
    node, indices = machine("hgx-h100-8").topology("n"), range(MAX_GPUS)
    large = replace(
        node,
        gpus=tuple(replace(node.gpus[0], index=i, uuid=GpuUuid(f"GPU-{i}")) for i in indices),
        links=tuple(
            replace(node.links[0], a=a, b=b, nvlinks=nvlinks) for a, b in combinations(indices, 2)
        ),
        nics=(),
    )
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    try:
        assert sources.demanding(Ask(8), (large.shape,)).annotations == annotations
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_large_jobs_are_split_into_equal_pods() -> None:
    (found,) = sources.split([Job("wide", 0, 1, Ask(24, 24, 48))], 8)
    assert (found.pods, found.ask.gpus, found.ask.cpu, found.ask.memory) == (3, 8, 8, 16)
    (odd,) = sources.split([Job("odd", 0, 1, Ask(7))], 4)
    assert (odd.pods, odd.ask.gpus) == (7, 1)


@recorded.needs("traces", "philly")
def test_the_page_has_the_checksum_of_the_trace_that_our_tables_were_made_from() -> None:
    content = (recorded.SHARED / "traces" / "philly" / "philly.csv").read_bytes()
    assert sha256(content).hexdigest() in (ROOT / "docs" / "tasks" / "simulate.md").read_text()


def test_philly_is_played_by_time() -> None:
    recorded.shared("traces", "philly")
    nodes = cluster("dgx1-v100=4")
    found = sources.jobs(Workload("philly", 0), None, nodes, 1)
    assert len(found) == 82_247
    assert all(a.arrives <= b.arrives for a, b in pairwise(found))
    assert {j.ask.gpus for j in found} == {1, 2, 4, 6, 8}
    assert (
        sum(j.gpus for j in found if j.pods == 1)
        + 8 * sum(j.pods for j in found if j.pods > 1 and j.ask.gpus == 8)
        == 76_627 + 2 * 1818 + 4 * 1870 + 8 * 1643 + 16 * 199 + 24 * 7 + 32 * 67 + 64 * 6 + 128 * 3
    )
    assert len(sources.jobs(Workload("philly", 500), 0.9, nodes, 1)) == 500
