"""``gpu-topology why`` of a Deployment, Job or other owner: its pods, or its template."""

from typing import Any

import pytest

from scheduler_extender.kube.owners import kind_named
from tests.nodes import pod, switched
from tests.scheduler_extender.cli.kubecluster import Cluster

NVLINK = {"link": "nvlink"}


def owned(kind: str, name: str, version: str = "x/v1") -> dict[str, Any]:
    return {"kind": kind, "name": name, "uid": f"uid-{name}", "apiVersion": version}


def made(kind: str, name: str, template: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", **metadata}
    return {"kind": kind, "metadata": meta, "spec": template}


@pytest.mark.parametrize("word", ["deployment", "deployments", "deploy", "Deployment.apps"])
def test_a_deployment_is_asked_for_its_pods(cluster: Cluster, word: str) -> None:
    cluster.node(switched(2, "node"), runs=("team-a", 0))
    apps = "/apis/apps/v1/namespaces/team-a"
    ours = {"annotations": {"gpu-topology.io/link": "nvlink"}}
    cluster.fake.put(f"{apps}/deployments", made("Deployment", "web", {}, **ours))
    cluster.fake.put(
        f"{apps}/replicasets",
        made(
            "ReplicaSet",
            "web-1",
            {},
            ownerReferences=[{**owned("Deployment", "web", "apps/v1"), "controller": True}],
        ),
    )
    for name, node in (("web-a", "node"), ("web-b", None), ("web-c", None)):
        manifest = pod(2, NVLINK, name=name, uid=name, node=node)
        cluster.pod(manifest, owner=owned("ReplicaSet", "web-1", "apps/v1"))
    done = cluster.why(f"{word}/web")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("team-a/web-b\n")
    assert "web-a is on node" in done.stdout
    assert "web-c waits, too" in done.stdout
    assert "annotation gpu-topology.io/link has no effect on the Deployment" in done.stdout


MISPLACED = "annotation gpu-topology.io/link has no effect on the Job"


@pytest.mark.parametrize(
    ("owner", "ours"),
    [
        pytest.param(owned("Job", "j", "batch/v1"), True, id="the Job"),
        pytest.param(owned("Job", "j", "batch.volcano.sh/v1alpha1"), False, id="another group"),
        pytest.param({**owned("Job", "j", "batch/v1"), "uid": "former"}, False, id="another UID"),
    ],
)
def test_only_the_owner_itself_is_read(cluster: Cluster, owner: dict[str, Any], ours: bool) -> None:
    cluster.node(switched(2, "node"))
    job = made("Job", "j", {}, annotations={"gpu-topology.io/link": "nvlink"})
    cluster.fake.put("/apis/batch/v1/namespaces/team-a/jobs", job)
    cluster.pod(pod(2, NVLINK, name="j-x", uid="x"), owner=owner)
    assert (MISPLACED in cluster.why("j-x").stdout) is ours


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("jobs.batch", "Job"),
        ("job.v1.batch", "Job"),
        ("job.batch.volcano.sh", None),
        ("rc", "ReplicationController"),
        ("rc.v1.", "ReplicationController"),
        ("rc.other", None),
    ],
)
def test_a_kind_is_of_its_group_only(word: str, found: str | None) -> None:
    kind = kind_named(word)
    assert (kind and kind.name) == found


TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"gpu-topology.io/link": "nvlink"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 2}}}]},
}
JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "job": ("/apis/batch/v1", "jobs", {"template": TEMPLATE}),
    "cronjob": (
        "/apis/batch/v1",
        "cronjobs",
        {"jobTemplate": {"metadata": {}, "spec": {"template": TEMPLATE}}},
    ),
    "jobset": (
        "/apis/jobset.x-k8s.io/v1alpha2",
        "jobsets",
        {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}]},
    ),
    "pytorchjob": (
        "/apis/kubeflow.org/v1",
        "pytorchjobs",
        {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": TEMPLATE},
                "Worker": {"replicas": 3, "template": TEMPLATE},
            }
        },
    ),
    "lws": (
        "/apis/leaderworkerset.x-k8s.io/v1",
        "leaderworkersets",
        {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE}},
    ),
    "isvc": (
        "/apis/serving.kserve.io/v1beta1",
        "inferenceservices",
        {"predictor": {**TEMPLATE["metadata"], **TEMPLATE["spec"]}},
    ),
    "cwf": (
        "/apis/argoproj.io/v1alpha1",
        "cronworkflows",
        {
            "workflowSpec": {
                "podMetadata": TEMPLATE["metadata"],
                "templates": [{"name": "step", "container": TEMPLATE["spec"]["containers"][0]}],
            }
        },
    ),
}


