"""Pods of a simulated cluster: the request of each, and what becomes of it."""

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import msgspec

from scheduler_extender.annotations import MANAGED, PodRequest, parse
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.core.requests import GpuRequest

GPU = "nvidia.com/gpu"

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
    """A report as its record has it."""

    report: Report
    record: str  # the record's UID
    looked: float  # when the agent looked


@dataclass(frozen=True, slots=True)
class Job:
    """One pod of a workload. Times are in seconds."""

    arrives: float
    runs: float
    manifest: Manifest
    patience: float = 60.0  # seconds after which its owner gives up a pod that cannot be placed
    deleted: bool = False  # whether it is deleted before it ends by itself
    foreign: bool = False  # whether others bind it, past the extender
    group: GroupOf | None = None


@dataclass(slots=True, eq=False)
class PodEntry:
    """A pod at the API server, and what the simulated cluster knows about it."""

    job: Job
    pod: Pod
    manifest: Manifest
    record: PodRecord
    request: GpuRequest
    created: float
    kind: str  # its name without the number
    promise: str | None = None  # the verdict with which it was bound
    decided: float = 0.0  # when that was decided
    stale_for: float = 0.0  # seconds for which a watch of the extender had been failing then
    view: PublishedReport | None = None  # the node's last report that the extender knew then
    bound: float = float("inf")
    seen: float = float("inf")  # when the extender heard that it is bound
    ended: bool = False
    gone: bool = False  # whether the API server has forgotten it
    admitted: bool = False  # whether its kubelet has decided about it

    @classmethod
    def of(cls, job: Job, now: float) -> Self:
        """Return the entry of a job's pod, created now."""
        pod, record, request = read_pod(job.manifest)
        return cls(job, pod, job.manifest, record, request, now, record.name.rpartition("-")[0])

    def read(self, manifest: Manifest) -> None:
        """Replace the pod by this manifest's."""
        self.pod, self.record, _ = read_pod(manifest)
        self.manifest = manifest

    @property
    def node(self) -> NodeName:
        """The node that the pod is bound to."""
        node = self.record.node
        assert node is not None
        return node


def read_pod(manifest: Manifest) -> tuple[Pod, PodRecord, GpuRequest]:
    """Read a Pod as the extender does: its decoded form, its record, and its kubelet's request.

    The kubelet's request ignores annotations that cannot be read.
    """
    pod = msgspec.convert(manifest, Pod)
    asks, meta = parse(pod, MANAGED), pod.metadata
    asked = asks.request if isinstance(asks, PodRequest) else asks and asks.holds
    request = asked or GpuRequest(GPU, ())
    node = NodeName(pod.spec.node_name) if pod.spec.node_name else None
    bare = PodRecord(PodUid(meta.uid), meta.namespace, meta.name, node, request)
    return pod, pod_record(pod, MANAGED) or bare, request
