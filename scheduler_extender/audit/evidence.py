"""The evidence of an audit: the cluster now, and the pods that kubelets have refused before.

Three sources know of a refusal: the pod itself, until it is deleted; its Event, for an hour; and
the history in the node's record. Each pod counts once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduler_extender.annotations import Malformed
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
from topology.core.requests import GpuRequest, gpu_request
from topology.times import seconds_of

MOST_REQUESTS = 32
"""The largest number of different waiting requests that are evaluated, the most frequent first."""
NVIDIA = "nvidia.com/"


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that a kubelet has refused."""

    pod: str  # namespace and name
    node: str
    reason: str  # one word of the kubelet
    at: float | None  # in seconds since 1970
    asked: GpuRequest | Malformed | None  # None if it is not known any more
    doubtful: bool = False  # it may have asked for no GPUs; its node has some

    @property
    def request(self) -> GpuRequest | None:
        """Its request, if it is known."""
        return self.asked if isinstance(self.asked, GpuRequest) else None


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
    nodes: Sequence[NodeInfo],
    events: Iterable[Event],
    known: Mapping[PodUid, PodRecord],
) -> list[Refused]:
    """Return the refused pods, the latest first.

    ``known`` are pods with GPUs. Times that are not known count as the earliest.
    """
    found: dict[PodUid, Refused] = {}
    with_gpus = {info.name for info in nodes if not info.serves_nothing}
    for event in events:
        about, node = event.involved_object, event.source.get("host", "")
        uid = PodUid(about.get("uid", ""))
        sure = uid in known or NVIDIA in event.reason or NVIDIA in event.message
        if Refusal(event.reason).label != OTHER and (sure or node in with_gpus):
            name = f"{about.get('namespace')}/{about.get('name')}"
            asked = known[uid].request if uid in known else None
            at = seconds_of(event.last_timestamp or "")
            found[uid] = Refused(name, node, event.reason, at, asked, doubtful=not sure)
    for info in nodes:
        for each in info.report.history if info.report is not None else ():
            request = gpu_request(each.devices, resource=each.resource)
            name, at = f"{each.namespace}/{each.pod}", seconds_of(each.at)
            found[each.pod_uid] = Refused(name, info.name, each.reason, at, request)
    for pod in pods:
        if pod.refusal is not None and pod.node is not None:
            why = pod.refusal.reason
            found[pod.uid] = Refused(pod.full_name, pod.node, why, pod.started, pod.request)
    return sorted(found.values(), key=lambda each: (-(each.at or 0.0), each.pod))
