"""A real kubelet with NVIDIA's device plugin: a node whose containers are records only.

Both see a described machine (:mod:`tests.e2e.playedmachine`) and folders of the node's own
(:mod:`tests.e2e.privatemounts`).
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import httpx
import yaml

from tests.e2e.controlplane import ControlPlane, Process
from tests.e2e.nvidiastack import STOCK, NvidiaStack, PluginSettings
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.podresources import PodResources
from tests.e2e.privatemounts import PrivateMounts
from tests.e2e.processors import Processors
from tests.e2e.relay import Relay
from tests.waiting import eventually
from topology.core.graph import NodeTopology
from topology.machines import Machine

ROOT = "/var/lib/kubelet"
# Folders of the machine that the kubelet writes to, whatever its configuration says.
HIDDEN = ("/var/lib", "/var/log")

# Kernel settings that the kubelet changes to its liking; here it changes copies.
TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


class KubeletFailed(Exception):  # noqa: N818 (as ControlPlaneFailed)
    """A part of a node did not start or died; the message ends with its log."""


@dataclass(frozen=True)
class Call:
    """One question of the kubelet to the device plugin, GPUs by position.

    Where the plugin ``died`` of the question the answer is empty.
    """

    available: tuple[int, ...]
    must: tuple[int, ...]
    size: int
    answer: tuple[int, ...]
    died: bool = False


def kubelet_users(names: Sequence[str]) -> dict[str, list[str]]:
    """The API server's users for the kubelets of these nodes, with their groups."""
    return {_user(name): ["system:nodes", "system:authenticated"] for name in names}


def _user(name: str) -> str:
    return f"system:node:{name}"


