"""docs/tasks/nodes.md on a real API server and kube-scheduler, with emulated kubelets: every
manifest of examples/howto is applied as the page says, and has the effect that the page names."""

import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import kubectl_plugin
from scheduler_extender.kube.sinks import PODS_PATH
from tests.commands import asked
from tests.e2e.cluster import OWN_IDENTITY, PODS, ROOT, RealCluster
from tests.e2e.emulated import Kubelets
from topology.machines import machine

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "tasks" / "nodes.md").read_text()
FOLDER = ROOT / "examples" / "howto"
OLD = machine("a100-pcie-4-bridged").topology("old")
TWIN = machine("a100-pcie-4-bridged").topology("twin")
NEW = machine("hgx-h100-8").topology("new")
LABELS = {
    "old": {"nvidia.com/cuda.driver-version.major": "550", "example.com/pool": "training"},
    "twin": {"nvidia.com/cuda.driver-version.major": "550"},
    "new": {"nvidia.com/cuda.driver-version.major": "570", "example.com/capacity": "spot"},
}
SPOT = {"key": "example.com/capacity", "value": "spot", "effect": "NoSchedule"}
CONTROLLERS = ("replicaset-controller", "disruption-controller", "job-controller")
MERGE = {"Content-Type": "application/merge-patch+json"}
# Kubeflow's resource, without its schema and its operator.
PYTORCHJOBS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes of bridged pairs and one with an NVSwitch, which is a tainted spot node."""
    with RealCluster(tmp_path_factory.mktemp("howto"), control_plane_binaries) as cluster:
        cluster.control_plane.start_controllers(CONTROLLERS)
        for node in (OLD, TWIN, NEW):
            cluster.add_machine(node)
            cluster.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": LABELS[node.name]}})
        with Kubelets(cluster, [OLD, TWIN, NEW], seed=1):
            yield cluster


@pytest.fixture(autouse=True)
def _alone(real: RealCluster) -> Iterator[None]:
    """What a test has applied goes with it, and all GPUs are free again."""
    yield
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.stem in APPLIED:
            real.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(path))
    APPLIED.clear()

    def gone() -> bool:
        for pod in pods(real):
            name = pod["metadata"]["name"]
            real.api.patch(f"{PODS}/{name}", json={"metadata": {"finalizers": None}}, headers=MERGE)
            real.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 0})
        return not pods(real)

    real.until(gone, "the pods of the test are gone")
    real.until(
        lambda: all(row["remaining"] == row["gpus"] for row in real.admin.get("/v1/nodes").json()),
        "all GPUs are free again",
    )


APPLIED: set[str] = set()


def apply(real: RealCluster, name: str) -> None:
    """A manifest, as the page has it applied."""
    assert f"kubectl apply -f examples/howto/{name}.yaml" in PAGE
    APPLIED.add(name)
    real.kubectl("apply", "-f", str(FOLDER / f"{name}.yaml"))


def pods(real: RealCluster, app: str = "") -> list[dict[str, Any]]:
    params = {"labelSelector": f"app={app}"} if app else {}
    return list(real.api.get(PODS_PATH, params=params).json()["items"])


def running(real: RealCluster, app: str) -> list[str]:
    """The nodes on which pods of an app run, each guaranteed its place."""
    found = [
        pod
        for pod in pods(real, app)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    for pod in found:
        placement = pod["metadata"]["annotations"]["gpu-topology.io/placement"]
        assert json.loads(placement)["verdict"] == "guaranteed"
    return sorted(pod["spec"]["nodeName"] for pod in found)


def test_a_node_is_drained_one_pod_at_a_time(real: RealCluster) -> None:
    taint(real, [SPOT])
    apply(real, "driver-update")
    real.until(lambda: len(running(real, "serving")) == 2, "both pods run")
    budget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/serving"
    real.until(
        lambda: real.api.get(budget).json().get("status", {}).get("disruptionsAllowed") == 1,
        "the budget allows one pod to go",
    )
    node = running(real, "serving")[0]
    other = "twin" if node == "old" else "old"
    section = PAGE.partition("## Update the driver")[2].partition("\n## ")[0]
    lines = re.findall(r"^kubectl ((?:cordon|drain|uncordon) [^#\n]*)", section, re.MULTILINE)
    cordon, drain, uncordon = (shlex.split(line.replace("NODE", node)) for line in lines)
    real.kubectl(*cordon)
    with ThreadPoolExecutor() as pool:
        drained = pool.submit(real.kubectl, *drain)
        real.until(lambda: running(real, "serving") and drained.done(), "the node is drained")
        drained.result()
    real.until(lambda: running(real, "serving") == [other, other], "both run on the other node")
    real.kubectl(*uncordon)


def test_a_pod_finds_a_driver_that_is_new_enough(real: RealCluster) -> None:
    taint(real, [])
    apply(real, "cuda-version")
    assert real.node_of("cuda-12-8") == "new"


def test_a_pod_that_ends_is_made_anew_on_other_gpus(real: RealCluster) -> None:
    taint(real, [SPOT])
    apply(real, "liveness")

    def alive() -> list[dict[str, Any]]:
        named = {"labelSelector": "batch.kubernetes.io/job-name=watched"}
        every = real.api.get(PODS, params=named).json()["items"]
        return [pod for pod in every if pod["status"].get("phase") == "Running"]

    real.until(alive, "the Job's pod runs")
    (pod,) = alive()
    (container,) = pod["spec"]["containers"]
    assert container["livenessProbe"]["exec"]["command"][0] == "nvidia-smi"
    # The kubelet's own probes are not here: what they lead to is written instead.
    name = pod["metadata"]["name"]
    failed = {"status": {"phase": "Failed", "reason": "Error"}}
    answer = real.api.patch(f"{PODS}/{name}/status", json=failed, headers=MERGE)
    assert answer.is_success, answer.text
    real.until(
        lambda: [p["metadata"]["name"] for p in alive()] not in ([], [name]), "another pod runs"
    )


def test_a_pod_takes_the_spot_node_only_if_it_tolerates_it(real: RealCluster) -> None:
    taint(real, [SPOT])
    apply(real, "spot")
    assert real.node_of("spot-pair") == "new"
    real.add_pod("on-demand", 2, {"link": "nvlink"})
    assert real.node_of("on-demand") in ("old", "twin")


def test_nodes_are_filled(real: RealCluster) -> None:
    shipped = real.scheduler_config()
    profile = yaml.safe_load((FOLDER / "packing.yaml").read_text())
    assert set(profile) == {"profiles"}
    real.control_plane.stop_scheduler()
    real.control_plane.start_scheduler(yaml.safe_dump({**shipped, **profile, **OWN_IDENTITY}))
    try:
        taint(real, [SPOT])
        for name in ("first", "second", "third", "fourth"):
            real.add_pod(name, 1)
            real.node_of(name)
        nodes = {real.node_of(name) for name in ("first", "second", "third", "fourth")}
        assert len(nodes) == 1
    finally:
        real.restart_scheduler()


def test_a_placeholder_makes_room(real: RealCluster) -> None:
    taint(real, [SPOT])
    apply(real, "placeholder")
    real.until(lambda: running(real, "placeholder") == ["old"], "the placeholder runs")
    real.add_pod("quad", 4, nodeSelector={"example.com/pool": "training"})
    assert real.node_of("quad") == "old"
    real.until(
        lambda: [pod["spec"].get("nodeName") for pod in pods(real, "placeholder")] == [None],
        "a new placeholder waits",
    )


def test_a_pytorchjob_is_explained(real: RealCluster) -> None:
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    real.create(crd, PYTORCHJOBS)
    jobs = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    real.until(lambda: real.api.get(jobs).is_success, "the resource is served")
    apply(real, "pytorchjob")
    kubeconfig = ("--kubeconfig", real.control_plane.kubeconfig())
    done = asked(kubectl_plugin, "why", "pytorchjob/pairs", *kubeconfig)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "requests 2 GPUs: every two linked by NVLink" in done.stdout
    assert "PyTorchJob pairs has no pods;" in done.stdout


def taint(real: RealCluster, taints: list[dict[str, str]]) -> None:
    """The taints of the spot node from now on."""
    real.patch("/api/v1/nodes/new", {"spec": {"taints": taints or None}})
