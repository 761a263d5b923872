"""Where are my GPUs, and why is my pod waiting: asked on a real API server and scheduler by an
operator, by a tenant with rights of his own, and by a client without rights."""

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
OPERATOR, TENANT, STRANGER = "operator", "tenant", "stranger"
SEES = {"verbs": ["get", "list", "watch"]}
PODS_RULE = {"apiGroups": [""], "resources": ["pods"], **SEES}
OWNERS_RULE = {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], **SEES}
RECORDS_RULE = {"apiGroups": ["gpu-topology.io"], "resources": ["gputopologies"], **SEES}
NODES_RULE = {"apiGroups": [""], "resources": ["nodes"], **SEES}
CONTAINER = {
    "name": "main",
    "image": "example/work",
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
}


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes; a pod of the namespace default and one of another hold half of each bridge, and a
    pair waits."""
    folder = tmp_path_factory.mktemp("tenants")
    users = dict.fromkeys((OPERATOR, TENANT, STRANGER), ())
    with RealCluster(folder, control_plane_binaries, users) as cluster:
        cluster.control_plane.start_controllers(("deployment-controller", "replicaset-controller"))
        cluster.control_plane.grant(OPERATOR, [PODS_RULE, RECORDS_RULE, NODES_RULE])
        cluster.control_plane.grant(TENANT, [RECORDS_RULE])
        cluster.control_plane.grant(TENANT, [PODS_RULE, OWNERS_RULE], namespace="default")
        cluster.create("/api/v1/namespaces", {"metadata": {"name": "other"}})
        account = {"metadata": {"name": "default"}}
        cluster.create("/api/v1/namespaces/other/serviceaccounts", account)
        cluster.add_machine(PCIE, Report("boot", 1))
        mine = cluster.add_pod("notebook", 1, nodeName=PAIRS.name)
        spec = {"nodeName": PAIRS.name, "containers": [CONTAINER]}
        theirs = cluster.create(
            "/api/v1/namespaces/other/pods", {"metadata": {"name": "secret"}, "spec": spec}
        )
        cluster.add_machine(PAIRS, _report(1, (mine, 0), (theirs, 2)))
        cluster.patch(f"/api/v1/nodes/{PAIRS.name}", {"metadata": {"labels": {"pool": "a100"}}})
        cluster.add_pod("train", 2, NVLINK)
        cluster.patch(f"{PODS}/train", {"metadata": {"labels": {"app": "train"}}})
        cluster.unschedulable("train")
        yield cluster


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


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def ask(real: RealCluster, user: str, *words: str) -> Done:
    return asked(main, *words, "--kubeconfig", real.control_plane.kubeconfig(user))


def events(real: RealCluster, name: str) -> dict[str, str]:
    """What our Events say about a pod, by their reason."""
    found = real.api.get(EVENTS, params={"fieldSelector": f"involvedObject.name={name}"}).json()
    ours = [e for e in found["items"] if e["source"].get("component") == "gpu-topology"]
    return {event["reason"]: event["message"] for event in ours}


def test_an_operator_sees_everything(real: RealCluster) -> None:
    done = ask(real, OPERATOR, "map")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train-07  [0U 1s] | [2U 3s]" in done.stdout
    assert "serve-01  0f 1f | 2f 3f" in done.stdout
    assert ask(real, OPERATOR, "nodes", "-l", "pool=a100", "-o", "name").stdout == (
        "node/train-07\n"
    )
    node = ask(real, OPERATOR, "node", "train-07")
    assert "default/notebook" in node.stdout
    assert "other/secret" in node.stdout
    waiting = ask(real, OPERATOR, "waiting", "-A", "-l", "app=train")
    assert waiting.returncode == 1
    assert "default/train" in waiting.stdout


def test_a_tenant_reads_what_rbac_does_not_let_them_list(real: RealCluster) -> None:
    for command in ("map", "nodes", "waiting"):
        notes = json.loads(ask(real, TENANT, command, "-o", "json").stdout)["notes"]
        assert "you may list pods only in the namespace default" in notes[0]
        assert "you may not list nodes" in notes[1]
    node = ask(real, TENANT, "node", "train-07")
    assert node.returncode == 0
    assert "default/notebook" in node.stdout
    assert "other/secret" in node.stdout, "the record names it"
    assert "  [0U 1s] | [2U 3s]" in ask(real, TENANT, "map").stdout
    waiting = ask(real, TENANT, "waiting")
    assert waiting.returncode == 1
    assert (
        "no node takes it: no set of 2 free GPUs with link=nvlink (1 node); the" in waiting.stdout
    )


@pytest.mark.parametrize(
    ("user", "words", "message"),
    [
        pytest.param(
            TENANT,
            ("waiting", "-A"),
            "you need permission to list pods in all namespaces",
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
        pytest.param(STRANGER, ("nodes",), "permission to get and list pods", id="no rights"),
        pytest.param(
            STRANGER, ("waiting",), "permission to get and list pods", id="no rights to wait"
        ),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    real: RealCluster, user: str, words: tuple[str, ...], message: str
) -> None:
    done = ask(real, user, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_waiting_pod_reads_why_and_then_where_it_went(real: RealCluster) -> None:
    real.until(lambda: WAITS in events(real, "train"), "an Event says why the pod waits")
    assert events(real, "train")[WAITS].startswith(f"no node takes it: {REASONS} (")
    done = ask(real, TENANT, "why", "train")
    assert (done.returncode, done.stderr) == (1, "")
    assert REASONS in done.stdout
    assert "GPU 0 is held by default/notebook" in done.stdout
    assert "default/notebook on train-07 ends: the node takes the pod then" in done.stdout
    assert "you may list pods only in the namespace default" in done.stdout
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
    done = ask(real, TENANT, "why", "pod/train", "-o", "json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)["placed"]
    assert (placed["node"], placed["verdict"]) == (PAIRS.name, "guaranteed")
    assert (placed["sets"], placed["got"], placed["keeps"]) == ([[0, 1], [2, 3]], [0, 1], True)
    real.remove_pod("train")


def test_a_deployment_with_its_annotation_on_the_wrong_object(real: RealCluster) -> None:
    labels = {"app": "serve"}
    container = {**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    real.create(
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "metadata": {"name": "serve", "annotations": {"gpu-topology.io/link": "nvlink"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        },
    )

    def pods() -> list[str]:
        found = real.api.get(PODS, params={"labelSelector": "app=serve"}).json()["items"]
        return [pod["metadata"]["name"] for pod in found]

    real.until(lambda: len(pods()) == 2, "the Deployment has its pods")
    done = ask(real, TENANT, "why", "deployment/serve")
    assert done.stderr == ""
    assert "3 GPUs without constraints" in done.stdout
    assert "annotation gpu-topology.io/link has no effect on the Deployment" in done.stdout
    assert all(name in done.stdout for name in pods())
