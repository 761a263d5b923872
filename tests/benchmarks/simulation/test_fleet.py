"""Clusters from groups, from files, and from snapshots of real ones."""

import json
from pathlib import Path

import pytest

from benchmarks.simulation.fleet import ClusterError, cluster
from benchmarks.simulation.jobs import Ask, Job
from scheduler_extender.files.machinegroups import Allocatable
from tests.benchmarks.simulation.samples import LINK, play, written
from topology import codec
from topology.machines import machine


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("dgx1-v100=0", "machines with counts"),
        ("dgx1-v100=x", "machines with counts"),
        ("dgx1-v1=3", "did you mean dgx1-v100"),
        ("dgx1-v100=2,dgx1-v100=1", "dgx1-v100-00 is listed twice"),
        ("dgx1-v100=99999", "99,999 × 8 GPUs are too many"),
        pytest.param("t4-1=99999,l40s-4=2", "at most 100,000", marks=pytest.mark.long),
        ("none.yaml", "No such file"),
    ],
)
def test_clusters_that_are_none(source: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        cluster(source)


def snapshot(tmp_path: Path) -> Path:
    """A bridged node with a pod on it that holds GPUs 0 and 1."""
    node = machine("a100-pcie-4-bridged").topology("old")
    allocation = {
        "podUID": "u",
        "namespace": "x",
        "pod": "p",
        "container": "main",
        "resource": "nvidia.com/gpu",
        "deviceIds": [gpu.uuid for gpu in node.gpus[:2]],
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
    documents = "\n---\n".join(json.dumps(each) for each in (record, pod, has))
    return written(tmp_path, "snapshot.yaml", documents)


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated"])
def test_a_snapshot_gives_its_nodes_without_their_pods(tmp_path: Path, name: str) -> None:
    jobs = [Job(str(i), i, 100, Ask(2, 4000, 1024, LINK)) for i in range(3)]
    path = snapshot(tmp_path)
    assert [node.allocatable for node in cluster(str(path))] == [
        Allocatable(10_000, 100 * 2**30, 3)
    ]
    alone = play(str(path), jobs, name)
    assert [o.waited for o in alone.outcomes] == [0, 0, alone.outcomes[0].ended - 2]
    more = play(f"{path},a100-pcie-4-bridged=1", jobs, name)
    assert [o.waited for o in more.outcomes] == [0, 0, 0]


def test_cpu_of_a_snapshots_nodes_binds(tmp_path: Path) -> None:
    path = str(snapshot(tmp_path))
    jobs = [Job("a", 0, 10, Ask(1, 6000)), Job("b", 0, 10, Ask(1, 6000))]
    assert [o.started for o in play(path, jobs, "LeastAllocated").outcomes] == [0, 10]
    assert play(path, [Job("c", 0, 10, Ask(1, 11_000))], "LeastAllocated").unplaceable == 1


@pytest.mark.parametrize(
    ("serves", "words"),
    [
        ([], "n serves no GPUs; allowed are whole GPUs"),
        (
            [{"name": "nvidia.com/gpu.shared", "strategy": "time-slicing", "replicas": 4}],
            r"n serves nvidia.com/gpu.shared \(time-slicing\)",
        ),
        (
            [{"name": "nvidia.com/gpu", "strategy": "time-slicing", "replicas": 4}],
            r"n serves nvidia.com/gpu \(time-slicing\)",
        ),
    ],
)
def test_nodes_that_serve_no_whole_gpus_are_refused(
    serves: list[dict[str, object]], words: str, tmp_path: Path
) -> None:
    record = codec.encode(machine("dgx1-v100").topology("n"))
    record["spec"]["resources"] = serves  # type: ignore[index]
    path = written(tmp_path, "c.yaml", json.dumps(record))
    with pytest.raises(ClusterError, match=words):
        cluster(str(path))
