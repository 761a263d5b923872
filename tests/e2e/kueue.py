"""The real Kueue in front of a cluster: its manifests as shipped, its manager as a process.

The manager's webhooks run. A Service without a selector stands for its own, and names this machine,
so that the API server finds them. The manager makes their certificates itself and puts them into a
Secret, which its kubelet would mount: here :class:`Kueue` writes the files.
"""

import base64
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.e2e.building import KUEUE_SOURCE
from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import KUBECTL, Process
from tests.programs import free_port
from tests.waiting import FOREVER, PATIENCE, eventually

NAMESPACE = "kueue-system"
MANAGER = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert"
# The manager is a process here, its configuration a file, and nobody asks how long queues are.
LEFT_OUT = ("Deployment", "APIService", "ConfigMap")
QUEUES = "/apis/kueue.x-k8s.io/v1beta1"
GPU = "nvidia.com/gpu"
FRAMEWORKS = ("batch/job", "pod")


class Kueue:
    """Kueue in a cluster while the context is open. The cluster has :data:`MANAGER` as a user."""

    def __init__(self, real: RealCluster, folder: Path, program: Path) -> None:
        self._real = real
        self._folder = folder
        self._program = program
        self._ports = {name: free_port() for name in ("webhook", "metrics", "health")}
        self._process: Process | None = None

    def __enter__(self) -> Self:
        manifests = self._folder / "kueue.yaml"
        manifests.write_text(yaml.safe_dump_all(self._manifests()))
        self._real.kubectl("apply", "--server-side", "-f", str(manifests))
        certificates = self._folder / "certificates"
        certificates.mkdir()
        config = self._folder / "kueue-config.yaml"
        config.write_text(yaml.safe_dump(self._configuration(certificates)))
        kubeconfig = self._real.control_plane.kubeconfig(MANAGER)
        flags = (f"--kubeconfig={kubeconfig}", f"--config={config}")
        off = "--feature-gates=VisibilityOnDemand=false"
        command = [str(self._program), *flags, off]
        self._process = Process("kueue", command, self._folder / "kueue.log")
        try:
            self._until(lambda: self._mounted(certificates), "Kueue has made its certificates")
            self._until(self._ready, "Kueue is ready")
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.stop()

    def queue(self, name: str, gpus: int) -> None:
        """A LocalQueue in the default namespace, and a ClusterQueue with so many GPUs behind it."""
        flavor = {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": gpus}]}
        groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
        self._real.create(
            f"{QUEUES}/clusterqueues",
            _kueue("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups}),
        )
        self._real.create(
            f"{QUEUES}/namespaces/default/localqueues",
            _kueue("LocalQueue", name, {"clusterQueue": name}),
        )

    def flavor(self) -> None:
        """The one ResourceFlavor that all queues name: nodes are chosen by others."""
        self._real.create(f"{QUEUES}/resourceflavors", _kueue("ResourceFlavor", "gpus", {}))

    def workloads(self) -> list[dict[str, Any]]:
        """What Kueue keeps of jobs and pod groups."""
        found = self._real.api.get(f"{QUEUES}/namespaces/default/workloads").json()
        return list(found["items"])

    def _manifests(self) -> list[dict[str, Any]]:
        command = ("kustomize", str(KUEUE_SOURCE.folder() / "config" / "default"))
        done = subprocess.run(
            [KUBECTL, *command], capture_output=True, text=True, check=True, timeout=FOREVER
        )
        found = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] not in LEFT_OUT]
        for each in found:
            if each["kind"] == "Service" and each["metadata"]["name"] == "kueue-webhook-service":
                each["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            for webhook in each.get("webhooks", ()):
                webhook["clientConfig"]["service"]["port"] = self._ports["webhook"]
        return found

    def _configuration(self, certificates: Path) -> Mapping[str, Any]:
        ports = self._ports
        host = "127.0.0.1"
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{host}:{ports['health']}"},
            "metrics": {"bindAddress": f"{host}:{ports['metrics']}"},
            "webhook": {"host": host, "port": ports["webhook"], "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "integrations": {"frameworks": list(FRAMEWORKS)},
        }

    def _mounted(self, certificates: Path) -> bool:
        """Write the Secret's files, once it has them, as a kubelet would."""
        data = self._real.api.get(SECRET).json().get("data") or {}
        for name in sorted(data):
            (certificates / name).write_bytes(base64.b64decode(data[name]))
        return "tls.crt" in data and "tls.key" in data

    def _ready(self) -> bool:
        """Whether the webhooks answer: kube-apiserver would refuse every pod until then."""
        with suppress(httpx.TransportError):
            url = f"http://127.0.0.1:{self._ports['health']}/readyz"
            if not httpx.get(url, timeout=PATIENCE, trust_env=False).is_success:
                return False
            dry = self._real.api.post(
                "/api/v1/namespaces/default/pods",
                params={"dryRun": "All"},
                json={
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "asked-only"},
                    "spec": {"containers": [{"name": "main", "image": "example/work"}]},
                },
            )
            return dry.is_success
        return False

    def _until(self, condition: Any, what: str) -> None:
        process = self._process
        assert process is not None

        def holds() -> bool:
            assert process.alive(), process.text()[-3000:]
            return bool(condition())

        eventually(holds, what, every=0.2, detail=lambda: process.text()[-3000:])


def _kueue(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }
