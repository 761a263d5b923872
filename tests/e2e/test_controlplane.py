"""The control plane by itself: no extender, so that a failure here is not the extender's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.controlplane import PERIOD, ControlPlane, ControlPlaneFailed, create_node
from tests.waiting import eventually

pytestmark = pytest.mark.e2e
PODS = "/api/v1/namespaces/default/pods"
PLAIN = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "{kubeconfig}"}
leaderElection: {leaderElect: false}
"""


@pytest.fixture(scope="module")
def plain(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Two nodes, one with GPUs, and a scheduler that knows of no extender."""
    folder = tmp_path_factory.mktemp("plain")
    with ControlPlane(folder, control_plane_binaries, {"nobody": []}) as control_plane:
        with control_plane.client() as client:
            create_node(client, "gpus", 8, {"pool": "a"})
            create_node(client, "none", 0)
        control_plane.start_scheduler(PLAIN)
        yield control_plane


def bind(client: httpx.Client, name: str, log: ControlPlane) -> str:
    """Create a pod of one GPU; the node that it is bound to."""
    container = {
        "name": "main",
        "image": "example/work",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    answer = client.post(PODS, json={**pod, "spec": {"containers": [container]}})
    assert answer.status_code == 201, answer.text

    def node() -> str:
        return str(client.get(f"{PODS}/{name}").json()["spec"].get("nodeName", ""))

    eventually(
        node,
        f"{name} is bound",
        every=PERIOD,
        told=lambda: log.log("kube-scheduler")[-3000:],
    )
    return node()


def test_the_real_scheduler_binds_a_gpu_pod(plain: ControlPlane) -> None:
    with plain.client() as client:
        assert bind(client, "first", plain) == "gpus"
        taints = client.get("/api/v1/nodes/gpus").json()["spec"].get("taints", [])
    assert taints == []


def test_rights_come_from_rbac(plain: ControlPlane) -> None:
    with plain.client("nobody") as client:
        assert client.get("/api/v1/nodes").status_code == 403
        client.headers["Authorization"] = "Bearer wrong"
        assert client.get("/api/v1/nodes").status_code == 401


def test_an_outage_keeps_port_and_data(plain: ControlPlane) -> None:
    with plain.client() as client:
        plain.stop_apiserver()
        with pytest.raises(httpx.TransportError):
            client.get("/readyz")
        plain.start_apiserver()
        assert client.get("/api/v1/nodes/gpus").json()["metadata"]["labels"]["pool"] == "a"
        assert bind(client, "after", plain) == "gpus"


def test_a_failed_start_says_why_and_leaves_nothing(
    control_plane_binaries: Path, tmp_path: Path
) -> None:
    for name in ("etcd", "kube-scheduler"):
        (tmp_path / name).symlink_to(control_plane_binaries / name)
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    broken.chmod(0o755)
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(ControlPlaneFailed, match="out of luck"), ControlPlane(folder, tmp_path):
        pass
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            assert str(folder).encode() not in path.read_bytes()
