"""``gpu-topology unblock --evict`` that cannot evict everybody, on a real API server."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import Process
from tests.e2e.heldnode import HeldNode
from tests.e2e.unblocking import unblock, words_of
from tests.waiting import PATIENCE
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
KEPT = "gpu-topology.io/reserved"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster with two users who may keep places."""
    folder = tmp_path_factory.mktemp("halfway")
    users: dict[str, list[str]] = {"one": [], "none": []}
    with RealCluster(folder, control_plane_binaries, users) as cluster:
        cluster.add_priority_classes(low=1, middle=500, high=1000)
        # kube-scheduler evicts nobody for it: that is the command's to do.
        cluster.add_priority_class("patient", 1000, preemptionPolicy="Never")
        for user in users:
            reserve = {"apiGroups": ["gpu-topology.io"], "resources": ["gputopologies"]}
            patch = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
            may(cluster, user, {**reserve, "verbs": ["reserve"]}, patch)
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
        self.node = HeldNode(real, machine("hgx-h100-4").topology(self.name))
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
        kubeconfig = str(self.real.control_plane.kubeconfig(user))
        code, _, errors = unblock(self.real, self.waits, "--evict", "--kubeconfig", kubeconfig)
        return code, errors

    def kept(self) -> bool:
        """Whether a place is kept for the pod that waits."""
        return KEPT in self.real.pod(self.waits)["metadata"]["annotations"]


@pytest.fixture
def scene(real: RealCluster) -> Scene:
    return Scene(real)


def test_what_was_done_is_told_and_another_call_goes_on(real: RealCluster, scene: Scene) -> None:
    """The caller may evict the first of two pods, and not the second."""
    one = {"apiGroups": [""], "resources": ["pods/eviction"], "resourceNames": [scene.first]}
    may(real, "one", {**one, "verbs": ["create"]})
    code, errors = scene.evict("one")
    assert code == 1
    assert f"evicted default/{scene.first}\n" in errors
    assert f"default/{scene.second} was not evicted: 403 Forbidden" in errors
    assert f"1 of 2 evicted; {scene.name} keeps the place for default/{scene.waits}" in errors
    assert "run the command again" in errors
    assert scene.kept()
    assert scene.node.evicted() == [scene.first]

    def told() -> str:
        return unblock(real, scene.waits)[1]

    left = f"still to be evicted for it: default/{scene.second}\n"
    real.until(lambda: left in told(), "the extender has seen who is gone")
    # The kubelet of the first has ended it meanwhile: the place is still there.
    scene.node.let_go(scene.first)
    real.until(lambda: "it is there" in told(), "the place holds")
    assert left in told()
    assert scene.evict("one")[0] == 1, "who may not may not the second time"
    assert scene.kept(), "others were evicted for the place before"

    code, errors = scene.evict()
    assert code == 0, errors
    assert f"evicted default/{scene.second}\n1 of 1 evicted" in errors
    real.until(lambda: left not in told(), "nobody is left")
    code, errors = scene.evict()
    assert code == 0
    assert "nobody is left to be evicted" in errors
    scene.node.let_go(scene.second)
    assert real.node_of(scene.waits) == scene.name


def test_where_nobody_can_be_evicted_the_place_is_given_back(
    real: RealCluster, scene: Scene
) -> None:
    code, errors = scene.evict("none")
    assert code == 2
    assert f"default/{scene.first} was not evicted: 403 Forbidden" in errors
    assert "nobody was evicted, and the place is kept no more" in errors
    assert not scene.kept()
    assert scene.node.evicted() == []
    real.until(scene.planned, "there is a plan again")


def test_a_place_that_is_gone_is_given_back_by_the_next_call(
    real: RealCluster, scene: Scene
) -> None:
    """Between two calls somebody binds a pod by hand to GPUs of the place."""
    one = {"apiGroups": [""], "resources": ["pods/eviction"], "resourceNames": [scene.first]}
    may(real, "one", {**one, "verbs": ["create"]})
    assert scene.evict("one")[0] == 1
    scene.node.admit(f"{scene.name}-thief", 2, priorityClassName="high")
    real.until(
        lambda: "it is not there any more" in unblock(real, scene.waits)[1], "the place is gone"
    )
    code, errors = scene.evict()
    assert code == 2
    assert "nobody was evicted: the place on" in errors
    assert "run the command again for another plan" in errors
    assert not scene.kept()
    assert scene.node.evicted() == [scene.first]


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
    real.until(scene.planned, "the budget allows it, as far as the extender knows")
    kubeconfig = str(real.control_plane.kubeconfig())
    words = words_of(real, scene.waits, "--evict", "--kubeconfig", kubeconfig)
    command = [sys.executable, "-m", "scheduler_extender", *words]
    evicting = Process("unblock", command, folder / "unblock.log")
    again = f"default/{scene.second} is tried again: 429 TooManyRequests"
    real.until(lambda: again in evicting.text(), "the budget forbids the second eviction")
    return evicting


def test_an_eviction_that_a_budget_forbids_is_tried_again(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    """The test is the controller."""
    evicting = waits_for_a_budget(real, scene, tmp_path)
    try:
        started = time.monotonic()
        assert scene.node.evicted() == [scene.first]
        real.patch(f"{BUDGETS}/{scene.name}/status", counted(1))
        real.until(lambda: not evicting.alive(), "the command is done")
        assert time.monotonic() - started > 5, "it waits for as long as it was asked to"
        assert "2 of 2 evicted" in evicting.text()
        assert set(scene.node.evicted()) == {scene.first, scene.second}
    finally:
        evicting.stop()


def test_nobody_is_evicted_any_more_once_the_place_is_gone(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    """While the command waits for a budget somebody binds a pod by hand to GPUs of the place."""
    evicting = waits_for_a_budget(real, scene, tmp_path)
    try:
        scene.node.admit(f"{scene.name}-thief", 2, priorityClassName="high")
        gone = "it is not there any more"
        real.until(lambda: gone in unblock(real, scene.waits)[1], "the place is gone")
        real.patch(f"{BUDGETS}/{scene.name}/status", counted(1))
        real.until(lambda: not evicting.alive(), "the command is done")
        assert "nobody else is evicted: the place on" in evicting.text()
        assert evicting.text().endswith("1 of 2 evicted\n")
        assert scene.node.evicted() == [scene.first]
    finally:
        evicting.stop()


@pytest.mark.usefixtures("interruptible")
def test_who_interrupts_it_is_told_what_was_done(
    real: RealCluster, scene: Scene, tmp_path: Path
) -> None:
    evicting = waits_for_a_budget(real, scene, tmp_path)
    evicting.stop(signal.SIGINT, PATIENCE)
    assert f"1 of 2 evicted; {scene.name} keeps the place" in evicting.text()
    assert scene.kept()
    assert scene.node.evicted() == [scene.first]
