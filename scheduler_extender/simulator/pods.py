"""Pods of a played cluster: what is asked for, and what becomes of each."""

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import msgspec

from scheduler_extender.annotations import PodRequest, parse
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.core.requests import GpuRequest

GPU = "nvidia.com/gpu"
MANAGED = Settings().managed

Manifest: TypeAlias = dict[str, Any]  # a Pod as JSON has it


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
    """A pod at the API server, and what the played cluster knows about it."""

    job: Job
    pod: Pod
    manifest: Manifest
    record: PodRecord
    request: GpuRequest
    created: float
    kind: str  # its name without the number
    promise: str | None = None  # the verdict that it was bound with
    decided: float = 0.0  # when that was decided
    stale_for: float = 0.0  # for how many seconds a watch of the extender had been failing then
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
        kind = record.name.rpartition("-")[0]
        return cls(job, pod, job.manifest, record, request, now, kind)

    def read(self, manifest: Manifest) -> None:
        """The pod is this one now."""
        self.pod, self.record, _ = read_pod(manifest)
        self.manifest = manifest

    @property
    def node(self) -> NodeName:
        """The node that it is bound to."""
        node = self.record.node
        assert node is not None
        return node


def read_pod(manifest: Manifest) -> tuple[Pod, PodRecord, GpuRequest]:
    """A Pod as the extender reads it: the wire's form, its record, and what its kubelet gives it,
    which does not read annotations that nobody can."""
    pod = msgspec.convert(manifest, Pod)
    asks, meta = parse(pod, MANAGED), pod.metadata
    asked = asks.request if isinstance(asks, PodRequest) else asks and asks.holds
    request = asked or GpuRequest(GPU, ())
    node = NodeName(pod.spec.node_name) if pod.spec.node_name else None
    bare = PodRecord(PodUid(meta.uid), meta.namespace, meta.name, node, request)
    return pod, pod_record(pod, MANAGED) or bare, request
