"""Why is my pod waiting: asked with a tenant's own rights, on a real API server and scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cli import main
from scheduler_extender.kube.events import PLACED, WAITS
from tests.commands import Done, asked
from tests.e2e.cluster import PODS, RealCluster
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
REASONS = (
    "no set of 2 free GPUs with link=nvlink (1 node); "
    "the hardware has no set of 2 GPUs with link=nvlink (1 node)"
)
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
PCIE = machine("l40s-4").topology("serve-01")
EVENTS = "/api/v1/namespaces/default/events"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": ["get", "list"]},
]
RECORDS = [
    {
        "apiGroups": ["gpu-topology.io"],
        "resources": ["gputopologies"],
        "verbs": ["get", "list"],
    }
]


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes, a pod that holds a GPU, one of another namespace that holds another, and a tenant
    who may see the pods of the namespace default only."""
    folder = tmp_path_factory.mktemp("why")
    with RealCluster(folder, control_plane_binaries, {"tenant": []}) as cluster:
        cluster.control_plane.start_controllers(("deployment-controller", "replicaset-controller"))
        _grant(cluster, "Role", "/namespaces/default", RULES)
        _grant(cluster, "ClusterRole", "", RECORDS)
        cluster.create("/api/v1/namespaces", {"metadata": {"name": "other"}})
        cluster.create(
            "/api/v1/namespaces/other/serviceaccounts", {"metadata": {"name": "default"}}
        )
        cluster.add_machine(PCIE, Report("boot", 1))
        mine = cluster.add_pod("notebook", 1, nodeName=PAIRS.name)
        spec = {"nodeName": PAIRS.name, "containers": mine["spec"]["containers"]}
        theirs = cluster.create(
            "/api/v1/namespaces/other/pods",
            {"metadata": {"name": "secret"}, "spec": _plain(spec)},
        )
        cluster.add_machine(PAIRS, _report(1, (mine, 0), (theirs, 2)))
        yield cluster


def _grant(cluster: RealCluster, kind: str, where: str, rules: list[dict[str, Any]]) -> None:
    group = "rbac.authorization.k8s.io"
    name = {"metadata": {"name": "tenant"}}
    plural = f"{RBAC}{where}/{kind.lower()}"
    cluster.create(f"{plural}s", {**name, "rules": rules})
    subject = {"kind": "User", "name": "tenant", "apiGroup": group}
    reference = {"kind": kind, "name": "tenant", "apiGroup": group}
    cluster.create(f"{plural}bindings", {**name, "subjects": [subject], "roleRef": reference})


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without what admission has added for another pod."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    return {**spec, "containers": [{"name": "main", "image": "example/work", "resources": limits}]}


def _report(sequence: int, *held: tuple[dict[str, Any], *tuple[int, ...]]) -> Report:
    return Report(
        "boot",
        sequence,
        allocations=tuple(
            Allocation(
                PodUid(pod["metadata"]["uid"]),
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                "main",
                "nvidia.com/gpu",
                tuple(DeviceId(PAIRS.gpus[gpu].uuid) for gpu in gpus),
            )
            for pod, *gpus in held
        ),
    )


def why(real: RealCluster, *words: str) -> Done:
    return asked(main, "why", *words, "--kubeconfig", real.control_plane.kubeconfig("tenant"))


def events(real: RealCluster, name: str) -> dict[str, str]:
    """What our Events say about a pod, by their reason."""
    found = real.api.get(EVENTS, params={"fieldSelector": f"involvedObject.name={name}"}).json()
    ours = [e for e in found["items"] if e["source"].get("component") == "gpu-topology"]
    return {event["reason"]: event["message"] for event in ours}


def test_a_waiting_pod_is_told_why_and_then_where_it_went(real: RealCluster) -> None:
    real.add_pod("train", 2, NVLINK)
    real.unschedulable("train")
    real.until(lambda: WAITS in events(real, "train"), "an Event says why the pod waits")
    assert events(real, "train")[WAITS].startswith(f"no node takes it: {REASONS} (")
    done = why(real, "train")
    assert (done.returncode, done.stderr) == (1, "")
    assert REASONS in done.stdout
    assert "GPU 0 is held by default/notebook" in done.stdout
    assert "default/notebook on train-07 ends: the node takes the pod then" in done.stdout
    assert "you may list the pods of the namespace default only" in done.stdout
    assert "you may not list nodes" in done.stdout

    real.remove_pod("notebook")
    theirs = real.api.get("/api/v1/namespaces/other/pods/secret").json()
    real.put_report(PAIRS.name, _report(2, (theirs, 2)))
    assert real.node_of("train") == PAIRS.name
    real.until(lambda: PLACED in events(real, "train"), "an Event says where the pod went")
    assert events(real, "train")[PLACED] == (
        "on train-07; guaranteed: 2 GPUs link=nvlink; possible GPUs: 0,1 | 2,3"
    )
    train = real.pod("train")
    real.put_report(PAIRS.name, _report(3, (theirs, 2), (train, 0, 1)))
    done = why(real, "pod/train", "-o", "json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)["placed"]
    assert (placed["node"], placed["verdict"]) == (PAIRS.name, "guaranteed")
    assert (placed["sets"], placed["got"], placed["keeps"]) == ([[0, 1], [2, 3]], [0, 1], True)
    real.remove_pod("train")


def test_a_deployment_with_its_annotation_in_the_wrong_place(real: RealCluster) -> None:
    container = {"name": "main", "image": "example/work"}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    labels = {"app": "serve"}
    real.create(
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "metadata": {"name": "serve", "annotations": {"gpu-topology.io/link": "nvlink"}},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{**container, **limits}]},
                },
            },
        },
    )

    def pods() -> list[str]:
        found = real.api.get(PODS, params={"labelSelector": "app=serve"}).json()["items"]
        return [pod["metadata"]["name"] for pod in found]

    real.until(lambda: len(pods()) == 2, "the Deployment has its pods")
    done = why(real, "deployment/serve")
    assert done.stderr == ""
    assert "3 GPUs, whichever they are" in done.stdout
    assert (
        "annotation gpu-topology.io/link stands on the Deployment and counts for nothing"
        in done.stdout
    )
    assert all(name in done.stdout for name in pods())
