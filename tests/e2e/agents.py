"""The node agent as a process of its own, with the identity that its DaemonSet would give it."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from tests.e2e import agentidentity
from tests.e2e.controlplane import ControlPlane, Process
from tests.fakes.nvml.machine import FakeNvml
from tests.fakes.nvml.testing import fake_nvml
from tests.programs import free_port
from tests.waiting import PATIENCE
from topology.core.graph import NodeTopology


class Agent:
    """``gpu-topology agent`` on one node, running while the context is open.

    Its kubelet is the server of ``socket``. Its driver is ``nvml``, or else a fake NVML of its own
    that plays ``topology``; ``driver`` is the environment of another one. The manifests must be
    applied, and the Node be there.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        topology: NodeTopology,
        socket: Path,
        folder: Path,
        flags: Sequence[str] = (),
        nvml: FakeNvml | None = None,
        driver: Mapping[str, str] | None = None,
    ) -> None:
        self.name = str(topology.name)
        self._folder = folder / f"agent-{self.name}"
        self._folder.mkdir(parents=True)
        self.nvml: FakeNvml = nvml or fake_nvml(self._folder, topology)
        self._driver = driver
        self._control_plane = control_plane
        self._socket = socket
        self._flags = list(flags)
        self._port = free_port()
        self._boot = self._folder / "boot_id"
        self._boot.write_text(f"{self.name}-1")
        self.release: Mapping[str, str] = {}  # where its code is, for its next start
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; again after :meth:`stop` or :meth:`kill`."""
        kubeconfig = agentidentity.kubeconfig(self._control_plane, self.name)
        command = [
            *(sys.executable, "-m", "scheduler_extender", "agent"),
            f"--node-name={self.name}",
            f"--kubeconfig={kubeconfig}",
            f"--pod-resources={self._socket}",
            f"--boot-id={self._boot}",
            f"--metrics-port={self._port}",
            *self._flags,
        ]
        log = self._folder / "agent.log"
        environment = {**(self._driver or self.nvml.environment), **self.release}
        self._process = Process("agent", command, log, environment)

    def stop(self) -> None:
        """Stop it as a kubelet would."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.stop(signal.SIGKILL)
        self._process = None

    def reboot(self, topology: NodeTopology) -> None:
        """The node comes back with another boot id, and with these GPUs."""
        self.kill()
        self._boot.write_text(f"{self._boot.read_text()}+")
        self.nvml.replace(topology)
        self.start()

    @property
    def boot_id(self) -> str:
        """This boot's."""
        return self._boot.read_text()

    def metrics(self) -> str:
        """What it tells Prometheus."""
        return httpx.get(f"http://127.0.0.1:{self._port}/metrics", timeout=PATIENCE).text

    def log(self) -> str:
        """Its log, all its starts together."""
        return (self._folder / "agent.log").read_text(errors="replace")
