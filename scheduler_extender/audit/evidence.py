"""The evidence of an audit: the cluster now, and the pods that kubelets have refused before.

Three sources know of a refusal: the pod itself, until it is deleted; its Event, for an hour; and
the history in the node's record. Each pod counts once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler_extender.deadline import Deadline
from scheduler_extender.explain.answers import Answer, answers_to
from scheduler_extender.explain.gpustates import NodeState
from scheduler_extender.explain.waitingreasons import queues, waiting_pods
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Event
from topology.core.devices import PodUid
from topology.core.refusal import OTHER, Refusal
from topology.core.report import RefusedPod
from topology.core.requests import GpuRequest, gpu_request
from topology.times import seconds_of

MOST_REQUESTS = 32
"""The largest number of different waiting requests that are evaluated, the most frequent first."""
NVIDIA = "nvidia.com/"


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that a kubelet has refused."""

    uid: PodUid
    pod: str  # namespace and name
    node: str
    reason: str  # one word of the kubelet
    at: float | None  # in seconds since 1970
    request: GpuRequest | None = None  # None if it is not known any more
    doubtful: bool = False  # it may have asked for no GPUs; its node has some


@dataclass(frozen=True)
class Evidence:
    """What the findings are made of. ``since`` and ``until`` are in seconds since 1970."""

    snapshot: Snapshot
    nodes: Sequence[NodeState]
    refused: Sequence[Refused]  # those with GPUs
    doubtful: int  # the number of others that may have asked for GPUs
    since: float
    until: float
    deadline: Deadline

    @property
    def recorded(self) -> bool:
        """Whether the hardware of a node is known."""
        return any(node.topology is not None for node in self.nodes)

    @cached_property
    def waiting(self) -> Sequence[tuple[Sequence[PodRecord], Sequence[Answer]]]:
        """The waiting pods by request, the most numerous first, with the nodes' answers.

        Answers that there was no time for are missing.
        """
        found = list[tuple[Sequence[PodRecord], Sequence[Answer]]]()
        for pods in queues(waiting_pods(self.snapshot)).values():
            readable = isinstance(pods[0].request, GpuRequest)
            wanted = readable and self.recorded and len(found) < MOST_REQUESTS
            answers = answers_to(self.snapshot, pods[0], self.deadline) if wanted else []
            found.append((pods, answers if not self.deadline.passed() else []))
        return found


def refused_pods(
    pods: Iterable[PodRecord],
    nodes: Iterable[NodeInfo],
    events: Iterable[Event],
    known: Mapping[PodUid, PodRecord],
) -> list[Refused]:
    """Return the refused pods, the latest first.

    ``known`` are pods with GPUs.
    """
    found: dict[PodUid, Refused] = {}
    nodes = tuple(nodes)
    with_gpus = {info.name for info in nodes if not info.serves_nothing}
    for event in events:
        if Refusal(event.reason).label == OTHER or event.involved_object.kind != "Pod":
            continue
        refused = _of_event(event, known)
        if refused.uid in known or NVIDIA in event.reason or NVIDIA in event.message:
            found[refused.uid] = refused
        elif refused.node in with_gpus:
            found[refused.uid] = replace(refused, doubtful=True)
    for info in nodes:
        for each in info.report.history if info.report is not None else ():
            found[each.pod_uid] = _of_history(info, each)
    for pod in pods:
        if pod.refusal is not None and pod.node is not None:
            request = pod.request if isinstance(pod.request, GpuRequest) else None
            reason, at = pod.refusal.reason, pod.started
            found[pod.uid] = Refused(pod.uid, pod.full_name, pod.node, reason, at, request)
    return sorted(found.values(), key=lambda each: (-(each.at or 0.0), each.pod))


def _of_event(event: Event, known: Mapping[PodUid, PodRecord]) -> Refused:
    about, pod = event.involved_object, known.get(PodUid(event.involved_object.uid))
    request = pod.request if pod is not None and isinstance(pod.request, GpuRequest) else None
    name, node = f"{about.namespace}/{about.name}", event.source.host or event.reporting_instance
    at = seconds_of(event.last_timestamp or event.event_time or "")
    return Refused(PodUid(about.uid), name, node, event.reason, at, request)


def _of_history(info: NodeInfo, each: RefusedPod) -> Refused:
    request = gpu_request(each.devices, resource=each.resource)
    name, at = f"{each.namespace}/{each.pod}", seconds_of(each.at)
    return Refused(each.pod_uid, name, info.name, each.reason, at, request)
