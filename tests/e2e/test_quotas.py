"""Quotas, default limits, priorities, taints, node pools and NVIDIA's labels beside our rules.

The API server and the scheduler are real. Our rules leave theirs in force, and both give their
reasons. The samples are those of docs/tasks/quotas.md.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler_extender.kube.sinks import PODS_PATH
from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.emulated import Kubelets
from topology.core.graph import NodeTopology
from topology.machines import machine

pytestmark = pytest.mark.e2e

SAMPLES = ROOT / "manifests" / "samples" / "neighbours"
NVLINK = {"link": "nvlink"}
POOL = "example.com/pool"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
# Two bridges: pairs are linked, no three GPUs are.
TRAINER = machine("a100-pcie-4-bridged").topology("trainer")
SERVER = machine("l40s-4").topology("server")  # No NVLink at all
# Any four GPUs are linked; its taint keeps pods away that do not tolerate it.
TAINTED = machine("hgx-h100-4").topology("tainted")
FLEET = {TRAINER: "training", SERVER: "inference", TAINTED: "research"}
NO_PAIR = "the hardware has no set of 2 GPUs with link=nvlink"
NO_QUAD = "the hardware has no set of 4 GPUs with link=nvlink"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
UNTOLERATED = "node(s) had untolerated taint"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Three nodes with emulated kubelets, and the controller that counts what quotas speak of."""
    with RealCluster(tmp_path_factory.mktemp("neighbours"), control_plane_binaries) as cluster:
        cluster.control_plane.start_controllers(("resourcequota-controller",))
        for node, pool in FLEET.items():
            cluster.add_machine(node)
            labels = {POOL: pool, **gfd_labels(node)}
            cluster.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": labels}})
        cluster.patch(f"/api/v1/nodes/{TAINTED.name}", {"spec": {"taints": [TAINT]}})
        with Kubelets(cluster, list(FLEET), seed=1) as kubelets:
            yield cluster
            assert kubelets.refused == []


