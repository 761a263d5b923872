"""``gpu-topology unblock --evict`` that cannot evict every victim, on a real API server."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.controlplane import Process
from tests.e2e.occupiednode import OccupiedNode
from tests.e2e.unblockcommand import unblock, words_of
from tests.waiting import PATIENCE
from topology.machines import machine
from topology.times import time_text

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
KEPT = "gpu-topology.io/reserved"
KEEP = "600"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster with a user who may reserve places."""
    folder = tmp_path_factory.mktemp("halfway")
    users: dict[str, list[str]] = {"one": []}
    with RealCluster(folder, control_plane_binaries, users) as cluster:
        cluster.add_priority_classes(low=1, middle=500, high=1000)
        # kube-scheduler evicts nobody for it: that is the command's to do.
        cluster.add_priority_class("patient", 1000, preemptionPolicy="Never")
        for user in users:
            reserve = {"apiGroups": ["gpu-topology.io"], "resources": ["gputopologies"]}
            pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch", "get", "list"]}
            nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
            budgets = {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"]}
            records = {**reserve, "verbs": ["reserve", "list"]}
            may(cluster, user, records, pods, nodes, {**budgets, "verbs": ["list"]})
        yield cluster


def may(real: RealCluster, user: str, *rules: dict[str, list[str]]) -> None:
    """Give a user rights, and wait until the API server has heard of them."""
    group = "rbac.authorization.k8s.io"
    name = f"{user}-{time.monotonic_ns()}"
    base = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    real.create(f"{RBAC}/clusterroles", {**base, "kind": "ClusterRole", "rules": list(rules)})
    reference = {"kind": "ClusterRole", "name": name, "apiGroup": group}
    bound = {"subjects": [{"kind": "User", "name": user, "apiGroup": group}], "roleRef": reference}
    real.create(f"{RBAC}/clusterrolebindings", {**base, "kind": "ClusterRoleBinding", **bound})
    real.until(
        lambda: all(_is_allowed(real, user, rule) for rule in rules), f"{user} has its rights"
    )


def _is_allowed(real: RealCluster, user: str, rule: dict[str, list[str]]) -> bool:
    """Whether a user may do the first thing that a rule grants."""
    resource, _, part = rule["resources"][0].partition("/")
    asked = {
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": part,
        "verb": rule["verbs"][0],
        "namespace": "default",
        "name": rule.get("resourceNames", [""])[0],
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }
    answer = real.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


class Scene:
    """Two of four linked GPUs are held, and a pod waits for all four: both holders have to go, the
    more important one first."""

    def __init__(self, real: RealCluster) -> None:
        self.real = real
        self.name = f"half-{time.monotonic_ns()}"
        self.node = OccupiedNode(real, machine("hgx-h100-4").topology(self.name))
        self.first, self.second = f"{self.name}-first", f"{self.name}-second"
        self.waits = f"{self.name}-waits"
        self.node.hold(self.first, 0, priorityClassName="middle")
        self.node.hold(self.second, 1)
        for pod in (self.first, self.second):
            where = f"/api/v1/namespaces/default/pods/{pod}"
            real.patch(where, {"metadata": {"labels": {"app": pod}}})
            real.patch(f"{where}/status", {"status": {"phase": "Running"}})
        self.node.publish()
        only = {"nodeSelector": {"kubernetes.io/hostname": self.name}}
        real.add_pod(self.waits, 4, NVLINK, priorityClassName="patient", **only)
        real.until(self.planned, "both are in a plan")

    def planned(self) -> bool:
        """Whether both are to be evicted, the more important one first."""
        code, text, _ = unblock(self.real, self.waits, "--output", "json")
        plan = (json.loads(text)["plan"] if code == 0 else None) or {"steps": []}
        return [step["pod"] for step in plan["steps"]] == [self.first, self.second]

    def evict(self, user: str = "admin") -> tuple[int, str]:
        """Exit code and errors of ``--evict`` with a user's rights."""
        code, _, errors = unblock(self.real, self.waits, "--evict", user=user)
        return code, errors

    def kept(self) -> str:
        """What is written of the place that is reserved for the pod that waits; empty for none."""
        return str(self.real.pod(self.waits)["metadata"]["annotations"].get(KEPT, ""))


@pytest.fixture
def scene(real: RealCluster) -> Scene:
    return Scene(real)


def test_a_client_that_may_not_evict_all_writes_no_reservation(
    real: RealCluster, scene: Scene
) -> None:
    """The caller may evict the first of two pods, and not the second."""
    one = {"apiGroups": [""], "resources": ["pods/eviction"], "resourceNames": [scene.first]}
    may(real, "one", {**one, "verbs": ["create"]})
    code, errors = scene.evict("one")
    assert code == 2
    needed = "you need permission to create pods/eviction in the namespace default: 403 Forbidden"
    assert needed in errors
    assert scene.kept() == ""
    assert scene.node.evicted() == []


def counted(generation: int) -> dict[str, dict[str, int]]:
    """What the controller of a budget for one pod writes when it has seen this generation of it."""
    pods = {"currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1}
    return {"status": {**pods, "disruptionsAllowed": 1, "observedGeneration": generation}}


def waits_for_a_budget(real: RealCluster, scene: Scene, folder: Path) -> Process:
    """The command, with the first pod evicted; the second one's budget was changed, and its
    controller has not counted again: the API server asks to come again after ten seconds."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": scene.name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": scene.second}}},
    }
    real.create(BUDGETS, body)
    real.patch(f"{BUDGETS}/{scene.name}/status", counted(0))
    real.until(scene.planned, "the budget allows it, as far as it tells")
    words = words_of(real, scene.waits, "--evict", "--keep", KEEP)
    command = [sys.executable, "-m", "scheduler_extender", *words]
    evicting = Process("unblock", command, folder / "unblock.log")
    again = f"retrying to evict default/{scene.second}: 429 TooManyRequests"
    real.until(lambda: again in evicting.text(), "the budget forbids the second eviction")
    return evicting


def test_an_eviction_that_a_budget_forbids_is_tried_again(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    """The test is the controller."""
    evicting = waits_for_a_budget(real, scene, tmp_path)
    try:
        assert scene.node.evicted() == [scene.first]
        real.patch(f"{BUDGETS}/{scene.name}/status", counted(1))
        real.until(lambda: not evicting.alive(), "the command is done")
        assert "all pods of the plan are evicted" in evicting.text()
        assert set(scene.node.evicted()) == {scene.first, scene.second}
    finally:
        evicting.stop()


def test_the_leader_is_killed_half_way(real: RealCluster, scene: Scene, tmp_path: Path) -> None:
    """One pod is evicted then, and the other is not. No pod is evicted twice, no other pod takes
    the place, and the pod lands there."""
    evicting = waits_for_a_budget(real, scene, tmp_path)
    try:
        real.kill_extender()
        scene.node.let_go(scene.first)
        real.patch(f"{BUDGETS}/{scene.name}/status", counted(1))
        real.until(lambda: not evicting.alive(), "the command needs no extender")
        real.start_extender()
        assert evicting.text().count("evicted default/") == 2, evicting.text()
        assert scene.node.evicted() == [scene.second]
        only = {"nodeSelector": {"kubernetes.io/hostname": scene.name}}
        thief = f"{scene.name}-thief"
        real.add_pod(thief, 1, priorityClassName="patient", **only)
        assert "reserved for another pod until" in real.unschedulable(thief)
        scene.node.let_go(scene.second)
        assert real.node_of(scene.waits) == scene.name
        real.remove_pod(thief)
    finally:
        evicting.stop()


def test_the_command_is_killed_half_way(real: RealCluster, scene: Scene, tmp_path: Path) -> None:
    """The next call evicts the pod that is left, and the first one not again."""
    waits_for_a_budget(real, scene, tmp_path).stop(signal.SIGKILL, PATIENCE)
    written = scene.kept()
    assert scene.node.evicted() == [scene.first]
    code, answer, _ = unblock(real, scene.waits)
    assert code == 0
    assert f"still to be evicted: default/{scene.second}\n" in answer
    # The kubelet of the first has ended it meanwhile: the place is still there.
    scene.node.let_go(scene.first)
    assert "it is in effect" in unblock(real, scene.waits)[1]

    real.patch(f"{BUDGETS}/{scene.name}/status", counted(1))
    code, errors = scene.evict()
    assert code == 0, errors
    assert f"evicted default/{scene.second}\nall pods of the plan are evicted" in errors
    code, errors = scene.evict()
    assert code == 0
    assert "evicted default/" not in errors, "no pod is evicted twice"
    assert scene.kept() == written, "it is written once"
    scene.node.let_go(scene.second)
    assert real.node_of(scene.waits) == scene.name


def test_a_reservation_that_was_taken_is_no_reason_to_evict(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    """Between two calls an operator binds a pod by hand to GPUs of the place."""
    waits_for_a_budget(real, scene, tmp_path).stop(signal.SIGKILL, PATIENCE)
    scene.node.admit(f"{scene.name}-thief", 2, priorityClassName="high")
    code, errors = scene.evict()
    assert code == 1
    assert (
        f"no more pods are evicted: {scene.name} has no guaranteed placement for the pod" in errors
    )
    assert scene.node.evicted() == [scene.first]


def test_a_reservation_ends_though_the_command_and_the_leader_are_killed(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    waits_for_a_budget(real, scene, tmp_path).stop(signal.SIGKILL, PATIENCE)
    real.kill_extender()
    real.start_extender()
    scene.node.let_go(scene.first)
    only = {"nodeSelector": {"kubernetes.io/hostname": scene.name}}
    other = f"{scene.name}-other"
    real.add_pod(other, 1, **only)
    assert "reserved for another pod until" in real.unschedulable(other)
    soon = {**json.loads(scene.kept()), "until": time_text(time.time() + 5)}
    real.patch(f"{PODS}/{scene.waits}", {"metadata": {"annotations": {KEPT: json.dumps(soon)}}})
    assert real.node_of(other) == scene.name


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_command_has_said_what_it_did(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    evicting = waits_for_a_budget(real, scene, tmp_path)
    evicting.stop(signal.SIGINT, PATIENCE)
    assert f"evicted default/{scene.first}\n" in evicting.text()
    assert scene.kept()
    assert scene.node.evicted() == [scene.first]
