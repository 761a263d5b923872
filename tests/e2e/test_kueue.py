"""The real Kueue in front: it holds jobs and pods until there is quota; then we place them.

Below it is the gang cycle of kube-scheduler 1.37, with the feature gate on. Kubelets and agents are
emulated.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.emulated import Kubelets
from tests.e2e.gangcluster import gang_cluster
from tests.e2e.kueue import GROUPS, MANAGER, QUEUES, Kueue
from tests.e2e.podgroups import BETA, Gangs, member
from tests.e2e.recordingproxy import RecordingProxy, gang_cycle
from topology.machines import machine

pytestmark = pytest.mark.e2e
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LINK = "gpu-topology.io/link"
PLACEMENT = "gpu-topology.io/placement"


@pytest.fixture(scope="module")
def cluster(
    gang_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCluster, RecordingProxy]]:
    folder = tmp_path_factory.mktemp("kueue")
    with gang_cluster(folder, gang_binaries, BETA, {MANAGER: GROUPS}) as found:
        found[0].control_plane.start_controllers(("job-controller",))
        yield found


@pytest.fixture(scope="module")
def real(cluster: tuple[RealCluster, RecordingProxy]) -> RealCluster:
    return cluster[0]


@pytest.fixture(scope="module")
def witness(cluster: tuple[RealCluster, RecordingProxy]) -> RecordingProxy:
    return cluster[1]


@pytest.fixture(scope="module")
def kueue(
    real: RealCluster, kueue_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kueue]:
    with Kueue(real, tmp_path_factory.mktemp("manager"), kueue_program) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def kubelets(real: RealCluster, kueue: Kueue) -> Iterator[Kubelets]:
    """Two machines whose GPUs are all linked; the queues have quota for one of them."""
    nodes = [machine("hgx-h100-8").topology(f"hgx-{i}") for i in range(2)]
    for node in nodes:
        real.add_machine(node)
    with Kubelets(real, nodes, seed=14) as found:
        yield found
    assert found.refused == []


def job(queue: str, name: str, pods: int, gpus: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "example/work",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    template = {
        "metadata": {"annotations": {LINK: "nvlink"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"completions": pods, "parallelism": pods, "template": template},
    }


def pods_of(real: RealCluster, name: str) -> list[dict[str, Any]]:
    selected = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
    return list(real.api.get(PODS, params=selected).json()["items"])


def suspended(real: RealCluster, name: str) -> bool:
    return bool(real.api.get(f"{JOBS}/{name}").json()["spec"].get("suspend"))


def all_bound(real: RealCluster, name: str, count: int) -> None:
    real.until(
        lambda: sum("nodeName" in pod["spec"] for pod in pods_of(real, name)) == count,
        f"the pods of {name} are bound",
    )


def reason(kueue: Kueue, name: str) -> str:
    """Why Kueue holds the workload of a job, or of a group of pods; empty where it does not say."""
    for found in kueue.workloads():
        owners = [owner["name"] for owner in found["metadata"].get("ownerReferences", ())]
        if name in owners or found["metadata"]["name"] == name:
            for condition in found.get("status", {}).get("conditions", ()):
                if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                    return str(condition["message"])
    return ""


def ended(real: RealCluster, kueue: Kueue, name: str) -> None:
    """Delete a job, its workload and its pods, as the garbage collector would, which is not here;
    Kueue has its quota back."""
    orphaned = {"propagationPolicy": "Background"}
    assert real.api.delete(f"{JOBS}/{name}", params=orphaned).is_success
    for found in kueue.workloads():
        owners = [owner["name"] for owner in found["metadata"].get("ownerReferences", ())]
        if name in owners:
            path = f"{QUEUES}/namespaces/default/workloads/{found['metadata']['name']}"
            real.patch(path, {"metadata": {"finalizers": None}})
            real.api.delete(path)
    for pod in pods_of(real, name):
        path = f"{PODS}/{pod['metadata']['name']}"
        real.patch(path, {"metadata": {"finalizers": None}})
        real.api.delete(path, params={"gracePeriodSeconds": 1})


def test_the_sample_starts_when_kueue_lets_it_and_its_promises_are_kept(
    real: RealCluster, kueue: Kueue, kubelets: Kubelets
) -> None:
    real.kubectl("apply", "-f", str(ROOT / "manifests" / "samples" / "gangs" / "kueue-job.yaml"))
    all_bound(real, "queued-pairs", 4)
    for pod in pods_of(real, "queued-pairs"):
        annotations = pod["metadata"]["annotations"]
        assert annotations[LINK] == "nvlink"
        assert '"guaranteed"' in annotations[PLACEMENT]
    names = {pod["metadata"]["name"] for pod in pods_of(real, "queued-pairs")}
    real.until(lambda: names <= set(kubelets.held), "all are admitted")


def test_a_job_beyond_the_quota_waits_though_its_nodes_are_free(
    real: RealCluster, kueue: Kueue
) -> None:
    real.create(JOBS, job("training", "second", 2, 4))
    real.until(lambda: reason(kueue, "second"), "Kueue says why the job waits")
    assert "insufficient unused quota for nvidia.com/gpu" in reason(kueue, "second")
    assert suspended(real, "second")
    assert pods_of(real, "second") == []
    ended(real, kueue, "queued-pairs")
    all_bound(real, "second", 2)
    ended(real, kueue, "second")


def test_a_queue_without_quota_starts_nothing(
    real: RealCluster, witness: RecordingProxy, kueue: Kueue
) -> None:
    kueue.queue("empty", 0)
    real.create(JOBS, job("empty", "never", 1, 2))
    real.until(lambda: reason(kueue, "never"), "Kueue says why the job waits")
    assert suspended(real, "never")
    assert pods_of(real, "never") == []
    assert not [call for call in witness.calls() if call.pod.startswith("never")]


def test_a_group_of_plain_pods_is_held_by_gates_and_bound_as_a_gang(
    real: RealCluster, witness: RecordingProxy, kueue: Kueue, kubelets: Kubelets
) -> None:
    """Kueue counts the group, takes the gates off, and kube-scheduler's gang cycle places it."""
    kueue.queue("pods", 8)
    Gangs(real, BETA).podgroup("workers", 4)
    names = [f"workers-{i}" for i in range(4)]
    for name in names[:3]:
        real.create(PODS, grouped(name))
    held = real.pod(names[0])
    assert {"name": "kueue.x-k8s.io/admission"} in held["spec"]["schedulingGates"]
    assert held["metadata"]["annotations"][LINK] == "nvlink"
    real.create(PODS, grouped(names[3]))
    assert len({real.node_of(name) for name in names}) <= 2
    real.until(lambda: witness.bound(names), "every bind is answered")
    assert all(call.error == "" for call in gang_cycle(witness.calls(), names))
    for name in names:
        annotations = real.pod(name)["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "4"
        assert annotations[LINK] == "nvlink"
        assert PLACEMENT in annotations
    real.until(lambda: set(names) <= set(kubelets.held), "all are admitted")


def grouped(name: str) -> dict[str, Any]:
    """A pod of a PodGroup that is also one of Kueue's pod groups."""
    pod = member(name, "workers", 2, {"link": "nvlink", "group-size": "4"})
    labels = {"kueue.x-k8s.io/queue-name": "pods", "kueue.x-k8s.io/pod-group-name": "workers"}
    pod["metadata"]["labels"] = labels
    pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = "4"
    return pod
