"""The nodes of a fleet: what kubelets hold at the start, and what they never hand out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulation.clusters import ClusterError, cluster
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.jobs import Ask, Job
from tests.benchmarks.simulation.samples import UUIDS, Fixed, holds, play, replayed, written
from topology import codec
from topology.machines import machine


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated", "Preserve"])
def test_gpus_that_no_kubelet_hands_out_are_not(name: str, tmp_path: Path) -> None:
    source = replayed(tmp_path, {"allocatable": UUIDS[:4]})
    result = play(source, [Job("", 0, 10, Ask(4)), Job("", 20, 10, Ask(5))], name)
    assert result.outcomes[0].places == [(0, 0b1111)]
    assert not result.outcomes[1].placed


def test_a_gpu_that_is_gone_and_a_pod_without_uid(tmp_path: Path) -> None:
    lost = holds([0, 1])
    lost["deviceIds"] = [UUIDS[0], "GPU-gone"]
    first = play(replayed(tmp_path, {"allocations": [lost]}), [Job("", 0, 9, Ask(7))], "FGD")
    assert first.outcomes[0].placed
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "x", "uid": "u"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
        },
        "status": {"phase": "Running"},
    }
    source = replayed(tmp_path, {"allocations": [holds(range(4), uid="")]}, pod)
    assert play(source, [Job("", 0, 9, Ask(4))], "FGD").outcomes[0].places == [(0, 0b11110000)]
    over = replayed(tmp_path, {"allocations": [holds(range(6), uid="other")]}, pod)
    with pytest.raises(ClusterError, match="hold more GPUs than it has"):
        Fleet(cluster(over), Fixed())  # type: ignore[arg-type]


def test_nodes_without_gpus_to_ask_for(tmp_path: Path) -> None:
    record = codec.encode(machine("dgx1-v100").topology("n"))
    record["spec"]["resources"] = []  # type: ignore[index]
    path = written(tmp_path, "c.yaml", json.dumps(record))
    with pytest.raises(ClusterError, match=r"served as nvidia\.com/gpu"):
        Fleet(cluster(str(path)), Fixed())  # type: ignore[arg-type]
