"""Where are my GPUs: asked on a real API server by an operator, by a tenant and by a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cli import main
from tests.commands import Done, asked
from tests.e2e.cluster import PODS, RealCluster
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
PCIE = machine("l40s-4").topology("serve-01")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "system:serviceaccount:default"
OPERATOR, TENANT, STRANGER = (f"{ACCOUNTS}:{name}" for name in ("operator", "tenant", "stranger"))
GROUPS = ["system:serviceaccounts", "system:authenticated"]
SEES = {"verbs": ["get", "list", "watch"]}
PODS_RULE = {"apiGroups": [""], "resources": ["pods"], **SEES}
RECORDS_RULE = {"apiGroups": ["gpu-topology.io"], "resources": ["gputopologies"], **SEES}
NODES_RULE = {"apiGroups": [""], "resources": ["nodes"], **SEES}


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes; a pod of the namespace default and one of another hold half of each bridge."""
    users = dict.fromkeys((OPERATOR, TENANT, STRANGER), GROUPS)
    with RealCluster(tmp_path_factory.mktemp("where"), control_plane_binaries, users) as cluster:
        _grant(cluster, "ClusterRole", "operator", [PODS_RULE, RECORDS_RULE, NODES_RULE])
        _grant(cluster, "ClusterRole", "tenant", [RECORDS_RULE])
        _grant(cluster, "Role", "tenant", [PODS_RULE])
        cluster.create("/api/v1/namespaces", {"metadata": {"name": "other"}})
        account = {"metadata": {"name": "default"}}
        cluster.create("/api/v1/namespaces/other/serviceaccounts", account)
        cluster.add_machine(PCIE, Report("boot", 1))
        mine = cluster.add_pod("notebook", 1, nodeName=PAIRS.name)
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        container = {"name": "main", "image": "example/work", **limits}
        spec = {"nodeName": PAIRS.name, "containers": [container]}
        theirs = cluster.create(
            "/api/v1/namespaces/other/pods", {"metadata": {"name": "secret"}, "spec": spec}
        )
        cluster.add_machine(PAIRS, _report((mine, 0), (theirs, 2)))
        cluster.patch(f"/api/v1/nodes/{PAIRS.name}", {"metadata": {"labels": {"pool": "a100"}}})
        cluster.add_pod("train", 2, {"link": "nvlink"})
        cluster.patch(f"{PODS}/train", {"metadata": {"labels": {"app": "train"}}})
        cluster.unschedulable("train")
        yield cluster


def _grant(cluster: RealCluster, kind: str, name: str, rules: list[dict[str, Any]]) -> None:
    where = "/namespaces/default" if kind == "Role" else ""
    metadata = {"metadata": {"name": name}}
    plural = f"{RBAC}{where}/{kind.lower()}"
    cluster.create(f"{plural}s", {**metadata, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    reference = {"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    cluster.create(f"{plural}bindings", {**metadata, "subjects": [subject], "roleRef": reference})


def _report(*held: tuple[dict[str, Any], int]) -> Report:
    return Report(
        "boot",
        1,
        allocations=tuple(
            Allocation(
                PodUid(pod["metadata"]["uid"]),
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                "main",
                "nvidia.com/gpu",
                (DeviceId(PAIRS.gpus[gpu].uuid),),
            )
            for pod, gpu in held
        ),
    )


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def where(real: RealCluster, user: str, *words: str) -> Done:
    return asked(main, *words, "--kubeconfig", real.control_plane.kubeconfig(user))


def test_an_operator_sees_everything(real: RealCluster) -> None:
    done = where(real, OPERATOR, "map")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train-07  [0P 1s] | [2P 3s]" in done.stdout
    assert "serve-01  0f 1f | 2f 3f" in done.stdout
    assert where(real, OPERATOR, "nodes", "-l", "pool=a100", "-o", "name").stdout == (
        "node/train-07\n"
    )
    node = where(real, OPERATOR, "node", "train-07")
    assert "default/notebook" in node.stdout
    assert "other/secret" in node.stdout
    waiting = where(real, OPERATOR, "waiting", "-A", "-l", "app=train")
    assert waiting.returncode == 1
    assert "default/train" in waiting.stdout
    assert (
        "no node takes it: no set of 2 free GPUs with link=nvlink (1 node); the" in waiting.stdout
    )


def test_a_tenant_is_told_what_rbac_does_not_let_them_list(real: RealCluster) -> None:
    for command in ("map", "nodes", "waiting"):
        done = where(real, TENANT, command, "-o", "json")
        notes = json.loads(done.stdout)["notes"]
        assert "you may list the pods of the namespace default only" in notes[0]
        assert "you may not list nodes" in notes[1]
    node = where(real, TENANT, "node", "train-07")
    assert node.returncode == 0
    assert "default/notebook" in node.stdout
    assert "other/secret" in node.stdout, "the record names it"
    assert "  [0P 1s] | [2P 3s]" in where(real, TENANT, "map").stdout
    waiting = where(real, TENANT, "waiting")
    assert waiting.returncode == 1
    assert (
        "no node takes it: no set of 2 free GPUs with link=nvlink (1 node); the" in waiting.stdout
    )


@pytest.mark.parametrize(
    ("user", "words", "said"),
    [
        pytest.param(
            TENANT,
            ("waiting", "-A"),
            "you may not list the pods of all namespaces",
            id="all namespaces",
        ),
        pytest.param(
            TENANT, ("nodes", "-l", "a=b"), "no Node object can be read", id="labels of nodes"
        ),
        pytest.param(OPERATOR, ("nodes", "-l", "a=("), "'a=(' cannot be read", id="no selector"),
        pytest.param(
            OPERATOR, ("waiting", "-l", "=b"), "'=b' cannot be read", id="no pod selector"
        ),
        pytest.param(OPERATOR, ("node", "nobody"), "there is no node nobody", id="unknown node"),
        pytest.param(STRANGER, ("nodes",), "rights to get and list pods", id="no rights"),
        pytest.param(STRANGER, ("waiting",), "rights to get and list pods", id="no rights to wait"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    real: RealCluster, user: str, words: tuple[str, ...], said: str
) -> None:
    done = where(real, user, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
