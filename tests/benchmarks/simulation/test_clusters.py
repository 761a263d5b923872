"""Clusters from groups, from files, and from snapshots of real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulation.clusters import ClusterError, cluster
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.policies import policy
from benchmarks.simulation.simulation import Simulation
from scheduler_extender.files.allocatable import Allocatable
from tests.benchmarks.simulation.samples import LINK
from topology import codec
from topology.machines import machine


def test_groups_and_additions() -> None:
    nodes = cluster("dgx1-v100=2,l40s-4=1", ["dgx1-v100=1"])
    assert [str(n.topology.name) for n in nodes] == [
        *("dgx1-v100-0", "dgx1-v100-1", "l40s-4-0", "new1-dgx1-v100-0"),
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("dgx1-v100=0", "counts from 1"),
        ("dgx1-v100=x", "counts from 1"),
        ("dgx1-v1=3", "close: dgx1-v100"),
        ("dgx1-v100=2,dgx1-v100=1", "dgx1-v100-0 is there twice"),
        pytest.param("dgx1-v100=99999,l40s-4=2", "at most 100,000", marks=pytest.mark.long),
        ("none.yaml", "No such file"),
    ],
)
def test_clusters_that_are_none(source: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        cluster(source)


def snapshot(tmp_path: Path) -> Path:
    """A bridged node on which a pod that nobody ends holds GPUs 0 and 1, and CPU for one more."""
    node = machine("a100-pcie-4-bridged").topology("old")
    ids = [gpu.uuid for gpu in node.gpus]
    allocation = {
        "podUID": "u",
        "namespace": "x",
        "pod": "p",
        "container": "main",
        "resource": "nvidia.com/gpu",
        "deviceIds": ids[:2],
    }

    record = codec.encode(node) | {"status": {"bootID": "b", "sequence": 1}}
    record["status"]["allocations"] = [allocation]  # type: ignore[index]
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "x", "uid": "u"},
        "spec": {
            "nodeName": "old",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {"phase": "Running"},
    }
    has = {
        "kind": "Node",
        "metadata": {"name": "old"},
        "status": {"allocatable": {"cpu": "10", "memory": "100Gi", "pods": "3"}},
    }
    path = tmp_path / "snapshot.yaml"
    path.write_text("\n---\n".join(json.dumps(d) for d in (record, pod, has)))
    return path


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated", "Preserve", "Buddy"])
def test_who_holds_gpus_in_a_snapshot_keeps_them(tmp_path: Path, name: str) -> None:
    nodes = cluster(str(snapshot(tmp_path)))
    pair = Ask(2, None, 4000, 1024, LINK)
    jobs = [Job("a", 0, 100, pair), Job("b", 1, 100, pair)]
    result = Simulation(nodes, jobs, lambda: policy(name), 1).run()
    first, second = result.outcomes
    assert first.places == [(0, 0b1100)]
    assert second.started == first.ended  # two GPUs are there, and no more
    more = cluster(str(snapshot(tmp_path)), ["a100-pcie-4-bridged=1"])
    result = Simulation(more, jobs, lambda: policy(name), 1).run()
    assert [o.waited for o in result.outcomes] == [0, 0]


def test_cpu_of_a_snapshots_nodes_binds(tmp_path: Path) -> None:
    nodes = cluster(str(snapshot(tmp_path)))
    jobs = [Job("a", 0, 10, Ask(1, None, 6000, 0)), Job("b", 0, 10, Ask(1, None, 6000, 0))]
    result = Simulation(nodes, jobs, lambda: policy("LeastAllocated"), 1).run()
    assert [o.started for o in result.outcomes] == [0, 10]
    too_much = [Job("c", 0, 10, Ask(1, None, 11_000, 0))]
    assert Simulation(nodes, too_much, lambda: policy("FGD"), 1).run().unplaceable == 1


def test_what_the_pods_of_a_snapshot_ask_for_is_not_free(tmp_path: Path) -> None:
    path = snapshot(tmp_path)
    asks = '"requests": {"cpu": "1500m", "memory": "40Gi"}, "limits": {"nvidia.com/gpu": "2"}'
    text = path.read_text()
    limits = '"limits": {"nvidia.com/gpu": "2"}'
    assert limits in text
    path.write_text(text.replace(limits, asks))
    (node,) = cluster(str(path))
    assert node.allocatable == Allocatable(8500, 60 * 2**30, 2)
    path.write_text(text.replace(limits, asks.replace("40Gi", "400Gi")))
    assert cluster(str(path))[0].allocatable.memory == 0
