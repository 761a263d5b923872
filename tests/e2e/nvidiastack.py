"""NVIDIA's programs on a node: the device plugin, and gpu-feature-discovery for the node's labels.

Both are the stock programs; what they find is a described machine (:mod:`tests.e2e.playedmachine`).
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.building import FEATURE_DISCOVERY, NEWEST, PLUGIN, nvidia
from tests.e2e.controlplane import Process
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.privatemounts import PrivateMounts

PLUGINS = "/api/v1/namespaces/kube-system/pods"
GPU = "nvidia.com/gpu"
_DISCOVERY = "--device-discovery-strategy=nvml"
# Feature discovery writes a file instead of a NodeFeature object, and is done then.
_ONCE = ("--oneshot", "--no-timestamp", "--use-node-feature-api=false")
_DISCOVERY_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """How an operator has set the device plugin up.

    ``version`` is one of :func:`tests.e2e.building.plugin_versions`. ``config`` is the text of its
    configuration file, ``environment`` what its container's would be. ``serves`` is what it then
    serves, by resource; None: every GPU as ``nvidia.com/gpu``.
    """

    version: str = NEWEST
    config: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    serves: tuple[tuple[str, int], ...] | None = None


STOCK = PluginSettings()  # as NVIDIA's chart installs it
_MPS_CONTROL = Path(__file__).parent / "nvidia" / "mps"
# The environment of a plugin that shares GPUs by MPS: it finds its daemon well. There is none.
MPS = (("PATH", f"{_MPS_CONTROL}:{os.environ['PATH']}"), ("MPS_ROOT", "/run/nvidia/mps"))


class NvidiaStack:
    """The programs of one node. ``folder`` keeps the configuration and the feature file.

    Feature discovery is the newest, whatever the plugin's version.
    """

    def __init__(
        self,
        settings: PluginSettings,
        silicon: PlayedMachine,
        mounts: PrivateMounts,
        folder: Path,
    ) -> None:
        self.settings = settings
        self._programs = nvidia(settings.version).folder()
        self._discovery = nvidia(NEWEST).folder()
        self._mounts = mounts
        self._silicon = silicon
        self._features = folder / "features"
        self._configuration = folder / "plugin.yaml"
        if settings.config is not None:
            self._configuration.write_text(settings.config)

    @property
    def _environment(self) -> dict[str, str]:
        return {**self._silicon.environment, **dict(self.settings.environment)}

    def serves(self, gpus: int) -> Mapping[str, int]:
        """How many devices of which resource a healthy machine with so many GPUs has."""
        found = self.settings.serves
        return {GPU: gpus} if found is None else dict(found)

    def start_plugin(self, log: Path, kubelet_socket: Path | str | None = None) -> Process:
        """Start the plugin; it registers with the kubelet that serves ``kubelet_socket``.

            None is where kubelets serve it; with an empty text the plugin serves and does not
        register. The folder of device plugins must be there.
        """
        flags = [_DISCOVERY, *self._settings_flags()]
        if kubelet_socket is not None:
            flags.append(f"--kubelet-socket={kubelet_socket}")
        command = self._mounts.command(str(self._programs / PLUGIN), *flags)
        return Process("deviceplugin", command, log, self._environment)

    def labels(self) -> dict[str, str]:
        """What gpu-feature-discovery says of the machine now, as labels of the Node."""
        command = self._mounts.command(
            str(self._discovery / FEATURE_DISCOVERY),
            *(_DISCOVERY, *_ONCE, f"--output-file={self._features}"),
            *self._settings_flags(),
        )
        done = subprocess.run(
            command,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_DISCOVERY_TIMEOUT,
        )
        assert done.returncode == 0, f"gpu-feature-discovery: {done.stderr[-3000:]}"
        lines = self._features.read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    def _settings_flags(self) -> list[str]:
        return [] if self.settings.config is None else [f"--config-file={self._configuration}"]


def run_plugin_pod(client: httpx.Client, node: str, settings: PluginSettings = STOCK) -> None:
    """The pod that the plugin's DaemonSet would have on the node; it runs nothing."""
    environment = [{"name": k, "value": v} for k, v in settings.environment]
    if settings.config is not None:
        environment.append({"name": "CONFIG_FILE", "value": "/config/plugin.yaml"})
    image = f"example/k8s-device-plugin:{settings.version}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"plugin-{node}"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "plugin", "image": image, "env": environment}],
        },
    }
    answer = client.post(PLUGINS, json=pod)
    assert answer.is_success, answer.text