class Kubelet:
    """Kubelet, runtime and NVIDIA's device plugin of one node, running while the context is open.

    ``topology`` names the node and describes its machine; ``machine`` (the catalogue's entry) and
    ``processors`` are as for :class:`~tests.e2e.playedmachine.PlayedMachine`. ``overrides`` are
    fields of the KubeletConfiguration. ``plugin`` says how the device plugin is set up. ``prepare``
    changes the machine before any program sees it. An ``observed`` node has a relay between
    kubelet and plugin, and only there :meth:`calls` knows what was asked. ``pause`` is then called
    before each preferred allocation: NVIDIA's allocator is slow on larger machines.
    The control plane must know :func:`kubelet_users`.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        topology: NodeTopology,
        binaries: Path,
        logs: Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        machine: Machine | None = None,
        processors: Processors | None = None,
        plugin: PluginSettings = STOCK,
        prepare: Callable[[PlayedMachine], None] | None = None,
        observed: bool = False,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = str(topology.name)
        self._control_plane = control_plane
        self._bin = binaries
        self._logs = logs / self.name
        self._overrides = dict(overrides or {})
        self._settings = plugin
        self._described = topology, machine, processors
        self._prepare = prepare
        self._observed = observed
        self._pause = pause
        self._processes: dict[str, Process] = {}
        self._stack = ExitStack()
        self._relay: Relay | None = None
        self._position = {str(gpu.uuid): p for p, gpu in enumerate(topology.gpus)}

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # Not pytest's folder: a path to a unix socket has at most 107 bytes.
            self._base = Path(tempfile.mkdtemp(prefix="kubelet-"))
            stack.callback(self._remove_base)
            stack.callback(self._stop_all)
            self.silicon = PlayedMachine(self._base / "silicon", *self._described)
            if self._prepare is not None:
                self._prepare(self.silicon)
            self._lay_out()
            self._start_runtime()
            self.start_kubelet()
            if self._observed:
                folder = self._base / "relay"
                self._relay = stack.enter_context(Relay(folder, self.plugins, self._pause))
            self._until(lambda: (self.plugins / "kubelet.sock").is_socket())
            self.start_plugin()
            self.socket = self._base / ROOT.lstrip("/") / "pod-resources" / "kubelet.sock"
            self.pod_resources = stack.enter_context(PodResources(self.socket))
            self._until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def topology(self) -> NodeTopology:
        """The machine, with the PCI addresses that it was given."""
        return self.silicon.topology

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the node's programs."""
        return self._control_plane.kubeconfig(_user(self.name))

    @property
    def plugins(self) -> Path:
        """The kubelet's folder for device plugins, as seen from outside."""
        return self._base / ROOT.lstrip("/") / "device-plugins"

    def start_kubelet(self) -> None:
        """Start the kubelet on its folders; again after :meth:`stop_kubelet`."""
        command = self._mounts.command(
            str(self._bin / "kubelet"),
            f"--config={self._base / 'kubelet.yaml'}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.name}",
            "--v=2",
        )
        self._start("kubelet", *command)

    def stop_kubelet(self) -> None:
        """Stop the kubelet; its pods and its checkpoints stay."""
        self._processes.pop("kubelet").stop()

    def restart_kubelet(self) -> None:
        """Stop the kubelet, start it, and wait until the plugin's devices are back."""
        self.stop_kubelet()
        self.start_kubelet()
        self._until(self._has_devices)

    def start_plugin(self) -> None:
        """Start the device plugin; again after it died."""
        log = self._logs / "deviceplugin.log"
        self._processes.pop("deviceplugin", None)
        registry = None
        if self._relay is not None:
            registry = self._relay.socket
            self._until(registry.is_socket)
        self._processes["deviceplugin"] = self.nvidia.start_plugin(log, registry)

    def restart_plugin(self) -> None:
        """Stop the device plugin, start it, and wait until its devices are back."""
        self._processes.pop("deviceplugin").stop()
        self.start_plugin()
        self._until(self._has_devices)

    def heal_plugin(self) -> bool:
        """Start the device plugin if it died, and wait for its devices; whether it had died."""
        if self._processes["deviceplugin"].alive():
            return False
        self.start_plugin()
        self._until(self._has_devices)
        return True

    def publish_features(self) -> dict[str, str]:
        """Put gpu-feature-discovery's labels on the Node, as its companions in a cluster would.

        Returns the labels.
        """
        labels = self.nvidia.labels()
        kind = {"Content-Type": "application/merge-patch+json"}
        body = json.dumps({"metadata": {"labels": labels}})
        with self._control_plane.client() as client:
            client.patch(
                f"/api/v1/nodes/{self.name}", content=body, headers=kind
            ).raise_for_status()
        return labels

    def calls(self) -> list[Call]:
        """Every question for a preferred allocation so far, with the answer."""
        assert self._relay is not None, f"{self.name} is not observed"
        return [
            Call(
                self.positions(asked.available),
                self.positions(asked.required),
                asked.size,
                self.positions(asked.answer or ()),
                asked.answer is None,
            )
            for asked in self._relay.preferences()
        ]

    def positions(self, ids: Sequence[str]) -> tuple[int, ...]:
        """The GPUs with these device ids, by position in the topology, ascending.

        A GPU of which several replicas are among them is there as often.
        """
        return tuple(sorted(self._position[i.partition("::")[0]] for i in ids))

    def checkpoint(self, name: str) -> dict[str, Any]:
        """What a manager of the kubelet has noted of its pods, such as ``cpu_manager_state``."""
        text = (self._base / ROOT.lstrip("/") / name).read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def log(self, name: str) -> str:
        """The log of ``kubelet``, ``cri`` or ``deviceplugin``, all its starts together."""
        return (self._logs / f"{name}.log").read_text(errors="replace")

    @property
    def port(self) -> int:
        """Where it serves, if its overrides make it."""
        return int(self._overrides["port"])

    def _lay_out(self) -> None:
        self.plugins.mkdir(parents=True)
        for folder in ("var/log/pods", "relay", "volume-plugins"):
            (self._base / folder).mkdir(parents=True)
        mounts = {folder: self._base / folder.lstrip("/") for folder in HIDDEN}
        for name in TUNABLES:
            setting = Path("/proc/sys") / name
            if setting.exists():
                copy = self._base / "tunables" / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(setting.read_text())
                mounts[str(setting)] = copy
        self._mounts = PrivateMounts(self._base, mounts | dict(self.silicon.mounts()))
        self.nvidia = NvidiaStack(self._settings, self.silicon, self._mounts, self._base)
        configuration = self._configuration() | self._overrides
        (self._base / "kubelet.yaml").write_text(yaml.safe_dump(configuration))

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._runtime_socket}",
            # Nothing listens on a port: PodResources is all that is asked of it.
            "enableServer": False,
            "healthzPort": 0,
            # The machine's cgroups and mounts are left alone.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "volumePluginDir": str(self._base / "volume-plugins"),
            "podLogsDir": str(self._base / "var/log/pods"),
            # Nothing is ever evicted or collected.
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            # The tests wait for what it does.
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "5s",
            "eventRecordQPS": 0,
            "clusterDNS": ["10.0.0.10"],
        }

    @property
    def _runtime_socket(self) -> Path:
        return self._base / "cri.sock"

    def _start_runtime(self) -> None:
        logs = self._base / "var/log/pods"
        self._start(
            "cri", str(self._bin / "cri"), f"--socket={self._runtime_socket}", f"--logs={logs}"
        )
        self._until(self._runtime_socket.is_socket)

    def _start(self, name: str, *command: str) -> None:
        self._processes[name] = Process(name, command, self._logs / f"{name}.log")

    def _serves(self) -> Mapping[str, int]:
        return self.nvidia.serves(len(self.topology.gpus))

    def _has_devices(self) -> bool:
        found = {name: len(ids) for name, ids in self.pod_resources.allocatable().items() if ids}
        return found == self._serves()

    def _until_ready(self) -> None:
        with self._control_plane.client() as client:
            # Its own word first: the API server may still have that of a kubelet before it.
            self._until(self._has_devices)
            self._until(lambda: _ready(client, self.name, self._serves()))

    def _until(self, condition: Callable[[], object]) -> None:
        def holds() -> bool:
            for name, process in self._processes.items():
                if not process.alive():
                    raise KubeletFailed(f"{self.name}: {name} died\n{process.text()[-4000:]}")
            try:
                return bool(condition())
            except grpc.RpcError:  # it does not serve yet
                return False

        eventually(holds, f"{self.name} is ready", every=0.1, detail=self._ends_of_logs)

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {n}\n{p.text()[-3000:]}" for n, p in self._processes.items())

    def _stop_all(self) -> None:
        for name in ("deviceplugin", "kubelet", "cri"):
            if name in self._processes:
                self._processes.pop(name).stop()

    def _remove_base(self) -> None:
        shutil.rmtree(self._base)


def _ready(client: httpx.Client, name: str, serves: Mapping[str, int]) -> bool:
    answer = client.get(f"/api/v1/nodes/{name}")
    if not answer.is_success:
        return False
    status = answer.json()["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    has = status.get("allocatable", {})
    served = all(has.get(resource) == str(count) for resource, count in serves.items())
    return conditions.get("Ready") == "True" and served
