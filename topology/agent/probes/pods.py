"""The pods of the agent's node as the API server shows them, and the device plugin among them."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from topology.agent.model.nodecontext import Plugin, plugin_of
from topology.agent.model.podentries import NodePod
from topology.agent.model.recordlimits import NVIDIA
from topology.core.devices import PodUid
from topology.core.refusal import refusal_of

log = structlog.get_logger(__name__)

PODS_PATH = "/api/v1/pods"
ENDED = ("Succeeded", "Failed")
# The reason of a pod that the kubelet rejected because the device plugin refused it.
REFUSED = "UnexpectedAdmissionError"


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    deletion_timestamp: str | None = None
    resource_version: str = ""


class _Resources(msgspec.Struct):
    limits: dict[str, str | int] | None = None


class _EnvVar(msgspec.Struct):
    name: str
    value: str | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    resource_claims: list[msgspec.Raw] | None = None


class _ContainerStatus(msgspec.Struct):
    name: str = ""
    state: dict[str, dict[str, Any] | None] | None = None  # running, waiting or terminated


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    qos_class: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Named(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_decode = msgspec.json.Decoder(_Pod).decode
_decode_name = msgspec.json.Decoder(_Named).decode


class NodePods:
    """A reflector's sink for the pods bound to one node. ``on_change`` may only take a note.

    ``static`` says whether the kubelet gives exclusive CPUs or memory to pods. If it does, pods
    that get some are news even without GPUs.
    """

    def __init__(
        self, on_change: Callable[[], None], static: Callable[[], bool] = lambda: False
    ) -> None:
        self._on_change = on_change
        self._static = static
        self._lock = threading.Lock()
        self._deletions = 0
        self._version = ""
        self._asking: set[PodUid] = set()
        self._pods: dict[PodUid, NodePod] = {}
        self._plugins: dict[PodUid, list[Plugin]] = {}

    def snapshot(self) -> tuple[dict[PodUid, NodePod], Plugin | None, int, str]:
        """Return the pods, the device plugin, the count of deletions, and a resourceVersion.

        The plugin is None if there is none, or if several disagree. Of several that agree it is the
        one that started last. The count is of pods with GPUs that have been deleted so far. The
        pods are at least as new as the resourceVersion, which is that of the last list or deletion.
        """
        with self._lock:
            plugins = [p for found in self._plugins.values() for p in found]
            kinds = [(p.version, p.options) for p in plugins]
            agreed = bool(kinds) and all(kind == kinds[0] for kind in kinds)
            last = max(plugins, key=lambda p: p.started, default=None)
            return dict(self._pods), last if agreed else None, self._deletions, self._version

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Store a complete list."""
        seen = set()
        for raw in objects:
            self._take(raw)
            seen.add(PodUid(_decode_name(raw).metadata.uid))
        with self._lock:
            for uid in self._pods.keys() - seen:
                self._forget(uid)
            self._version = resource_version
        self._on_change()

    def apply(self, obj: msgspec.Raw) -> None:
        """Store a pod that is new or changed."""
        if self._take(obj):
            self._on_change()

    def delete(self, obj: msgspec.Raw) -> None:
        """Remove a deleted pod."""
        gone = _decode_name(obj).metadata
        with self._lock:
            self._forget(PodUid(gone.uid))
            self._version = gone.resource_version
        self._on_change()

    def _take(self, raw: msgspec.Raw) -> bool:
        """Store a pod. Returns whether the change can affect which pod holds which devices."""
        try:
            pod = _decode(raw)
        except msgspec.DecodeError as error:
            log.warning("pod cannot be read", problem=str(error))
            return False
        uid = PodUid(pod.metadata.uid)
        node_pod = _node_pod(uid, pod)
        plugins = [] if node_pod.ended or node_pod.terminating else _plugins(pod)
        with self._lock:
            containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
            if any(map(_gpus, containers)):
                self._asking.add(uid)
            if self._pods.get(uid) == node_pod and self._plugins.get(uid, []) == plugins:
                return False
            self._pods[uid] = node_pod
            was = self._plugins.pop(uid, [])
            if plugins:
                self._plugins[uid] = plugins
        own = (node_pod.own_cpus or node_pod.own_memory) and self._static()
        return bool(node_pod.wants or pod.spec.resource_claims or plugins != was or own)

    def _forget(self, uid: PodUid) -> None:
        self._pods.pop(uid, None)
        if uid in self._asking:
            self._asking.remove(uid)
            self._deletions += 1
        self._plugins.pop(uid, None)


def _node_pod(uid: PodUid, pod: _Pod) -> NodePod:
    sidecars = [c for c in pod.spec.init_containers or () if c.restart_policy == "Always"]
    lasting = [*sidecars, *pod.spec.containers]
    guaranteed = lasting if pod.status.qos_class == "Guaranteed" else []
    wants = {}
    for container in lasting:
        for resource, amount in _gpus(container).items():
            wants[container.name, resource] = amount
    refused = refusal_of(
        pod.status.phase,
        pod.status.reason,
        pod.status.message,
        has_containers=bool(pod.status.container_statuses),
    )
    return NodePod(
        uid,
        pod.metadata.namespace,
        pod.metadata.name,
        wants,
        acknowledged=pod.status.start_time is not None,
        terminating=pod.metadata.deletion_timestamp is not None,
        ended=pod.status.phase in ENDED,
        own_cpus=sum(map(_whole_cpus, guaranteed)),
        own_memory=len(guaranteed),
        started=pod.status.start_time or "",
        refusal=pod.status.message if pod.status.reason == REFUSED else "",
        refused=refused.reason if refused is not None else "",
    )


def _gpus(container: _Container) -> dict[str, int]:
    """Return how many GPUs a container requests, by resource."""
    limits = container.resources.limits if container.resources else None
    return {
        resource: int(amount)
        for resource, amount in (limits or {}).items()
        if resource.startswith(NVIDIA) and str(amount).isdecimal() and int(amount)
    }


def _whole_cpus(container: _Container) -> int:
    """Return the CPUs that a static CPU Manager gives a container of a Guaranteed pod."""
    limits = (container.resources.limits if container.resources else None) or {}
    amount = str(limits.get("cpu", ""))
    milli = amount.removesuffix("m") if amount.endswith("m") else f"{amount}000"
    whole = milli.isascii() and milli.isdecimal() and len(milli) < 10 and int(milli) % 1000 == 0
    return int(milli) // 1000 if whole else 0


def _plugins(pod: _Pod) -> list[Plugin]:
    found = []
    for container in pod.spec.containers:
        environment = {e.name: e.value for e in container.env or () if e.value is not None}
        words = [*(container.command or ()), *(container.args or ())]
        plugin = plugin_of(container.image, words, environment)
        if plugin is not None:
            found.append(replace(plugin, started=_started(pod, container.name)))
    return found


def _started(pod: _Pod, container: str) -> str:
    """Return when a container started; empty if it does not run."""
    for status in pod.status.container_statuses or ():
        if status.name == container:
            return ((status.state or {}).get("running") or {}).get("startedAt") or ""
    return ""
