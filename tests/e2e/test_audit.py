"""``gpu-topology audit`` of a cluster that has kube-scheduler alone, and played nodes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from scheduler_extender.cli import main
from scheduler_extender.simulator.registration import PLAYED
from tests.commands import asked
from tests.documents.running import BINARIES
from tests.e2e.cluster import STOCK, RealCluster
from tests.programs import started

pytestmark = pytest.mark.e2e
TRAP = "trap-00"
NODES = """
kind: MachineGroup
machine: hgx-h100-8
count: 1
namePrefix: trap-
allocator: {topologyManagerPolicy: single-numa-node}
"""


class WithoutExtender(RealCluster):
    """kube-scheduler without an extender; the API server knows our objects."""

    def start_extender(self) -> None:
        """There is none."""

    def start_scheduler(self, tls: Mapping[str, str | None] | None = None) -> None:
        self.control_plane.start_scheduler(STOCK)

    def audit(self, *source: object) -> dict[str, Any]:
        live = ("--kubeconfig", self.control_plane.kubeconfig())
        done = asked(main, "audit", *(source or live), "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def place(self, name: str, gpus: int, phase: str) -> None:
        """Create a pod for the played node, and wait until its kubelet has answered."""
        self.add_pod(name, gpus, tolerations=[{"key": PLAYED, "operator": "Exists"}])
        self.until(lambda: self.pod(name)["status"]["phase"] == phase, f"{name} is {phase}")


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WithoutExtender]:
    folder = tmp_path_factory.mktemp("audit")
    with WithoutExtender(folder, control_plane_binaries) as cluster:
        (folder / "nodes.yaml").write_text(NODES)
        kubeconfig = f"--kubeconfig={cluster.control_plane.kubeconfig()}"
        play = [str(BINARIES / "gpu-topology"), "play", f"--cluster={folder / 'nodes.yaml'}"]
        with started([*play, kubeconfig], stderr=PIPE) as child:
            assert child.stderr is not None
            assert child.stderr.readline().startswith("nodes played: 1")
            yield cluster


def test_pods_that_a_kubelet_refused_are_counted_once(
    real: WithoutExtender, tmp_path: Path
) -> None:
    real.place("five", 5, "Failed")  # a NUMA node has four GPUs
    real.place("three", 3, "Running")
    real.place("three-more", 3, "Running")  # on the other NUMA node
    real.place("two", 2, "Failed")  # each NUMA node has one left
    real.until(lambda: len(refusals(real)) == 2, "both have Events")
    real.until(lambda: reported(real) == {"three", "three-more"}, "the record shows who runs")
    found = real.audit()
    (row,) = found["refusedPods"]["rows"]
    assert (row["node"], row["reason"], row["pods"], row["keptOff"]) == (
        TRAP,
        "TopologyAffinityError",
        2,
        2,
    )
    assert sorted(row["names"]) == ["default/five", "default/two"]
    assert (found["freeGpus"]["free"], found["spreadPods"]["pods"]) == (2, 2)
    assert found["notes"] == []
    seen = tmp_path / "seen.yaml"  # as docs/install/is-it-worth-it.md says, without records
    seen.write_text(real.kubectl("get", "nodes,pods,events", "-A", "-o", "yaml"))
    bare = real.audit("--cluster", seen)
    assert (bare["nodes"], bare["nodesWithoutRecord"]) == (1, 1)
    assert (bare["refusedPods"]["pods"], bare["refusedPods"]["unknown"]) == (2, 2)
    real.remove_pod("five")
    less = real.audit()["refusedPods"]
    assert (less["pods"], less["keptOff"], less["doubtful"]) == (1, 1, 1), "its Event is left"


def refusals(real: WithoutExtender) -> list[Any]:
    about = {"fieldSelector": "reason=TopologyAffinityError,involvedObject.kind=Pod"}
    return list(real.api.get("/api/v1/namespaces/default/events", params=about).json()["items"])


def reported(real: WithoutExtender) -> set[str]:
    """The pods that hold GPUs by the node's record, which its agent writes later than the kubelet
    writes their statuses."""
    status = real.record(TRAP).get("status", {})
    return {each["pod"] for each in status.get("allocations", ())}
