"""Evictions that help, on a real API server and scheduler: kube-scheduler's own, and ours."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.occupiednode import OccupiedNode, linked
from tests.e2e.unblockcommand import unblock, until_reserved
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
QUIET = 4.0
DGX = machine("dgx1-v100").topology("dgx")
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster with a user who may read it all, evict pods and change them, and reserve no place;
    and one who may not list PodDisruptionBudgets."""
    folder = tmp_path_factory.mktemp("unblock")
    with RealCluster(folder, control_plane_binaries, {"editor": [], "reader": []}) as cluster:
        reads = [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
            {"apiGroups": ["gpu-topology.io"], "resources": ["gputopologies"], "verbs": ["list"]},
        ]
        budgets = {"resources": ["poddisruptionbudgets"], "verbs": ["list"]}
        rules = [
            *reads,
            {"apiGroups": ["policy"], **budgets},
            {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        ]
        group, rbac = "rbac.authorization.k8s.io", "/apis/rbac.authorization.k8s.io/v1"
        for user, allowed in {"editor": rules, "reader": reads}.items():
            role = {"apiVersion": f"{group}/v1", "metadata": {"name": user}}
            subject = {"kind": "User", "name": user, "apiGroup": group}
            reference = {"kind": "ClusterRole", "name": user, "apiGroup": group}
            bound = {"subjects": [subject], "roleRef": reference}
            cluster.create(
                f"{rbac}/clusterroles", {**role, "kind": "ClusterRole", "rules": allowed}
            )
            kind = {"kind": "ClusterRoleBinding", **bound}
            cluster.create(f"{rbac}/clusterrolebindings", {**role, **kind})
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _classes(real: RealCluster) -> None:
    real.add_priority_classes(low=1, middle=500, high=1000)


def test_a_quad_of_high_priority_evicts_only_pods_whose_gpus_complete_a_linked_set(
    real: RealCluster,
) -> None:
    node = OccupiedNode(real, DGX)
    for gpu in range(8):
        # The least important pods, which kube-scheduler would evict, hold GPUs across the halves.
        important = "middle" if gpu in (1, 2, 3, 5) else "low"
        node.hold(f"single-{gpu}", gpu, priorityClassName=important)
    node.publish()
    assert not linked(DGX, (0, 4, 6, 7))
    # The sample of docs/tasks/idle-gpus.md, as people apply it.
    for name in ("priority", "urgent-quad"):
        real.kubectl("apply", "-f", str(ROOT / f"manifests/samples/unblock/{name}.yaml"))
    real.until(lambda: len(node.evicted()) == 4, "four pods are evicted")
    victims = node.evicted()
    assert linked(DGX, [int(name[-1]) for name in victims])
    node.let_go(*victims)
    assert real.node_of("urgent-quad") == "dgx"
    assert node.evicted() == []
    left = {item["metadata"]["name"] for item in real.api.get(PODS).json()["items"]}
    assert left == {*node.held, "urgent-quad"}


def test_no_pod_is_evicted_where_no_set_of_victims_would_do(real: RealCluster) -> None:
    """The pods that hold one half of each pair are as important as the one that asks."""
    pairs = machine("a100-pcie-4-bridged").topology("important")
    node = OccupiedNode(real, pairs)
    for gpu in range(4):
        node.hold(f"of-{gpu}", gpu, priorityClassName="high" if gpu % 2 else "low")
    node.publish()
    calls = real.calls("preempt")
    only = {"nodeSelector": {"kubernetes.io/hostname": "important"}}
    real.add_pod("in-vain", 2, NVLINK, priorityClassName="high", **only)
    real.until(lambda: real.calls("preempt") > calls, "kube-scheduler asks whom to evict")
    until = time.monotonic() + QUIET
    while time.monotonic() < until:
        assert node.evicted() == []
        time.sleep(0.2)
    real.remove_pod("in-vain")


@pytest.fixture
def blocked(real: RealCluster) -> OccupiedNode:
    """Two of four GPUs are free, one of each pair, and a ReplicaSet's pods hold the others."""
    name = f"pairs-{time.monotonic_ns()}"
    node = OccupiedNode(real, machine("a100-pcie-4-bridged").topology(name))
    for gpu in (0, 2):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}
        node.hold(f"{name}-{gpu}", gpu)
        real.patch(
            f"{PODS}/{name}-{gpu}",
            {"metadata": {"labels": {"app": name},
                          "ownerReferences": [{**owner, "uid": "5f0c8f5e-0000-4000-8000-1"}]}},
        )  # fmt: skip
        real.patch(f"{PODS}/{name}-{gpu}/status", {"status": {"phase": "Running"}})
    node.publish()
    only = {"nodeSelector": {"kubernetes.io/hostname": name}, "priorityClassName": "middle"}
    real.add_pod(f"{name}-waits", 2, NVLINK, **only)
    return node


