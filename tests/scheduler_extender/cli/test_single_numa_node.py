"""Jobs of 1, 4 and 8 GPUs on machines whose kubelets align GPUs to one NUMA node."""

import json
import random
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import main
from scheduler_extender.files.clusterfile import load
from tests.commands import asked
from topology.core.devices import GpuUuid, PodUid
from topology.core.requests import gpu_request
from topology.emulation import EmulatedKubelet, Refused

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
CLUSTER = "examples/clusters/single-numa-node.yaml"

# Worked out by hand from the kubelet's policy. GPUs 0-3 are on NUMA node 0 and 4-7 on NUMA node 1.
# With scope `container` the kubelet admits a pod of one container if one NUMA node has all its
# GPUs free. It takes the lowest such NUMA node, and the plugin chooses among the GPUs there: on an
# NVSwitch all links are equal, so any of them.
#
# free            job of 1                   job of 4                    job of 8
# empty   0-7     one of 0-3                 0-3, the four of node 0     no NUMA node has eight GPUs
# packed  0-3 5 7 one of 0-3                 0-3                         six are free
# spread  0 2 3   one of 0, 2, 3: node 0     three and three are free:   six are free
#         4 5 7   has enough                 refused
FOUR = [[0, 1, 2, 3]]
BUSY = "not enough free GPUs"
EXPECTED: dict[int, dict[str, tuple[str, list[list[int]], str]]] = {
    1: {
        "empty": ("guaranteed", [[0], [1], [2], [3]], ""),
        "packed": ("guaranteed", [[0], [1], [2], [3]], ""),
        "spread": ("guaranteed", [[0], [2], [3]], ""),
    },
    4: {
        "empty": ("guaranteed", FOUR, ""),
        "packed": ("guaranteed", FOUR, ""),
        "spread": (
            "not-guaranteed",
            [],
            "Topology Manager single-numa-node: no NUMA node has 4 GPUs free",
        ),
    },
    8: {
        "empty": (
            "not-guaranteed",
            [],
            "Topology Manager single-numa-node: the node can never align 8 GPUs",
        ),
        "packed": ("not-now", [], BUSY),
        "spread": ("not-now", [], BUSY),
    },
}


@pytest.mark.parametrize("gpus", EXPECTED)
def test_each_job_goes_only_where_the_kubelet_admits_it(gpus: int) -> None:
    items = yaml.safe_load((ROOT / CLUSTER).read_text())["items"]
    (pod,) = [item for item in items if item["metadata"]["name"] == f"job-of-{gpus}"]
    done = asked(main, "check", "-", "--cluster", CLUSTER, "-o", "json", given=yaml.safe_dump(pod))
    assert done.returncode == (0 if gpus < 8 else 1), done.stderr
    rows = json.loads(done.stdout)["nodes"]
    found = {row["node"]: (row["verdict"], row["outcomes"], row["message"]) for row in rows}
    assert found == EXPECTED[gpus]


@pytest.mark.parametrize("gpus", EXPECTED)
def test_the_emulated_kubelets_do_as_expected(gpus: int) -> None:
    for record in load(ROOT / CLUSTER).records:
        topology, report = record.topology, record.report
        assert report is not None
        given: set[tuple[int, ...]] = set()
        for seed in range(40):
            kubelet = EmulatedKubelet(topology, random.Random(seed))
            for pod in report.allocations:
                at = [topology.position_of_uuid[GpuUuid(device)] for device in pod.device_ids]
                held = {pod.container: [(position, 0) for position in at]}
                kubelet.restore(pod.pod_uid, pod.namespace, pod.pod, gpu_request(1), held)
            try:
                kubelet.admit(PodUid("job"), "ci", "job", gpu_request(gpus))
            except Refused:
                continue
            given.add(kubelet.held(PodUid("job")))
        _, outcomes, _ = EXPECTED[gpus][topology.name]
        assert sorted(given) == [tuple(each) for each in outcomes]