def gfd_labels(node: NodeTopology) -> dict[str, str]:
    """What GPU feature discovery writes: product with dashes, memory in MiB."""
    gpu = node.gpus[0]
    return {
        "nvidia.com/gpu.product": gpu.product.replace(" ", "-"),
        "nvidia.com/gpu.memory": str(gpu.memory // 2**20),
        "nvidia.com/gpu.count": str(len(node.gpus)),
    }


@pytest.fixture(autouse=True)
def _alone(real: RealCluster) -> Iterator[None]:
    """A test's pods go with it, and the extender has seen it."""
    yield
    for pod in every_pod(real):
        meta = pod["metadata"]
        real.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
    real.until(lambda: not every_pod(real), "the pods of the test are gone")
    real.until(
        lambda: all(row["remaining"] == row["gpus"] for row in real.admin.get("/v1/nodes").json()),
        "all GPUs are free again",
    )


def every_pod(real: RealCluster) -> list[dict[str, Any]]:
    return list(real.api.get(PODS_PATH).json()["items"])


def apply(real: RealCluster, name: str) -> None:
    """A sample, as people apply it."""
    real.kubectl("apply", "-f", str(SAMPLES / f"{name}.yaml"))


def in_namespace(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def runs_on(real: RealCluster, name: str, namespace: str = "default") -> str:
    """The node on which a pod runs, and was guaranteed its place."""
    path = f"{in_namespace(namespace)}/{name}"

    def pod() -> dict[str, Any]:
        return real.api.get(path).json()  # type: ignore[no-any-return]

    real.until(lambda: pod()["status"].get("phase") == "Running", f"{name} runs")
    placement = json.loads(pod()["metadata"]["annotations"]["gpu-topology.io/placement"])
    node = str(pod()["spec"]["nodeName"])
    assert (placement["verdict"], placement["node"]) == ("guaranteed", node)
    return node


def gpus(count: int | str) -> dict[str, Any]:
    """A pod's containers that ask for GPUs."""
    limits = {"limits": {"nvidia.com/gpu": str(count)}}
    return {"containers": [{"name": "main", "image": "example/work", "resources": limits}]}


def posted(
    real: RealCluster, namespace: str, name: str, spec: dict[str, Any], **annotations: str
) -> httpx.Response:
    """What the API server answers to a pod; annotations come without our prefix."""
    ours = {f"gpu-topology.io/{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "annotations": ours}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return real.api.post(in_namespace(namespace), json=body)


def refused(answer: httpx.Response) -> str:
    """The words with which the API server did not let a pod in."""
    assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text
    return str(answer.json()["message"])


def test_a_quota_counts_what_is_asked_and_we_see_only_what_it_lets_in(real: RealCluster) -> None:
    team = "team-with-quota"
    quota = f"/api/v1/namespaces/{team}/resourcequotas/gpus"

    def used() -> str:
        found = real.api.get(quota).json().get("status", {}).get("used", {})
        return str(found.get("requests.nvidia.com/gpu", ""))

    apply(real, "quota")
    real.until(lambda: used() == "0", "the quota counts")
    apply(real, "quota-pair")
    assert runs_on(real, "quota-pair", team) == "trainer"
    assert used() == "2"

    asked = real.calls("filter")
    words = refused(posted(real, team, "too-many", gpus(4), link="nvlink"))
    assert "exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used" in words
    assert real.calls("filter") == asked, "a pod that is not let in is nobody's to place"

    # A pod that waits, here for a GPU that no node has, holds what it asks for.
    waits = posted(real, team, "waits", gpus(2), **{"gpu-model": "B200"})
    assert waits.is_success, waits.text
    assert used() == "4"
    words = refused(posted(real, team, "one-more", gpus(1)))
    assert "used: requests.nvidia.com/gpu=4" in words
    real.api.delete(f"{in_namespace(team)}/waits")
    real.until(lambda: used() == "2", "what it held is given back")
    assert posted(real, team, "one-more", gpus(1)).is_success
    assert runs_on(real, "one-more", team) in ("trainer", "server")


def test_pods_are_placed_by_the_limits_of_their_namespace(real: RealCluster) -> None:
    team = "team-with-limits"
    apply(real, "limit-range")
    assert runs_on(real, "limits-pair", team) == "trainer"
    (container,) = real.api.get(f"{in_namespace(team)}/limits-pair").json()["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}

    words = refused(posted(real, team, "too-many", gpus(8), link="nvlink"))
    assert "maximum nvidia.com/gpu usage per Container is 4" in words

    # Who wants none has to say so. kube-scheduler asks us about that pod, too, since the name is
    # there; it goes to any node, also where all GPUs are held.
    for name, node, count in (("holds-a", "trainer", 2), ("holds-b", "server", 4)):
        real.add_pod(name, count, nodeSelector={"kubernetes.io/hostname": node})
        assert real.node_of(name) == node
    real.until_bound("holds-a", "holds-b")
    asked = real.calls("filter"), real.calls("bind")
    assert posted(real, team, "none", gpus(0)).is_success
    real.until(
        lambda: real.api.get(f"{in_namespace(team)}/none").json()["spec"].get("nodeName"),
        "a pod without GPUs is bound",
    )
    real.until_bound("none", namespace=team)
    assert (real.calls("filter"), real.calls("bind")) == (asked[0] + 1, asked[1] + 1)


def test_the_more_important_pod_goes_first_and_evicts_only_if_it_may(
    real: RealCluster,
) -> None:
    real.add_pod("holds", 4, nodeName="server")
    real.control_plane.stop_scheduler()
    apply(real, "priorities")
    apply(real, "priority-pods")  # the less important one first
    asked = real.calls("preempt")
    real.start_scheduler()
    assert runs_on(real, "deadline-quad") == "trainer"
    assert "Insufficient nvidia.com/gpu" in real.unschedulable("batch-quad")

    pair = {"nodeSelector": {POOL: "training"}}
    real.add_pod("patient", 2, NVLINK, priorityClassName="gpu-deadline", **pair)
    assert "preemption" in real.unschedulable("patient")
    assert real.calls("preempt") == asked, "preemptionPolicy: Never asks nobody"
    assert "deletionTimestamp" not in real.pod("deadline-quad")["metadata"]
    real.remove_pod("patient")
    real.remove_pod("batch-quad")

    real.add_priority_classes(**{"gpu-now": 20000})
    real.add_pod("now", 2, NVLINK, priorityClassName="gpu-now", **pair)
    assert runs_on(real, "now") == "trainer"
    assert "deadline-quad" not in [pod["metadata"]["name"] for pod in every_pod(real)]
    assert real.pod("holds")["spec"]["nodeName"] == "server", "nobody else was evicted"


def test_a_taint_excludes_pods_that_do_not_tolerate_it(real: RealCluster) -> None:
    real.add_pod("untolerated", 4, NVLINK)
    words = real.unschedulable("untolerated")
    assert f"1 {UNTOLERATED}" in words
    assert f"2 {NO_QUAD}" in words, "our reason for the other nodes is told beside it"
    assert words.startswith("0/3 nodes are available")

    apply(real, "taints")
    assert runs_on(real, "tolerating-quad") == "tainted"
    assert not real.pod("untolerated")["spec"].get("nodeName")

    # The taint goes: so does the reason, and the pod once there is room.
    real.api.delete(f"{PODS}/tolerating-quad")
    real.patch(f"/api/v1/nodes/{TAINTED.name}", {"spec": {"taints": None}})
    try:
        assert runs_on(real, "untolerated") == "tainted"
    finally:
        real.patch(f"/api/v1/nodes/{TAINTED.name}", {"spec": {"taints": [TAINT]}})


def test_a_pod_stays_in_its_node_pool(real: RealCluster) -> None:
    apply(real, "node-pool")
    assert runs_on(real, "pool-pair") == "trainer"
    real.add_pod("wrong-pool", 2, NVLINK, nodeSelector={POOL: "inference"})
    words = real.unschedulable("wrong-pool")
    for reason in (NO_PAIR, UNSELECTED, UNTOLERATED):
        assert f"1 {reason}" in words
    # A plain pod has a place in that pool, though the other one would suit it, too.
    real.add_pod("plain", 1, nodeSelector={POOL: "inference"})
    assert runs_on(real, "plain") == "server"


def test_labels_of_gpu_feature_discovery_select_nodes(real: RealCluster) -> None:
    apply(real, "gfd-labels")
    assert runs_on(real, "labelled-pair") == "trainer"

    def wanting(key: str, operator: str, value: str) -> dict[str, Any]:
        line = {"key": f"nvidia.com/gpu.{key}", "operator": operator, "values": [value]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    asked = real.calls("filter")
    real.add_pod("larger", 2, NVLINK, affinity=wanting("memory", "Gt", "90000"))
    words = real.unschedulable("larger")
    assert f"2 {UNSELECTED}" in words
    assert f"1 {UNTOLERATED}" in words
    assert real.calls("filter") == asked, "no node is offered to us"
    # Label and annotation that exclude each other: each refuses its nodes, in its own words.
    wants = {"affinity": wanting("product", "In", "NVIDIA-L40S")}
    real.add_pod("both", 1, {"gpu-model": "A100*"}, **wants)
    words = real.unschedulable("both")
    for reason in ("GPU model is l40s, not a100*", UNSELECTED, UNTOLERATED):
        assert f"1 {reason}" in words
