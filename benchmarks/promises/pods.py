"""Pods of a closed loop: what a workload asks for, and what becomes of each pod."""

from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import msgspec

from scheduler_extender.annotations import PREFIX, Asks, parse
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from topology.core.report import Report
from topology.core.requests import GpuRequest

GPU = "nvidia.com/gpu"
MANAGED = Settings().managed

Manifest: TypeAlias = dict[str, Any]  # a Pod as JSON has it


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container of a pod: its role, and how many GPUs it asks for."""

    role: Literal["app", "sidecar", "init"]
    gpus: int


def app(gpus: int) -> GpuContainer:
    """A container of the pod's own work."""
    return GpuContainer("app", gpus)


def sidecar(gpus: int) -> GpuContainer:
    """An init container that goes on running beside the app containers."""
    return GpuContainer("sidecar", gpus)


def init(gpus: int) -> GpuContainer:
    """An init container that ends before the app containers start."""
    return GpuContainer("init", gpus)


@dataclass(frozen=True, slots=True)
class GroupOf:
    """The group that a job belongs to, and whether it is a gang."""

    name: str
    size: int
    domain: str
    gang: bool


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """A report as it stands in a record."""

    report: Report
    record: str  # the record's UID
    looked: float  # when the agent looked


@dataclass(frozen=True, slots=True)
class Job:
    """One pod of a workload. Times are in seconds."""

    arrives: float
    runs: float
    manifest: Manifest
    patience: float = 60.0  # after so long its owner gives up a pod that cannot be placed
    deleted: bool = False  # whether somebody deletes it before it ends by itself
    foreign: bool = False  # whether others bind it, behind the extender's back
    group: GroupOf | None = None


@dataclass(slots=True, eq=False)
class PodEntry:
    """A pod at the API server, and what the closed loop knows about it."""

    job: Job
    pod: Pod
    manifest: Manifest
    record: PodRecord
    request: GpuRequest
    created: float
    kind: str  # its name without the number
    promise: str | None = None  # the verdict that it was bound with
    decided: float = 0.0  # when that was decided
    blind_for: float = 0.0  # for how many seconds a watch of the extender had been failing then
    view: PublishedReport | None = None  # the node's last report that the extender knew then
    bound: float = float("inf")
    seen: float = float("inf")  # when the extender heard that it is bound
    ended: bool = False
    gone: bool = False  # whether the API server has forgotten it
    admitted: bool = False  # whether its kubelet has decided over it

    @classmethod
    def of(cls, job: Job, now: float) -> Self:
        """The entry of a job's pod, created now."""
        pod, record, request = read_pod(job.manifest)
        assert isinstance(request, GpuRequest)
        kind = record.name.rpartition("-")[0]
        return cls(job, pod, job.manifest, record, request, now, kind)


def manifest(
    name: str,
    number: int,
    annotations: dict[str, str],
    *containers: GpuContainer,
    whole_cpus: bool = False,
    resource: str = "nvidia.com/gpu",
) -> Manifest:
    """A Pod with these containers of a GPU resource; ``annotations`` are without our prefix.

    With ``whole_cpus`` it is of the class Guaranteed, and each container asks for one CPU.
    """
    beside = {"cpu": "1", "memory": "1Gi"} if whole_cpus else {}
    first: list[dict[str, Any]] = []
    apps: list[dict[str, Any]] = []
    for i, container in enumerate(containers):
        found: dict[str, Any] = {
            "name": f"c{i}",
            "resources": {"limits": {resource: str(container.gpus), **beside}},
        }
        if container.role == "sidecar":
            found["restartPolicy"] = "Always"
        (apps if container.role == "app" else first).append(found)
    spec: dict[str, Any] = {"containers": apps}
    if first:
        spec["initContainers"] = first
    return {
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": "default",
            "uid": f"{number:032x}",
            "annotations": {PREFIX + key: value for key, value in annotations.items()},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def record_of(manifest: Manifest) -> PodRecord:
    """What the extender keeps of a Pod that asks for GPUs."""
    record = pod_record(msgspec.convert(manifest, Pod), MANAGED)
    assert record is not None
    return record


def read_pod(manifest: Manifest) -> tuple[Pod, PodRecord, GpuRequest]:
    """A Pod as the extender reads it: the wire's form, its record, and its request."""
    pod = msgspec.convert(manifest, Pod)
    asks = parse(pod, MANAGED)
    assert isinstance(asks, Asks)
    return pod, record_of(manifest), asks.request
