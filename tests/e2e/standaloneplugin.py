"""NVIDIA's device plugin on a described machine without a kubelet: asked on its own sockets."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.e2e.controlplane import Process
from tests.e2e.deviceplugin import DevicePlugin
from tests.e2e.nvidiastack import STOCK, NvidiaStack, PluginSettings
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.privatemounts import PrivateMounts
from tests.waiting import eventually
from topology.core.graph import NodeTopology
from topology.machines import Machine

VAR_LIB = "/var/lib"
PLUGINS = "kubelet/device-plugins"


class StandalonePlugin:
    """The plugin of one machine, running while the context is open.

    The arguments are those of :class:`~tests.e2e.kubelet.Kubelet`. ``silicon`` may be changed
    between :meth:`__enter__` and :meth:`start`.
    """

    def __init__(
        self,
        topology: NodeTopology,
        machine: Machine | None = None,
        plugin: PluginSettings = STOCK,
    ) -> None:
        self._described = topology, machine
        self._settings = plugin
        self._stack = ExitStack()
        self._running = ExitStack()
        self._process: Process | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Not pytest's folder: a path to a unix socket has at most 107 bytes.
            base = Path(tempfile.mkdtemp(prefix="plugin-"))
            stack.callback(shutil.rmtree, base)
            self._log = base / "deviceplugin.log"
            self._plugins = base / "lib" / PLUGINS
            self._plugins.mkdir(parents=True)
            self.silicon = PlayedMachine(base / "silicon", *self._described)
            mounts = PrivateMounts(base, {VAR_LIB: base / "lib", **self.silicon.mounts()})
            self.nvidia = NvidiaStack(self._settings, self.silicon, mounts, base)
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, resource: str = "gpu") -> DevicePlugin:
        """Start it, and ask about ``nvidia.com/resource``; again after it died."""
        self.stop()
        self._process = self.nvidia.start_plugin(self._log, "")
        return self.start_client(resource)

    def start_client(self, resource: str) -> DevicePlugin:
        """Ask the running plugin about ``nvidia.com/resource``, too."""
        socket = self._plugins / f"nvidia-{resource}.sock"

        def serves() -> bool:
            assert self.alive(), self.log()[-3000:]
            return socket.is_socket()

        eventually(serves, f"the plugin serves {resource}", every=0.02, detail=self.log)
        client = self._running.enter_context(DevicePlugin(socket))
        eventually(client.devices, "the plugin lists its devices", every=0.02, detail=self.log)
        return client

    def stop(self) -> None:
        """Stop the plugin and its clients."""
        self._running.close()
        if self._process is not None:
            self._process.stop()
            self._process = None

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.alive()

    def log(self) -> str:
        """Its log, all its starts together."""
        return self._log.read_text(errors="replace")
