"""A node for the agent: NVML, kubelet and API server are fakes that behave, the agent is real."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.crd import faults
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import GPU, FakeKubelet
from tests.fakes.nvml.machine import FakeNvml
from tests.fakes.nvml.testing import fake_nvml
from tests.waiting import FOREVER, PATIENCE, eventually
from topology import codec
from topology.agent.model.nodecontext import KubeletConfig
from topology.agent.model.polling import PollIntervals
from topology.agent.probes.node import KubeletSources
from topology.agent.probes.nvmlwatch import Cadence
from topology.agent.service import AgentService
from topology.agent.settings import Settings
from topology.core.devices import NodeName
from topology.core.report import Health, Report
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

PODS = "/api/v1/namespaces/default/pods"
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
RECORD = f"{RECORDS}/n"
NODE = {"kind": "Node", "metadata": {"name": "n", "uid": "node-1"}}
PLUGIN = {
    "metadata": {"name": "plugin"},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "p", "image": "example/k8s-device-plugin:v0.17.1"}],
    },
}
# It looks often, and no call is said to hang because the machine is slow.
QUICK = Cadence(vitals=0.1, look=1.0, reopen=0.5, hung=FOREVER, slice=0.05)
HUNG = 2.0  # seconds after which a call is said to hang, in a test in which one does
# It asks often, and a kubelet may take as long as it likes to answer and to come back.
BRISK = PollIntervals(held=0.3, idle=0.5, watchful=0.2, restart=FOREVER, silence=FOREVER)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of the agent is given up, and no report written early, on a slow machine."""
    for module in ("publisher", "probes.node", "probes.podresources"):
        monkeypatch.setattr(f"topology.agent.{module}.TIMEOUT", PATIENCE)
    monkeypatch.setattr("topology.agent.service.FIRST_LOOK", FOREVER)


class Node:
    """One node with a DGX-1's GPUs, and at most one agent on it at a time."""

    def __init__(self, folder: Path, socket: Path, nvml: FakeNvml, api: FakeApiServer) -> None:
        self.folder = folder
        self.nvml = nvml
        self.api = api
        self.gpus = [str(gpu.uuid) for gpu in nvml.topology.gpus]
        self.kubelet = FakeKubelet(socket)
        self.kubelet.allocatable(*self.gpus)
        self.heartbeat = FOREVER
        self.cadence = QUICK
        self.configuration = KubeletConfig("none")
        self._boot = folder / "boot_id"
        self.boot("boot-1")
        self._service: AgentService | None = None
        self._thread: threading.Thread | None = None

    def boot(self, boot_id: str) -> None:
        """Another boot, for the next agent."""
        self._boot.write_text(boot_id + "\n")

    def service(self) -> AgentService:
        """An agent that does not run yet."""
        settings = Settings(
            NodeName("n"),
            self.kubelet.socket,
            self.folder / "sys",
            self._boot,
            KubeletSources(self.configuration),
            heartbeat=self.heartbeat,
            cadence=self.cadence,
            intervals=BRISK,
        )
        kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
        return AgentService(settings, ApiServer.from_kubeconfig(kubeconfig))

    def start(self) -> AgentService:
        """Start an agent."""
        self._service = service = self.service()
        self._thread = threading.Thread(target=service.run, daemon=True)
        self._thread.start()
        return service

    def stop(self) -> None:
        """Stop the agent, if one runs; what it has published stays."""
        if self._service is not None and self._thread is not None:
            self._service.stop()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
            self._service = None

    def pod(self, name: str, count: int = 1, **status: Any) -> dict[str, Any]:
        """Bind a pod to the node, or change its status."""
        recordlimits = {"limits": {GPU: str(count)}}
        containers = [{"name": "main", "image": "example/work", "resources": recordlimits}]
        return self.api.put(
            PODS,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": "n", "containers": containers},
                "status": {"phase": "Pending", **status},
            },
        )

    def admit(self, name: str, *gpus: int) -> None:
        """The kubelet gives a pod its GPUs."""
        self.kubelet.show("default", name, {"main": {GPU: [self.gpus[i] for i in gpus]}})

    def label(self, **labels: str) -> None:
        """Give the Node these labels."""
        metadata = {"name": "n", "uid": "node-1", "labels": labels}
        self.api.put("/api/v1/nodes", {**NODE, "metadata": metadata})

    def restart_kubelet(self) -> list[Any]:
        """The kubelet comes back and knows no pod; returns the pods that it knew."""
        self.kubelet.stop()
        shown = self.kubelet.forget()
        self.kubelet.start()
        return shown

    def record(self) -> dict[str, Any]:
        """The object as it stands; empty where there is none."""
        found = [r for r in self.api.items(RECORDS) if r["metadata"]["name"] == "n"]
        return found[0] if found else {}

    def report(self) -> Report:
        """The report as it stands; an empty one where there is none."""
        return codec.decode_report(self.record().get("status", {}))

    def reports(self) -> list[Report]:
        """Every report there ever was."""
        versions = self.api.versions(RECORD)
        return [codec.decode_report(v["status"]) for v in versions if "status" in v]

    def holders(self) -> dict[str, tuple[int, ...]]:
        """GPU indices by pod name, as published."""
        return holders(self.report(), self.gpus)

    def ready(self) -> bool:
        """Whether the record can be relied on."""
        report = self.report()
        return bool(report.conditions) and not report.not_ready

    def health(self) -> dict[int, Health]:
        """What is said of GPUs, by index."""
        return {self.gpus.index(h.uuid): h for h in self.report().health}

    def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until something holds."""
        eventually(condition, what, every=0.02, detail=lambda: str(self.report()))


def holders(report: Report, gpus: list[str]) -> dict[str, tuple[int, ...]]:
    """GPU indices by pod name."""
    return {a.pod: tuple(sorted(gpus.index(i) for i in a.device_ids)) for a in report.allocations}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a healthy driver, a kubelet that lists no pod, and no agent yet."""
    with ExitStack() as stack:
        # Not pytest's folder: a path to a unix socket has at most 107 bytes.
        socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-")))
        fake = fake_nvml(tmp_path, machine("dgx1-v100").topology("n"))
        stack.enter_context(fake.in_process())
        api = stack.enter_context(FakeApiServer())
        api.validate(RECORDS, faults)
        api.put("/api/v1/nodes", NODE)
        api.put("/api/v1/namespaces/system/pods", PLUGIN)
        found = Node(tmp_path, socket, fake, api)
        stack.enter_context(found.kubelet)
        stack.callback(found.stop)
        stack.callback(api.allow)  # the agent may be waiting for an answer that a test held back
        yield found
