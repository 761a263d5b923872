"""Workloads: what a seed draws, loads, demands, and traces."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.simulation import sources
from benchmarks.simulation.clusters import cluster
from benchmarks.simulation.jobs import Ask, Job, JobsError
from benchmarks.simulation.sources import Workload
from tests import recorded
from tests.benchmarks.simulation.samples import LINK, RING, written
from topology import codec
from topology.machines import machine


def test_a_seed_draws_the_same_jobs_again() -> None:
    nodes = cluster("dgx1-v100=4")
    what = Workload("synthetic", 200, 0.8)
    assert sources.jobs(what, nodes, 3) == sources.jobs(what, nodes, 3)
    assert sources.jobs(what, nodes, 3) != sources.jobs(what, nodes, 4)


@pytest.mark.parametrize("load", [0.5, 1.3])
def test_a_load_is_gpu_time_asked_over_there(load: float) -> None:
    found = sources.jobs(Workload("synthetic", 300, load), cluster("dgx1-v100=4"), 1)
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
    asked = Ask(2, None, 0, 0, (("same-numa", "true"),))
    assert demand(asked, (dgx,)) == asked


def test_large_jobs_are_split_into_equal_pods() -> None:
    wide = Job("wide", 0, 1, Ask(24, None, 24, 48))
    (found,) = sources.split([wide], 8)
    assert (found.pods, found.ask.gpus, found.ask.cpu, found.ask.memory) == (3, 8, 8, 16)
    (odd,) = sources.split([Job("odd", 0, 1, Ask(7))], 4)
    assert (odd.pods, odd.ask.gpus) == (7, 1)


def test_philly_is_played_by_time() -> None:
    recorded.shared("traces", "openb")
    nodes = cluster("dgx1-v100=4")
    found = sources.jobs(Workload("philly", None, None, pod_gpus=8), nodes, 1)
    assert len(found) == 82_247
    assert all(a.arrives <= b.arrives for a, b in pairwise(found))
    assert {j.ask.gpus for j in found} == {1, 2, 4, 6, 8}
    assert (
        sum(j.gpus for j in found if j.pods == 1)
        + 8 * sum(j.pods for j in found if j.pods > 1 and j.ask.gpus == 8)
        == 76_627 + 2 * 1818 + 4 * 1870 + 8 * 1643 + 16 * 199 + 24 * 7 + 32 * 67 + 64 * 6 + 128 * 3
    )
    stretch = sources.jobs(Workload("philly", 500, 0.9), nodes, 1)
    assert len(stretch) == 500


def test_openb_has_its_nodes_and_pods() -> None:
    recorded.shared("traces", "openb")
    nodes = cluster("openb")
    assert (len(nodes), sum(len(n.topology.gpus) for n in nodes)) == (1213, 6212)
    found = sources.jobs(Workload("openb:gpuspec10", 400, None, "none"), nodes, 1)
    assert any(job.ask.share for job in found)
    assert any(key == "gpu-model" for job in found for key, _ in job.ask.annotations)
    with pytest.raises(JobsError, match="allowed are default"):
        sources.jobs(Workload("openb:nope"), nodes, 1)


def test_demands_are_of_nodes_that_serve_whole_gpus(tmp_path: Path) -> None:
    record = codec.encode(machine("dgx1-v100").topology("n"))
    part = {"name": "nvidia.com/gpu.shared", "strategy": "time-slicing", "replicas": 4}
    record["spec"]["resources"] = [part]  # type: ignore[index]
    other = codec.encode(machine("l40s-4").topology("m"))
    path = written(tmp_path, "c.yaml", f"{json.dumps(record)}\n---\n{json.dumps(other)}")
    found = sources.jobs(Workload("synthetic", 50), cluster(str(path)), 1)
    assert not any(job.ask.annotations for job in found)
