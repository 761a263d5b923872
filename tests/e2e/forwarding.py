"""A real node that runs the extender's pod, so that kubectl forwards ports to it.

The runtime connects every port of a pod with the same port of this machine's loopback, where the
extender listens.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import RealCluster
from tests.e2e.kubelet import Kubelet, kubelet_users
from tests.e2e.realnodes import serving
from tests.installation import SYSTEM
from tests.programs import free_port
from topology.machines import machine

NODE = "forwards"
API_SERVER = "kube-apiserver"  # who it is to the kubelet
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/gpu-topology-extender"
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"


def own_address() -> str:
    """An address of this machine. The API server asks no kubelet on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


@contextmanager
def forwarding_cluster(
    folder: Path, control_plane: Path, node: Path, users: Mapping[str, list[str]]
) -> Iterator[RealCluster]:
    """A cluster with such a node; ``control_plane`` and ``node`` are the folders of the programs.

    The API server shows the kubelet a certificate, as it does in a cluster.
    """
    tls = folder / "kubelet-tls"
    done = asked(main, "certificates", "--output", tls, "--client-name", API_SERVER)
    assert done.returncode == 0, done.stderr
    real = RealCluster(folder, control_plane, {**kubelet_users([NODE]), **users})
    shows = {"certificate": tls / "scheduler.crt", "key": tls / "scheduler.key"}
    real.control_plane.apiserver_flags = [
        "--kubelet-preferred-address-types=InternalIP",  # nobody has put its name into DNS
        *(f"--kubelet-client-{what}={file}" for what, file in shows.items()),
    ]
    authentication = {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": str(tls / "ca.crt")},
    }
    overrides = {
        **serving(free_port()),
        "address": own_address(),
        "authentication": authentication,
    }
    topology = machine("a100-pcie-4-bridged").topology(NODE)
    with real:
        subject = {"kind": "User", "name": API_SERVER, "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "system:kubelet-api-admin"}
        real.create(
            BINDINGS,
            {
                "metadata": {"name": "kubelet"},
                "subjects": [subject],
                "roleRef": {**role, "apiGroup": subject["apiGroup"]},
            },
        )
        with Kubelet(real.control_plane, topology, node, folder / "nodes", overrides):
            yield real


def run_extender_pod(real: RealCluster, name: str) -> dict[str, Any]:
    """A pod of the extender's Deployment on that node. The process of ``real`` is its container;
    the kubelet's probes reach it on loopback."""
    ports = {"admin": real.ports[1], "metrics": real.ports[-1]}
    template = real.api.get(DEPLOYMENT).json()["spec"]["template"]
    spec = {**template["spec"], "nodeName": NODE, "volumes": []}
    (container,) = spec["containers"]
    probes = {
        kind: {
            **container[kind],
            "httpGet": {**asks, "host": "127.0.0.1", "port": ports[asks["port"]]},
        }
        for kind in ("livenessProbe", "readinessProbe")
        for asks in [container[kind]["httpGet"]]
    }
    named = [{"name": name, "containerPort": port} for name, port in ports.items()]
    spec["containers"] = [{**container, **probes, "ports": named, "volumeMounts": []}]
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    real.create(PODS, {"metadata": metadata, "spec": spec})
    real.until(lambda: is_ready(real, name), f"{name} is ready")
    return real.api.get(f"{PODS}/{name}").json()  # type: ignore[no-any-return]


def is_ready(real: RealCluster, name: str) -> bool:
    """Whether the kubelet has found a pod ready."""
    conditions = real.api.get(f"{PODS}/{name}").json()["status"].get("conditions", [])
    return ("Ready", "True") in {(each["type"], each["status"]) for each in conditions}
