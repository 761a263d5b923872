"""A real kubelet as a process: a node of the cluster whose containers are records only.

It needs root. Constants of the kubelet lead into folders that belong to the machine, so it gets a
mount namespace of its own in which private folders lie over them; when its processes have ended the
namespace is gone too, and nothing of it was ever seen outside.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import httpx
import yaml

from tests.e2e.controlplane import ControlPlane, Process
from tests.e2e.machinefile import describe
from tests.e2e.podresources import PodResources
from tests.waiting import eventually
from topology.core.graph import NodeTopology

ROOT = "/var/lib/kubelet"
HIDDEN = ("/var/lib", "/var/log")
"""Folders of the machine that the kubelet writes to, whatever its configuration says."""

TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Kernel settings that the kubelet changes to its liking; here it changes copies."""

# Arguments: the private folder, then the kubelet's command line.
IN_PRIVATE = """
set -eu
base=$1
shift
for folder in var/lib var/log; do mount --bind "$base/$folder" "/$folder"; done
cd "$base/sys"
for name in $(find . -type f); do mount --bind "$base/sys/$name" "/proc/sys/$name"; done
cd "$base/cwd"
exec "$@"
"""


class KubeletFailed(Exception):  # noqa: N818 (as ControlPlaneFailed)
    """A part of a node did not start or died; the message ends with its log."""


@dataclass(frozen=True)
class Call:
    """One question of the kubelet to the device plugin, GPUs by position; -1 is a nil answered."""

    available: tuple[int, ...]
    must: tuple[int, ...]
    size: int
    answer: tuple[int, ...]


def why_not() -> str:
    """Why no kubelet can run here; empty where one can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is missing"
    return ""


def kubelet_users(names: Sequence[str]) -> dict[str, list[str]]:
    """The API server's users for the kubelets of these nodes, with their groups."""
    return {_user(name): ["system:nodes", "system:authenticated"] for name in names}


def _user(name: str) -> str:
    return f"system:node:{name}"


class Kubelet:
    """Kubelet, runtime and device plugin of one node, running while the context is open.

    ``topology`` names the node and is the machine that its device plugin pretends to have.
    ``overrides`` are fields of the KubeletConfiguration. ``delay`` slows every preferred allocation
    down by so many seconds: NVIDIA's allocator takes as long on larger machines. The control plane
    must know :func:`kubelet_users`.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        topology: NodeTopology,
        binaries: Path,
        logs: Path,
        overrides: Mapping[str, Any] | None = None,
        delay: float = 0,
    ) -> None:
        self.topology = topology
        self.name = str(topology.name)
        self._control_plane = control_plane
        self._bin = binaries
        self._logs = logs / self.name
        self._overrides = dict(overrides or {})
        self._delay = delay
        self._processes: dict[str, Process] = {}
        self._stack = ExitStack()
        self._position = {str(gpu.uuid): p for p, gpu in enumerate(topology.gpus)}

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # Not pytest's folder: a path to a unix socket has at most 107 bytes.
            self._base = Path(tempfile.mkdtemp(prefix="kubelet-"))
            stack.callback(self._remove_base)
            stack.callback(self._stop_all)
            self._lay_out()
            self._start_runtime()
            self.start_kubelet()
            self.start_plugin()
            self.socket = self._base / ROOT.lstrip("/") / "pod-resources" / "kubelet.sock"
            self.pod_resources = stack.enter_context(PodResources(self.socket))
            self._until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start_kubelet(self) -> None:
        """Start the kubelet on its folders; again after :meth:`stop_kubelet`."""
        command = (
            *("unshare", "--mount", "--propagation=private", "sh", "-c", IN_PRIVATE, "sh"),
            str(self._base),
            str(self._bin / "kubelet"),
            f"--config={self._base / 'kubelet.yaml'}",
            f"--kubeconfig={self._control_plane.kubeconfig(_user(self.name))}",
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
        self._start(
            "deviceplugin",
            str(self._bin / "deviceplugin"),
            f"--machine={self._base / 'machine.json'}",
            f"--folder={self._base / ROOT.lstrip('/') / 'device-plugins'}",
            f"--calls={self._calls_file}",
            f"--delay={self._delay}s",
        )

    def heal_plugin(self) -> bool:
        """Start the device plugin again where it has crashed, and wait for its devices.

        Says whether it had crashed.
        """
        if self._processes["deviceplugin"].alive():
            return False
        self.start_plugin()
        self._until(self._has_devices)
        return True

    def calls(self) -> list[Call]:
        """Every question to the device plugin so far."""
        if not self._calls_file.exists():
            return []
        entries = map(json.loads, self._calls_file.read_text().splitlines())
        return [
            Call(tuple(e["available"]), tuple(e["must"]), e["size"], tuple(e["answer"]))
            for e in entries
        ]

    def positions(self, ids: Sequence[str]) -> tuple[int, ...]:
        """The GPUs with these device ids, by position in the topology, ascending."""
        return tuple(sorted(self._position[i] for i in ids))

    def log(self, name: str) -> str:
        """The log of ``kubelet``, ``cri`` or ``deviceplugin``, all its starts together."""
        return (self._logs / f"{name}.log").read_text(errors="replace")

    @property
    def port(self) -> int:
        """Where it serves, if its overrides make it."""
        return int(self._overrides["port"])

    @property
    def _calls_file(self) -> Path:
        return self._logs / "calls.jsonl"

    def _lay_out(self) -> None:
        plugins = f"{ROOT.lstrip('/')}/device-plugins"
        for folder in (plugins, "var/log/pods", "cwd", "sys", "volume-plugins"):
            (self._base / folder).mkdir(parents=True)
        for name in TUNABLES:
            setting = Path("/proc/sys") / name
            if setting.exists():
                copy = self._base / "sys" / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(setting.read_text())
        (self._base / "machine.json").write_text(describe(self.topology))
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

    def _has_devices(self) -> bool:
        return len(self.pod_resources.allocatable()) == len(self.topology.gpus)

    def _until_ready(self) -> None:
        with self._control_plane.client() as client:
            # Its own word first: the API server may still have that of a kubelet before it.
            self._until(self._has_devices)
            self._until(lambda: _ready(client, self.name, len(self.topology.gpus)))

    def _until(self, condition: Callable[[], object]) -> None:
        def holds() -> bool:
            for name, process in self._processes.items():
                if not process.alive():
                    raise KubeletFailed(f"{self.name}: {name} died\n{process.text()[-4000:]}")
            try:
                return bool(condition())
            except grpc.RpcError:  # it does not serve yet
                return False

        eventually(holds, f"{self.name} is ready", every=0.1, told=self._ends_of_logs)

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {n}\n{p.text()[-3000:]}" for n, p in self._processes.items())

    def _stop_all(self) -> None:
        for name in ("deviceplugin", "kubelet", "cri"):
            if name in self._processes:
                self._processes.pop(name).stop()

    def _remove_base(self) -> None:
        shutil.rmtree(self._base)


def _ready(client: httpx.Client, name: str, gpus: int) -> bool:
    answer = client.get(f"/api/v1/nodes/{name}")
    if not answer.is_success:
        return False
    status = answer.json()["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    has = int(status.get("allocatable", {}).get("nvidia.com/gpu", 0))
    return conditions.get("Ready") == "True" and has == gpus