@pytest.mark.parametrize("word", JOBS)
def test_of_a_workload_without_pods_its_template_is_reported(cluster: Cluster, word: str) -> None:
    group, plural, spec = JOBS[word]
    cluster.node(switched(2, "node"))
    kind = kind_named(word)
    assert kind is not None
    cluster.fake.put(f"{group}/namespaces/team-a/{plural}", made(kind.name, "train", spec))
    done = cluster.why(f"{word}/train")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "2 GPUs: every two linked by NVLink" in done.stdout
    assert "1 of 1 node would take it\nnodes that would take it: node\n" in done.stdout
    assert "has no pods;" in done.stdout


def test_no_pod_is_evicted_for_a_template(cluster: Cluster) -> None:
    """``unblock`` needs a pod."""
    cluster.node(switched(2, "node"), runs=("team-a", 0))
    group, plural, spec = JOBS["job"]
    cluster.fake.put(f"{group}/namespaces/team-a/{plural}", made("Job", "train", spec))
    printed = cluster.why("job/train").stdout
    assert "ends: the node takes the pod then" in printed
    assert "unblock" not in printed


def test_a_pod_of_a_job_of_a_jobset_is_found(cluster: Cluster) -> None:
    group, plural, spec = JOBS["jobset"]
    cluster.node(switched(2, "node"))
    cluster.fake.put(f"{group}/namespaces/team-a/{plural}", made("JobSet", "train", spec))
    above = [{**owned("JobSet", "train"), "controller": True}]
    cluster.fake.put(
        "/apis/batch/v1/namespaces/team-a/jobs",
        made("Job", "train-w-0", {"template": TEMPLATE}, ownerReferences=above),
    )
    cluster.pod(pod(2, NVLINK, name="w-0-x", uid="x"), owner=owned("Job", "train-w-0"))
    assert cluster.why("jobset/train").stdout.startswith("team-a/w-0-x\n")


def test_a_pod_of_an_inference_service_is_found_below_what_knative_makes(cluster: Cluster) -> None:
    group, plural, spec = JOBS["isvc"]
    cluster.node(switched(2, "node"))
    cluster.fake.put(f"{group}/namespaces/team-a/{plural}", made("InferenceService", "llm", spec))
    above = owned("InferenceService", "llm")
    for kind, where in (
        ("Service", "serving.knative.dev/v1"),
        ("Configuration", "serving.knative.dev/v1"),
        ("Revision", "serving.knative.dev/v1"),
        ("Deployment", "apps/v1"),
        ("ReplicaSet", "apps/v1"),
    ):
        name = f"llm-{kind.lower()}"
        below = made(kind, name, {}, ownerReferences=[{**above, "controller": True}])
        cluster.fake.put(f"/apis/{where}/namespaces/team-a/{kind.lower()}s", below)
        above = owned(kind, name)
    cluster.pod(pod(2, NVLINK, name="llm-x", uid="x"), owner=above)
    assert cluster.why("isvc/llm").stdout.startswith("team-a/llm-x\n")


def test_pods_without_gpus_of_a_workload_are_passed_over(cluster: Cluster) -> None:
    """As the launcher of an MPIJob."""
    cluster.node(switched(2, "node"))
    cluster.fake.put("/apis/kubeflow.org/v1/namespaces/team-a/mpijobs", made("MPIJob", "train", {}))
    for name, gpus in (("a-launcher", None), ("worker", 2)):
        cluster.pod(pod(gpus, NVLINK, name=name, uid=name), owner=owned("MPIJob", "train"))
    done = cluster.why("mpijob/train")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("team-a/worker\n")
    reads = [r for r in cluster.fake.requests if r.path.endswith("/pods/worker")]
    assert not reads, "pods are listed, not asked for one by one"


def test_what_a_workload_says_of_itself_is_reported(cluster: Cluster) -> None:
    """A quota prevents the pods, so no pod can show the reason."""
    cluster.node(switched(2, "node"))
    quota = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2",
    }
    over = {"type": "Available", "status": "False", "message": "no"}
    found = made("Deployment", "web", {"template": TEMPLATE})
    found["status"] = {"conditions": [over, quota]}
    cluster.fake.put("/apis/apps/v1/namespaces/team-a/deployments", found)
    done = cluster.why("deployment/web")
    assert "Deployment says ReplicaFailure: exceeded quota: gpus, requested" in done.stdout
    assert "Available" not in done.stdout
