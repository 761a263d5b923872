"""The evidence of an audit: the cluster now, and the pods that kubelets have refused before.

Three sources know of a refusal: the pod itself, until it is deleted; its Event, for an hour; and
the history in the node's record. Each pod counts once.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import Deadline
from scheduler_extender.explain.answers import Answer, answers_to
from scheduler_extender.explain.gpustates import NodeState
from scheduler_extender.explain.waitingreasons import queues, waiting_pods
from scheduler_extender.explain.wording import many
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Event
from topology.core.devices import NodeName, PodUid
from topology.core.refusal import OTHER, Refusal, refusal_of
from topology.core.requests import GpuRequest, gpu_request
from topology.times import seconds_of

NVIDIA = "nvidia.com/"
UNKNOWN = Malformed("how many GPUs it requested is not known any more")
DOUBTFUL = Malformed("it may have requested no GPUs")
MOST_NAME = 253  # characters of a pod's or a node's name


@dataclass(frozen=True)
class Evidence:
    """What the findings are made of. ``since`` and ``until`` are in seconds since 1970."""

    snapshot: Snapshot
    nodes: Sequence[NodeState]
    with_gpus: AbstractSet[NodeName]  # also nodes that are not in the snapshot
    refused: Sequence[PodRecord]
    doubtful: int  # the number of other refused pods, which may have requested GPUs
    since: float
    until: float
    deadline: Deadline

    @property
    def recorded(self) -> int:
        """The number of nodes whose hardware is known."""
        return sum(node.topology is not None for node in self.nodes)

    @property
    def scope(self) -> str:
        """The number of nodes in words."""
        unknown = len(self.with_gpus) - self.recorded
        found = f"{many(len(self.with_gpus), 'node')} with GPUs"
        return f"{found}, {unknown:,} without a usable record" if unknown else found

    @cached_property
    def emptied(self) -> Snapshot:
        """The cluster as if no node had a pod."""
        return self.snapshot.with_node_infos(
            NodeInfo(
                info.name,
                info.node_object,
                replace(
                    info.record,
                    report=replace(
                        info.report, allocations=(), holdings=info.report.holdings and ()
                    ),
                ),
            )
            for info in (node.info for node in self.nodes)
            if info.report is not None
        )

    @cached_property
    def waiting(self) -> Sequence[tuple[Sequence[PodRecord], Sequence[Answer] | None]]:
        """The waiting pods by request, the most numerous first, with the nodes' answers.

        None stands for answers that there was no time for. There are no answers without records, or
        if the request cannot be read.
        """
        found = list[tuple[Sequence[PodRecord], Sequence[Answer] | None]]()
        for pods in queues(waiting_pods(self.snapshot)).values():
            asks = self.recorded and isinstance(pods[0].request, GpuRequest)
            answers = answers_to(self.snapshot, pods[0], self.deadline) if asks else ()
            found.append((pods, None if asks and self.deadline.passed() else answers))
        return found

    @property
    def late(self) -> int:
        """The number of waiting pods for whose answers there was no time."""
        return sum(len(pods) for pods, answers in self.waiting if answers is None)


def refused_pods(
    snapshot: Snapshot, with_gpus: AbstractSet[NodeName], events: Iterable[Event]
) -> list[PodRecord]:
    """Return the refused pods, the latest first, each with its node, refusal and time.

    A request that is not known is :data:`UNKNOWN`, or :data:`DOUBTFUL`. Times that are not known
    count as the earliest. Users may create Events with any text.
    """
    found, known = dict[PodUid, PodRecord](), {pod.uid: pod for pod in snapshot.pods}
    for event in events:
        about, node = event.involved_object, NodeName(event.source.get("host", "")[:MOST_NAME])
        uid, name = PodUid(about.get("uid", "")), about.get("name", "")[:MOST_NAME]
        refusal = refusal_of("Failed", event.reason, event.message, has_containers=True)
        request = UNKNOWN if NVIDIA in event.reason + event.message else DOUBTFUL
        gone = PodRecord(uid, about.get("namespace", ""), name, node, request)
        if (
            refusal
            and refusal.label != OTHER
            and (uid in known or request is UNKNOWN or node in with_gpus)
        ):
            pod, at = known.get(uid, gone), seconds_of(event.last_timestamp or "")
            found[uid] = replace(pod, node=node, refusal=refusal, started=at)
    found |= {
        each.pod_uid: PodRecord(
            each.pod_uid,
            each.namespace,
            each.pod,
            info.name,
            gpu_request(each.devices, resource=each.resource),
            refusal=Refusal(each.reason),
            started=seconds_of(each.at),
        )
        for info in snapshot.nodes
        for each in (info.report.history if info.report is not None else ())
    }
    found |= {uid: pod for uid, pod in known.items() if pod.refusal is not None}
    return sorted(found.values(), key=lambda pod: (-(pod.started or 0.0), pod.full_name))