def test_unblock_makes_the_waiting_pod_run(real: RealCluster, blocked: OccupiedNode) -> None:
    name = blocked.node.name
    pod = f"{name}-waits"
    # kube-scheduler has nobody to evict: the count fits.
    assert "without" in real.unschedulable(pod) or "no set" in real.unschedulable(pod)
    real.until(lambda: unblock(real, pod)[0] == 0, "there is a plan")
    code, text, _ = unblock(real, pod)
    assert f"evict 1 pod on {name}" in text
    found = json.loads(unblock(real, pod, "--output", "json")[1])
    assert found["plan"]["cost"] == {"lost": 0, "moved": 1, "priorities": 1, "devices": 1}
    assert blocked.evicted() == [], "a plan evicts nobody"

    code, _, errors = unblock(real, pod, "--evict")
    assert code == 0, errors
    (victim,) = blocked.evicted()
    assert victim == found["plan"]["steps"][0]["pod"]
    # The place is reserved: a pod that would break it waits, and is not told for whom.
    until_reserved(real, name)
    only = {"nodeSelector": {"kubernetes.io/hostname": name}}
    real.add_pod(f"{name}-thief", 2, **only)
    assert "reserved for another pod until" in real.unschedulable(f"{name}-thief")
    # It survives the end of the extender.
    real.kill_extender()
    real.start_extender()
    blocked.let_go(victim)
    assert real.node_of(pod) == name
    # With the pod its reservation is gone: one GPU is left beside it, and is for all.
    real.remove_pod(f"{name}-thief")


def test_a_client_that_may_not_reserve_evicts_no_pod(
    real: RealCluster, blocked: OccupiedNode
) -> None:
    """The rights to evict and to change pods are not enough."""
    name = blocked.node.name
    pod = f"{name}-waits"
    real.until(lambda: unblock(real, pod)[0] == 0, "there is a plan")
    code, _, errors = unblock(real, pod, "--evict", user="editor")
    assert code == 2
    assert "no pod was evicted" in errors
    assert "reserve" in errors
    assert blocked.evicted() == []
    assert "gpu-topology.io/reserved" not in real.pod(pod)["metadata"].get("annotations", {})


def test_a_client_that_may_not_list_budgets_reads_the_missing_right(
    real: RealCluster, blocked: OccupiedNode
) -> None:
    code, out, errors = unblock(real, f"{blocked.node.name}-waits", "--evict", user="reader")
    assert (code, out) == (2, "")
    needed = "you need permission to list poddisruptionbudgets in the whole cluster"
    assert f"error: {needed}: 403 Forbidden" in errors
    assert blocked.evicted() == []


def test_a_disruption_budget_is_respected(real: RealCluster, blocked: OccupiedNode) -> None:
    name = blocked.node.name
    pod = f"{name}-waits"
    real.until(lambda: unblock(real, pod)[0] == 0, "there is a plan")
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
    }
    real.create(BUDGETS, body)
    real.until(lambda: unblock(real, pod)[0] == 1, "no pod is worth evicting")
    assert blocked.evicted() == []


def test_no_pod_is_relocated_to_a_node_without_free_cpus(real: RealCluster) -> None:
    """Its GPUs are free. The extender keeps no picture of pods without GPUs: it asks."""

    def container(**asks: str) -> dict[str, object]:
        return {"name": "main", "image": "example/work", "resources": {"limits": asks}}

    pool = {"nodeSelector": {"pool": "cpus"}}
    held = OccupiedNode(real, machine("a100-pcie-4-bridged").topology("held"))
    home = OccupiedNode(real, machine("l40s-4").topology("home"))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}
    for gpu in range(4):
        work = container(**{"nvidia.com/gpu": "1", "cpu": "8"})
        held.hold(f"held-{gpu}", gpu, containers=[work], **pool)
        owners = {"ownerReferences": [{**owner, "uid": "5f0c8f5e-0000-4000-8000-1"}]}
        real.patch(f"{PODS}/held-{gpu}", {"metadata": owners})
    real.add_pod("crowd", 0, nodeName="home", containers=[container(cpu="85")])
    for node in (held, home):
        node.publish()
        path = f"/api/v1/nodes/{node.node.name}"
        real.patch(path, {"metadata": {"labels": {"pool": "cpus"}}})
    real.add_pod("wants-cpus", 2, NVLINK, priorityClassName="low", **pool)

    def homes() -> set[str] | None:
        plan = json.loads(unblock(real, "wants-cpus", "--output", "json")[1])["plan"]
        return {step["relocation"] for step in plan["steps"]} if plan else None

    real.unschedulable("wants-cpus")
    # 11 of 96 CPUs are left there: enough for one of the two that have to move.
    real.until(lambda: real.admin.get("/v1/nodes/home").is_success, "the home is known")
    assert homes() is None
    real.remove_pod("crowd")
    real.until(lambda: homes() == {"home"}, "its CPUs are free")
    real.remove_pod("wants-cpus")
