"""Pods that hold GPUs without using them, for how long, and the waiting pods that need these GPUs.

The agents say which GPUs are idle (``idleSince`` in the records). The effect of a release is tried:
the node is asked about each waiting request as if the idle pod had ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.explain.remedies import Ends
from scheduler_extender.explain.waitingreasons import queues, waiting_pods
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.trials import Trials
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import DeviceId, NodeName, PodUid, base_uuid
from topology.core.report import Allocation, IdleAllocation
from topology.core.requests import GpuRequest
from topology.times import seconds_of

# The largest number of different waiting requests that are tried, the most frequent first.
MOST_REQUESTS = 32
MOST_TOGETHER = 64  # the largest number of idle pods of one node whose ends are tried together


@dataclass(frozen=True, slots=True)
class Completes:
    """Waiting pods with the same request, of which the node would then take one."""

    pods: Sequence[PodRecord]
    together: tuple[PodUid, ...] = ()  # idle pods of the node that would have to end, too


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod, and its unused devices of one resource."""

    node: NodeName
    uid: PodUid
    namespace: str
    pod: str
    containers: tuple[str, ...]
    resource: str
    gpus: tuple[int, ...]  # driver indices; for MIG instances those of their GPUs
    devices: tuple[DeviceId, ...]
    since: str  # RFC 3339, rounded down by the agent
    seconds: float  # from this to the agent's last observation, both by the node's clock
    looked: str  # the time of that observation (RFC 3339)
    partly: bool  # another container of the pod uses its devices

    @property
    def full_name(self) -> str:
        """The pod's namespace and name."""
        return f"{self.namespace}/{self.pod}"


@dataclass(slots=True)
class Tried:
    """The waiting pods that the end of each idle pod would help."""

    completes: dict[PodUid, list[Completes]] = field(default_factory=dict)
    whole: bool = True  # there was time to try everything


def idle_pods(snapshot: Snapshot, today: float) -> list[IdlePod]:
    """Return the pods that do not use the devices that they hold, the longest idle first.

    ``today`` is the time in seconds since 1970. It is used for agents that do not say when they
    observed the node.
    """
    found = [pod for info in snapshot.nodes for pod in idle_on(info, today)]
    return sorted(found, key=lambda pod: (-pod.seconds, pod.node, pod.namespace, pod.pod))


def what_ends_would_do(
    snapshot: Snapshot,
    idle: Sequence[IdlePod],
    deadline: Deadline,
) -> Tried:
    """Return, for each idle pod, the waiting pods without a node now that its end would help."""
    found = Tried()
    wholly_idle = [pod for pod in idle if not pod.partly]
    by_node: dict[NodeName, list[PodUid]] = {}
    for pod in wholly_idle:
        uids = by_node.setdefault(pod.node, [])
        if pod.uid not in uids:
            uids.append(pod.uid)
    trials = Trials(snapshot)
    try:
        with deadline.enforced():
            for pods in _waiting(snapshot, deadline) if by_node else ():
                ends = Ends(snapshot, trials, pods[0], deadline)
                for name, uids in by_node.items():
                    if not ends.goes(snapshot.node_info(name)):
                        continue
                    info = Question(pods[0], Purpose.EXPLAIN).on(snapshot.node_info(name))
                    _try(ends, info, uids, pods, found)
    except OutOfTimeError:
        found.whole = False
    return found


def _try(
    ends: Ends,
    info: NodeInfo,
    uids: Sequence[PodUid],
    pods: Sequence[PodRecord],
    found: Tried,
) -> None:
    """Try the end of each idle pod of a node.

    If no single end would do, try the ends of several together.
    """
    request = pods[0].request
    if not isinstance(request, GpuRequest):
        return
    helped = False
    for uid in uids:
        if ends.lets_in(info, request, frozenset({uid})):
            helped = True
            found.completes.setdefault(uid, []).append(Completes(pods))
    if helped or not 2 <= len(uids) <= MOST_TOGETHER:
        return
    together = ends.fewest(info, request, uids) or frozenset()
    for uid in together:
        others = tuple(other for other in uids if other in together and other != uid)
        found.completes.setdefault(uid, []).append(Completes(pods, others))


def _waiting(snapshot: Snapshot, deadline: Deadline) -> Iterator[Sequence[PodRecord]]:
    """Yield the waiting pods that no node takes now, grouped by request.

    Members of a group are left out, because they also wait for their group. So are pods with claims
    of their own.
    """
    readable = (
        pod
        for pod in waiting_pods(snapshot)
        if isinstance(pod.request, GpuRequest)
        and pod.claim_constraints is None
        and not (pod.group_ref is not None and (pod.group_ref.gang or pod.group_ref.domain))
    )
    for pods in islice(queues(readable).values(), MOST_REQUESTS):
        deadline.check()
        if not evaluate(snapshot, Question(pods[0], Purpose.EXPLAIN)).passed:
            yield pods


def idle_on(info: NodeInfo, today: float) -> Iterator[IdlePod]:
    """Yield the idle pods of one node."""
    report = info.report
    if report is None or not report.idle:
        return
    looked = seconds_of(report.observed_at)
    grouped: dict[tuple[PodUid, str], list[tuple[Allocation, IdleAllocation]]] = {}
    held = {(a.pod_uid, a.container, a.resource): a for a in report.allocations}
    for idle in report.idle:
        allocation = held.get((idle.pod_uid, idle.container, idle.resource))
        if allocation is not None:
            grouped.setdefault((idle.pod_uid, idle.resource), []).append((allocation, idle))
    rest = {(i.pod_uid, i.container, i.resource) for i in report.idle}
    used = {key[0] for key in held if key not in rest}
    # The driver's index of each GPU, and of the GPU of each MIG instance.
    gpus_here = info.topology.gpus if info.topology is not None else ()
    indices: dict[str, int] = {gpu.uuid: gpu.index for gpu in gpus_here}
    indices |= {part.uuid: gpu.index for gpu in gpus_here for part in gpu.mig_instances}
    for (uid, resource), parts in grouped.items():
        since = max(idle.since for _, idle in parts)
        began = seconds_of(since)
        if began is None:
            continue
        devices = tuple(device for allocation, _ in parts for device in allocation.device_ids)
        gpus = {indices[base] for base in map(base_uuid, devices) if base in indices}
        first = parts[0][0]
        yield IdlePod(
            info.name,
            uid,
            first.namespace,
            first.pod,
            tuple(allocation.container for allocation, _ in parts),
            resource,
            tuple(sorted(gpus)),
            devices,
            since,
            max(0.0, (looked if looked is not None else today) - began),
            report.observed_at,
            partly=uid in used,
        )
