"""``gpu-topology why``: with a kubeconfig alone, and from a cluster file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_extender.cli import main
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.kube.owners import kind_named
from scheduler_extender.kube.sinks import NODES_PATH, PODS_PATH, RECORDS_PATH, PodSink
from tests.commands import ROOT, Done, asked, refused
from tests.dranodes import (
    DRIVER,
    NODE,
    PUBLISHED,
    DraWorld,
    a_slice,
    asking,
    claim,
    device,
    device_class,
    exactly,
    raw,
    slice_of,
    two_pairs,
)
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged, pod, switched
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.scheduler_extender.serving import running
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

DRA = "/apis/resource.k8s.io/v1"
WAITING = "examples/clusters/waiting.yaml"
NVLINK = {"link": "nvlink"}
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")


def why(*words: object) -> Done:
    return asked(main, "why", *words)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApiServer() as fake:
        yield Cluster(fake, tmp_path)


def test_with_a_kubeconfig_alone_it_says_what_the_extender_would(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-a", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "team-a/train\n"
        "asks for 2 GPUs: every two linked by NVLink (link=nvlink)\n"
        "no node takes it: no set of 2 free GPUs with link=nvlink (1 node)\n"
        "\n"
        "nearest\n"
        "  train-07: 1 of 2 linked GPUs is free (1); GPU 0 is held by team-a/serve\n"
        "\n"
        "what would help\n"
        "  team-a/serve on train-07 ends: the node takes the pod then\n"
        "  without link=nvlink: 1 node would take it now\n"
        "  with 1 GPU in place of 2: 1 node would take it now\n"
        "  with policy=preferred, without a promise: 1 node would take it now\n"
        "  evictions; kubectl gpu-topology unblock team-a/train shows a plan, if one exists\n"
    )


def test_what_the_caller_may_not_list_is_said(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    cluster.fake.refuse(403, None, path="^/api/v1/(pods|nodes)")
    done = cluster.why("train")
    assert (done.returncode, done.stderr) == (1, "")
    assert "GPU 0 is held by team-b/serve" in done.stdout, "the record names it"
    assert "no node takes it: no set of 2 free GPUs with link=nvlink (1 node)" in done.stdout
    assert "you may list pods only in the namespace team-a" in done.stdout
    assert "you may not list nodes" in done.stdout
    cluster.fake.refuse(403, None, path=RECORDS_PATH)
    denied = cluster.why("train")
    refused(denied, "403", "--forward")


def test_what_is_no_api_server_is_named_as_such(cluster: Cluster, tmp_path: Path) -> None:
    with running(switched()) as service:
        config = json.loads(cluster.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{service.ports[0]}"
        other = tmp_path / "other"
        other.write_text(json.dumps(config))
        done = why("train", "--kubeconfig", other)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_cluster_without_the_extender_is_named_as_such(cluster: Cluster) -> None:
    cluster.fake.refuse(404, None, path=RECORDS_PATH)
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train")
    assert done.returncode == 1
    assert "is gpu-topology installed?" in done.stdout


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
def test_of_a_workload_without_pods_its_template_is_told(cluster: Cluster, word: str) -> None:
    group, plural, spec = JOBS[word]
    cluster.node(switched(2, "node"))
    kind = kind_named(word)
    assert kind is not None
    cluster.fake.put(f"{group}/namespaces/team-a/{plural}", made(kind.name, "train", spec))
    done = cluster.why(f"{word}/train")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "2 GPUs: every two linked by NVLink" in done.stdout
    assert "1 of 1 node would take it\nnodes that would take it: node\n" in done.stdout
    assert "has no pods yet" in done.stdout


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


def test_a_pod_is_named_with_its_namespace(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"), "team-b")
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    done = cluster.why("team-b/train")
    assert done.stdout.startswith("team-b/train\n")
    assert "GPU 0 is held by team-b/serve" in done.stdout, "its own namespace can be seen"


def test_what_stands_in_the_wrong_place_on_the_pod_is_said(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    manifest = pod(2, {}, name="train", uid="train")
    manifest["metadata"]["labels"] = {"gpu-topology.io/link": "nvlink"}
    manifest["metadata"]["annotations"] = {"gpu-topolgy.io/min-nvlinks": "2"}
    cluster.pod(manifest)
    done = cluster.why("train")
    assert "2 GPUs without constraints" in done.stdout
    assert "label gpu-topology.io/link has no effect" in done.stdout
    assert "did you mean gpu-topology.io/min-nvlinks?" in done.stdout


def test_an_unreadable_annotation_is_the_answer(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    cluster.pod(pod(2, {"link": "rope"}, name="train", uid="train"))
    done = cluster.why("train")
    assert done.returncode == 1
    assert 'no node takes it: annotation gpu-topology.io/link="rope": allowed are' in done.stdout


def test_a_placed_pod_is_told_what_it_got(cluster: Cluster) -> None:
    node = bridged(4, "node")
    cluster.node(node)
    placement = json.dumps(
        {"verdict": "guaranteed", "node": "node", "uid": "p", "sets": [[0, 1], [2, 3]]}
    )
    manifest = pod(
        2, {**NVLINK, "placement": placement}, name="p", uid="p", node="node", phase="Running"
    )
    cluster.pod(manifest)
    ids = tuple(DeviceId(node.gpus[i].uuid) for i in (2, 3))
    held = (Allocation(PodUid("p"), "team-a", "p", "main", "nvidia.com/gpu", ids),)
    now = datetime.now(UTC).isoformat()
    report = Report("boot", 2, allocations=held, observed_at=now)
    cluster.fake.put(RECORDS_PATH, codec.encode(node, report))
    done = cluster.why("pod/p", "-o", "json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)["placed"]
    assert (placed["verdict"], placed["got"], placed["keeps"]) == ("guaranteed", [2, 3], True)
    assert placed["sets"] == [[0, 1], [2, 3]]
    assert "it got GPUs 2,3, which meet its constraints" in cluster.why("p").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody",), "there is no pod team-a/nobody"),
        (("cpu-only",), "asks for no GPUs"),
        (("deployment/none",), "404"),
        (("train", "-o", "xml"), "--output: allowed are text, json, not 'xml'"),
        (("train", "--require", "hope"), "--require: allowed are"),
    ],
)
def test_bad_input_is_one_line(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    cluster.pod(pod(None, name="cpu-only", uid="c"))
    done = cluster.why(*words)
    refused(done, said)


def test_lists_are_read_page_by_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_extender.kube.reading.PAGE", 2)
    monkeypatch.setattr("scheduler_extender.kube.reading.RECORDS_PAGE", 1)
    for i in range(5):
        cluster.node(switched(2, f"node-{i}"), **{f"pod-{i}": ("team-a", 0)})
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    assert json.loads(cluster.why("train", "-o", "json").stdout)["rejections"] == {"busy": 5}
    assert {r.query.get("limit") for r in cluster.fake.requests if r.path == PODS_PATH} == {"2"}


def test_it_is_tried_without_a_cluster() -> None:
    done = why("waits", "--cluster", WAITING)
    assert (done.returncode, done.stderr) == (1, "")
    assert "default/serve-0a on train-00 ends" in done.stdout
    assert "unblock" not in done.stdout, "there is no extender to ask"


def test_check_asks_the_same_cluster(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    sample = "manifests/samples/pair-nvlink.yaml"
    words = ("check", sample, "--kubeconfig", cluster.kubeconfig)
    done = asked(main, *words)
    assert (done.returncode, done.stderr) == (1, "")
    assert "0 of 1 nodes would take it" in done.stdout
    assert "GPU 0 is held by team-b/serve" in done.stdout
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    (row,) = json.loads(asked(main, *words, "-n", "team-a", "--output=json").stdout)["nodes"]
    assert row["reason"] == "scattered"
    assert "GPU 0 is held by team-b/serve" in row["miss"]["words"], "the record names it"


def test_gates_are_why_a_pod_waits_too(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    manifest = pod(2, NVLINK, name="train", uid="train")
    manifest["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    cluster.pod(manifest)
    done = cluster.why("train")
    assert done.returncode == 0
    assert "keep kube-scheduler from scheduling the pod: kueue.x-k8s.io" in done.stdout


def test_a_kubeconfig_is_found_as_kubectl_finds_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.node(switched(2, "node"))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"), "of-the-context")
    config = json.loads(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "of-the-context"
    usual = tmp_path / "home" / ".kube" / "config"
    usual.parent.mkdir(parents=True)
    usual.write_text(json.dumps(config))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert why("train").stdout.startswith("of-the-context/train\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    none = why("train")
    refused(none, f"kubeconfig {tmp_path / 'none'}: there is no such file")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}{os.pathsep}{usual}")
    assert why("train").stdout.startswith("of-the-context/train\n")


def test_without_any_kubeconfig_it_says_which_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    done = why("train")
    said = "error: neither $KUBECONFIG nor ~/.kube/config exists; give --kubeconfig FILE"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_what_a_workload_says_of_itself_is_told(cluster: Cluster) -> None:
    """A quota keeps the pods from being made: nobody would look for it at a pod."""
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


def test_a_record_that_cannot_be_used_does_not_spoil_the_json(cluster: Cluster) -> None:
    cluster.node(PAIRS)
    record = cluster.fake.read(f"{RECORDS_PATH}/train-07")
    cluster.fake.put(RECORDS_PATH, {**record, "spec": {**record["spec"], "devices": "none"}})
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train", "-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["rejections"] == {"record-unusable": 1}


def test_a_pod_that_only_closed_nodes_would_take_goes_nowhere(tmp_path: Path) -> None:
    text = (ROOT / "examples/clusters/template.yaml").read_text()
    file = tmp_path / "cluster.yaml"
    file.write_text(text.replace("tolerations:", "volumes:"))
    said = (
        "no node takes it: the node that would take it is not eligible because of taint "
        "pool=batch:NoSchedule; "
        "not guaranteed: the node may hand out GPUs without link=nvlink (1 node)\n"
    )
    done = why("team-a/train", "--cluster", file)
    assert done.returncode == 1
    assert said in done.stdout
    done = asked(main, "waiting", "-A", "--cluster", file, "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["pods"][0]["takes"] == 0


@pytest.fixture
def claiming(cluster: Cluster) -> Cluster:
    """A node of two pairs under DRA whose GPUs are published as 3, 1, 0, 2, one with a device
    plugin, and a pod that waits with a claim for two GPUs that are to be linked."""
    cluster.node(PAIRS)
    served = codec.encode(bridged(name=NODE), Report("boot", 1, allocatable=frozenset()))
    cluster.fake.put(RECORDS_PATH, served)
    cluster.fake.put(NODES_PATH, {"metadata": {"name": NODE}, "status": {"allocatable": {}}})
    published = a_slice(*map(device, PUBLISHED))
    for where, obj in (("deviceclasses", device_class()), ("resourceslices", published)):
        cluster.fake.put(f"{DRA}/{where}", msgspec.json.decode(obj))
    cluster.pod(with_claim("train", "g"), "ns")
    return cluster


def with_claim(name: str, claim: str, amount: str | None = "0", **asks: str) -> dict[str, Any]:
    manifest = pod(None, asks or NVLINK, name=name, uid=name)
    if amount is not None:
        limits = {"nvidia.com/gpu": amount}
        manifest["spec"]["containers"][0]["resources"] = {"limits": limits}
    manifest["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": claim}]
    return manifest


def asks_for(cluster: Cluster, *requests: dict[str, Any], alike: str = "") -> None:
    obj = msgspec.json.decode(asking("g", *requests, alike=alike))
    cluster.fake.put(f"{DRA}/namespaces/ns/resourceclaims", obj)


def test_a_pod_with_a_claim_of_its_own_reads_what_the_claim_gets(claiming: Cluster) -> None:
    asks_for(claiming, exactly(2))
    done = claiming.why("ns/train")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "ns/train\n"
        "asks for the GPUs of its claims: every two linked by NVLink (link=nvlink)\n"
        "no node takes it: the node's GPUs are not served by DRA (1 node); the next free GPUs "
        "do not meet "
        "link=nvlink (1 node)\n"
        "\n"
        "what would help\n"
        "  evictions; kubectl gpu-topology unblock ns/train shows a plan, if one exists\n"
        "\n"
        "notes\n"
        "  the pod's claims let kube-scheduler take the first free GPUs; gpu-topology claim "
        "writes a claim that names the suitable sets\n"
    )
    listed = asked(main, "waiting", "-n", "ns", "--kubeconfig", claiming.kubeconfig)
    assert "the GPUs of its claims link=nvlink" in " ".join(listed.stdout.split())
    assert "no node takes it" in listed.stdout
    asks_for(claiming, exactly(2), alike=f"{DRIVER}/pair")
    done = claiming.why("ns/train")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2 nodes would take it" in done.stdout
    assert "nodes that would take it: node" in done.stdout
    row = json.loads(claiming.why("ns/train", "-o", "json").stdout)["nodes"][0]
    assert (row["node"], row["verdict"], row["outcomes"]) == (NODE, "guaranteed", [[2, 3]])


def test_of_two_pods_that_ask_the_same_waiting_tells_the_one_whose_claim_has_gpus(
    claiming: Cluster,
) -> None:
    for name, gpus in (("second", (0, 1)), ("stranger", (2, 3))):
        held = msgspec.json.decode(claim(f"of-{name}", *gpus, pod=name))
        claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", held)
    for name in ("first", "second"):
        claiming.pod(pod(2, NVLINK, name=name, uid=name), "ns")
    done = asked(main, "waiting", "-n", "ns", "-o", "json", "--kubeconfig", claiming.kubeconfig)
    takes = {row["pod"]: row["takes"] for row in json.loads(done.stdout)["pods"]}
    assert (takes["ns/first"], takes["ns/second"]) == (1, 2), "both may go to the plugin's node"


@pytest.mark.parametrize(
    "hidden", ["deviceclasses", "devicetaintrules", "resourceclaims", "resourceslices"]
)
def test_a_node_of_which_a_part_may_not_be_seen_has_nothing_free(
    claiming: Cluster, hidden: str
) -> None:
    """Without the claims all its GPUs seemed free to a tenant."""
    held = claim("held", 0, 1, 2, 3, pod="other")
    claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", msgspec.json.decode(held))
    claiming.pod(pod(2, NVLINK, name="plain", uid="plain"), "ns")
    claiming.fake.refuse(403, None, path=f".*/{hidden}")
    told = json.loads(claiming.why("ns/plain", "-o", "json").stdout)
    assert {row["reason"] for row in told["nodes"] if row["node"] == NODE} == {"no-allocator"}
    assert told["notes"] == [
        f"you may not list {hidden}: this answer leaves out the devices of nodes with DRA"
    ]


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        pytest.param(
            [exactly(9)],
            "no free devices of the node match the pod's claims (1 node)",
            id="too many",
        ),
        pytest.param(
            [], "which GPUs the pod's claims get is unknown: a claim does not exist yet", id="none"
        ),
        pytest.param(
            [exactly(1, "device.driver.substring(1) == 'x'")],
            "which GPUs the pod's claims get is unknown: ",
            id="not read",
        ),
    ],
)
def test_where_a_claim_gets_nothing_or_nobody_can_say_it_why_does(
    claiming: Cluster, requests: list[dict[str, Any]], says: str
) -> None:
    if requests:
        asks_for(claiming, *requests)
    done = claiming.why("ns/train", "-o", "json")
    told = json.loads(done.stdout)
    assert says in told["headline"] + " ".join(row["note"] for row in told["nodes"])
    assert done.returncode == ("is unknown" not in says)


NAMELESS = {"metadata": {"name": DRIVER}, "spec": {}}
SPLIT = msgspec.json.decode(a_slice(device(0, consumesCounters=[{"counterSet": "c"}])))


@pytest.mark.parametrize(
    ("where", "obj", "says"),
    [
        pytest.param("deviceclasses", NAMELESS, "no DeviceClass has extendedRes", id="no name"),
        pytest.param(
            "resourceslices",
            slice_of(NODE, name="s", pool=NODE),
            "the node's DRA driver has published no GPUs",
            id="no driver",
        ),
        pytest.param("resourceslices", SPLIT, "device gpu-0 of a ResourceSlice has consumesCoun",
                     id="not followed"),
    ],
)  # fmt: skip
def test_what_keeps_a_node_with_dra_from_serving_is_said(
    claiming: Cluster, where: str, obj: Any, says: str
) -> None:
    """kube-scheduler would send the pod nowhere, and why said that the node would take it; or that
    the node serves GPUs by DRA only, which is what it is to do."""
    obj = obj if isinstance(obj, dict) else msgspec.json.decode(obj)
    claiming.fake.put(f"{DRA}/{where}", obj)
    claiming.pod(pod(3, NVLINK, name="number", uid="number"))
    done = claiming.why("number")
    assert f"notes\n  {NODE}: {says}" in done.stdout
    assert says in claiming.asked("node", NODE).stdout


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        pytest.param(with_claim("p", "g", None), 'limit nvidia.com/gpu: "0"', id="not asked"),
        pytest.param(with_claim("p", "g", policy="preferred"), "every GPU meets", id="anything"),
    ],
)
def test_a_pod_whose_claims_are_judged_by_nobody_reads_why(
    claiming: Cluster, manifest: dict[str, Any], says: str
) -> None:
    claiming.pod(manifest, "ns")
    done = claiming.why("ns/p")
    assert done.returncode == 2
    assert says in done.stderr
    listed = asked(main, "waiting", "-n", "ns", "-o", "name", "--kubeconfig", claiming.kubeconfig)
    assert listed.stdout.split() == ["pod/train"]


@pytest.mark.parametrize("written", [False, True], ids=["by hand", "snapshot"])
def test_a_file_does_not_judge_what_claims_get(written: bool, tmp_path: Path) -> None:
    """A cluster file has no claims, and a snapshot is one."""
    manifest = with_claim("train", "g")
    manifest["metadata"]["namespace"] = "ns"
    records = [codec.encode(bridged(name=NODE), Report())]
    file = tmp_path / "cluster.yaml"
    file.write_text("\n---\n".join(map(json.dumps, [*records, {"kind": "Pod", **manifest}])))
    if written:
        file.write_bytes(b"".join(cluster_file(world_with(manifest).cluster)))
    done = why("ns/train", "--cluster", file)
    assert done.returncode == 2
    assert "pod ns/train requests GPUs through claims: not evaluated: " in done.stderr
    listed = asked(main, "waiting", "-A", "--cluster", file, "-o", "json")
    [row] = json.loads(listed.stdout)["pods"]
    assert (row["pod"], row["asks"]) == ("ns/train", "the GPUs of its claims link=nvlink")
    assert row["reason"].startswith("not evaluated: ")
    assert (listed.returncode, row["nodes"]) == (0, None)


def world_with(manifest: dict[str, Any]) -> DraWorld:
    """A node with DRA, and a pod."""
    world = two_pairs()
    PodSink(world.cluster).apply(raw(manifest))
    return world


def test_pods_that_share_a_claim_have_its_gpus(claiming: Cluster) -> None:
    """The answer was to delete each of them, since no claim was known to have GPUs."""
    sharers = ("p1", "p2")
    shared = claim("s", 1, 0, pods=sharers)
    claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", msgspec.json.decode(shared))
    for name in sharers:
        manifest = with_claim(name, "s")
        manifest["spec"]["nodeName"] = NODE
        claiming.pod({**manifest, "status": {"phase": "Running"}}, "ns")
    done = claiming.why("ns/p2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nit got GPUs 0,1, which meet its constraints\n")
    for where in (NODES_PATH, RECORDS_PATH):
        claiming.fake.remove(f"{where}/{PAIRS.name}")
    claiming.pod(pod(4, name="w", uid="w"), "ns")
    done = claiming.why("ns/w")
    assert "node: 2 of 4 GPUs are free (2, 3); GPUs 0,1 are held by ns/claim/s\n" in done.stdout
    assert "  ns/p1 and ns/p2 on node end: the node takes the pod then\n" in done.stdout


def test_a_gpu_that_a_taint_withholds_is_no_matter_of_a_kubelet(claiming: Cluster) -> None:
    tainted = device(2, taints=[{"key": "k", "effect": "NoSchedule"}])
    published = a_slice(device(3), device(1), tainted)
    claiming.fake.put(f"{DRA}/resourceslices", msgspec.json.decode(published))
    claiming.pod(pod(4, name="w", uid="w"), "ns")
    assert "GPU 2 is in no ResourceSlice, or tainted" in claiming.why("ns/w").stdout
    shown = asked(main, "node", NODE, "-o", "json", "--kubeconfig", claiming.kubeconfig)
    rows = {row["gpu"]: row["problem"] for row in json.loads(shown.stdout)["devices"]}
    assert rows == dict.fromkeys((1, 3)) | dict.fromkeys((0, 2), "in no ResourceSlice, or tainted")


def test_what_kubectl_printed_of_a_node_with_dra_is_no_busy_node(tmp_path: Path) -> None:
    """It has no ResourceSlices, and a Node that advertises no GPUs."""
    told = {"metadata": {"name": NODE, "uid": "u"}, "status": {"allocatable": {"cpu": "8"}}}
    served = codec.encode(bridged(name=NODE), Report("boot", 1, allocatable=frozenset()))
    asks = {"kind": "Pod", **pod(2, NVLINK, name="w", uid="w")}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": [{"kind": "Node", **told}, served, asks]}))
    done = why("w", "--cluster", file)
    words = "neither a device plugin nor a DRA driver serves the node's GPUs (1 node)"
    assert f"no node takes it: {words}\n" in done.stdout
