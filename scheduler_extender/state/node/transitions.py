"""How the NodeInfo of a node changes when a record, a pod or a bind comes, changes or goes.

A transition takes the former NodeInfo and returns the new one. It does no I/O and has no side
effects. What follows from a kubelet's answers is in :mod:`.answers.refusing`.

**Success.** A kubelet writes the phase Succeeded once a pod holds nothing any more, and no other
component writes it. The kubelet drops the pod's devices before it hands out the next ones, and may
show them until then. So the devices are free for every pod that it admits from now on, and the
transition takes them out of the report. In two cases :mod:`.ledger` decides instead, and the
devices may be released at any time:

* Another pod is unacknowledged. The kubelet may have admitted it while the succeeded pod still held
  its devices.
* We did not see the pod succeed, but find it succeeded in a list. Other pods may have come before
  that, of which we hear only later.

Under DRA a pod has its devices as long as its claim.

A failed pod is different, because other components than its kubelet write that phase, too.

Sources: Kubernetes 1.36 ``kubelet/status/status_manager.go`` (``mergePodStatus``),
``kubelet/kubelet_pods.go`` (``isPodInactive``), ``kubelet/cm/devicemanager/manager.go``
(``UpdateAllocatedDevices``).
"""

from collections.abc import Collection
from dataclasses import replace
from math import inf

from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import AgentRecord
from scheduler_extender.state.node.occupants import Terminated, Unconfirmed
from scheduler_extender.state.pods.record import PodRecord, resource_of, without
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

SUCCEEDED = "Succeeded"
# The number of terminated pods that are kept one by one, for each node and resource. With more of
# them, the node promises nothing until every pod is reported that was unacknowledged beside them.
MOST_TERMINATED = 32


# Records.


def is_heartbeat(report: Report | None, known: Report | None) -> bool:
    """Check whether a report says nothing new except that its agent lives."""
    return (
        report is not None
        and known is not None
        and replace(report, sequence=0) == replace(known, sequence=0)
    )


def offers_the_same(report: Report, earlier: Report) -> bool:
    """Check whether two reports call the same GPUs allocatable, sick and missing.

    If they do not, the kubelet may have handed out GPUs of either report, or of a mixture of both.
    """

    def offered(told: Report) -> tuple[object, ...]:
        sick = frozenset(gpu.uuid for gpu in told.health if not gpu.healthy)
        return told.allocatable, sick, told.missing

    return offered(report) == offered(earlier)


def _is_as_before(info: NodeInfo, topology: NodeTopology, report: Report | None) -> bool:
    """Check whether the record shows an unchanged node, so that earlier answers still count."""
    known = info.report
    return (
        report is not None
        and known is not None
        and not report.not_ready
        and report.boot_id == info.record.boot_id
        and offers_the_same(report, known)
        and info.topology == topology
    )


def without_released(info: NodeInfo, report: Report | None) -> tuple[NodeInfo, Report | None]:
    """Return the node and a new report, both after the release of succeeded pods.

    The report omits the devices of the released pods. The node keeps only those released pods that
    may be shown again: reports show them, or they are still known.
    """
    pods, known = info.pods, info.report
    if report is None or not pods.released:
        return info, report
    left = without_devices_of(report, pods.released)
    if known is not None and not report.follows(known):
        return info, left
    shown = {a.pod_uid for a in report.allocations}
    released = frozenset(uid for uid in pods.released if uid in shown or uid in pods.bound)
    return replace(info, pods=replace(pods, released=released)), left


def without_devices_of(report: Report, released: Collection[PodUid]) -> Report:
    """Return a report without the devices of these released pods."""
    left = tuple(a for a in report.allocations if a.pod_uid not in released)
    return report if len(left) == len(report.allocations) else replace(report, allocations=left)


def with_record(
    info: NodeInfo, topology: NodeTopology, report: Report | None, uid: str
) -> NodeInfo:
    """Return the node with a new record.

    ``uid`` is the record's own UID. A record that was created again starts its sequence numbers
    again.
    """
    if not _is_as_before(info, topology, report):
        info = info.unproven()
    pods, known, boot_id = info.pods, info.report, info.record.boot_id
    if report is not None:
        unconfirmed, unsettled, acknowledged = pods.unconfirmed, pods.unsettled, pods.acknowledged
        terminated, released = pods.terminated, pods.released
        unconfirmed = {  # a record that was created again starts its sequence numbers again
            each: replace(gone, sequence=min(gone.sequence, report.sequence))
            for each, gone in unconfirmed.items()
        }
        if known is not None:
            waiting = unsettled if offers_the_same(report, known) else pods.here
            # This is one report more than the first that shows the pod, because the first may show
            # only some of its containers.
            unsettled = (waiting & pods.here) - acknowledged
        if report.boot_id != boot_id:
            boot_id, terminated, unconfirmed = report.boot_id, {}, {}
            released = acknowledged = frozenset()
        acknowledged &= {*pods.bound, *pods.assumed, *unconfirmed}
        acknowledged |= {a.pod_uid for a in report.allocations}
        pods = replace(
            pods,
            unconfirmed=unconfirmed,
            terminated=terminated,
            acknowledged=acknowledged,
            unsettled=unsettled,
            released=released,
        )
    record = AgentRecord(topology, report, None, uid, boot_id, info.record.stale)
    return _let_go(replace(info, record=record, pods=pods))


def without_record(info: NodeInfo, problem: str | None = None) -> NodeInfo:
    """Return the node without its record, which is gone or cannot be used; the pods stay."""
    info = info.unproven()
    record = replace(info.record, topology=None, report=None, problem=problem, uid="")
    return replace(info, record=record)


def with_stale_report(info: NodeInfo) -> NodeInfo:
    """Return the node after its agent has not reported for too long."""
    return replace(info.unproven(), record=replace(info.record, stale=True))


def without_node_object(info: NodeInfo) -> NodeInfo:
    """Return the node without its Node object, but with what that object said of the node."""
    gone = replace(info.node_object, exists=False, advertises_none=False)
    return replace(info.unproven(), node_object=gone)


# Pods.


def with_pod(info: NodeInfo, pod: PodRecord, *, listed: bool = False) -> NodeInfo:
    """Return the node after a pod was bound to it, or has changed.

    With ``listed`` other pods may have come before this change, of which we hear only later.
    """
    pods = replace(info.pods, bound=info.pods.bound.with_pod(pod))
    after = replace(info, pods=pods).without_old_terminated()
    return after if listed else _with_success(info, after, pod)


def _with_success(before: NodeInfo, after: NodeInfo, pod: PodRecord) -> NodeInfo:
    """Return the node after a pod has changed: if the pod succeeds now, its devices are free."""
    known = before.pods.bound.get(pod.uid)
    if pod.phase != SUCCEEDED or known is None or known.ended:
        return after
    report, topology = after.report, after.topology
    if report is None or topology is None or report.not_ready:
        return after
    if not any(a.pod_uid == pod.uid and not a.claim for a in report.allocations):
        return after
    for served in topology.resources:
        unacknowledged = before.unacknowledged(served.name)  # usually computed already
        if pod.uid in unacknowledged:
            unacknowledged = after.unacknowledged(served.name)
        if unacknowledged:
            return after
    released = after.pods.released | {pod.uid}
    record = replace(after.record, report=without_devices_of(report, released))
    return replace(after, record=record, pods=replace(after.pods, released=released))


def without_pod(info: NodeInfo, uid: PodUid) -> NodeInfo:
    """Return the node without a bound pod that holds nothing here."""
    pods = replace(info.pods, bound=info.pods.bound.without((uid,)))
    return replace(info, pods=pods).without_old_terminated()


def with_unconfirmed(info: NodeInfo, pod: PodRecord, version: int) -> NodeInfo:
    """Return the node with a bound pod as unconfirmed: the API server removed it at ``version``.

    This is one transition. If the pod were in neither set in between, the pods that terminated
    beside it would be forgotten.
    """
    # Its end is certain and only the time of it is not, so it counts as terminating. Its promise is
    # void, because the pod no longer exists.
    gone = replace(pod, terminating=True, promised=NO_CONSTRAINTS, survives_endings=False)
    # the sequence number of the next report
    sequence = info.report.sequence if info.report else inf
    met = pod.admitted or pod.uid in info.pods.acknowledged
    unconfirmed = {**info.pods.unconfirmed, pod.uid: Unconfirmed(gone, version, sequence, met)}
    bound = info.pods.bound.without((pod.uid,))
    return _let_go(replace(info, pods=replace(info.pods, bound=bound, unconfirmed=unconfirmed)))


def note_terminated(info: NodeInfo, pod: PodRecord) -> NodeInfo:
    """Return the node with a terminated pod, if other pods are unacknowledged beside it.

    Return the node unchanged for a pod that a report has shown.
    """
    request = pod.request
    if pod.uid in info.pods.acknowledged or not isinstance(request, GpuRequest):
        return info
    if not request.effective_count:
        # its devices come by its own claims, which last as long as the API server has them
        return info
    beside = info.unacknowledged(request.resource) - {pod.uid}
    if not beside:
        return info
    terminated = dict(info.pods.terminated)
    alike = [uid for uid, gone in terminated.items() if resource_of(gone.pod) == request.resource]
    if len(alike) < MOST_TERMINATED:
        terminated[pod.uid] = Terminated(pod, beside)
    else:
        former = terminated.pop(alike[-1])
        beside = (beside | former.beside) & info.pods.here
        terminated[pod.uid] = Terminated(pod, beside, many=True)
    return info.with_terminated(terminated).without_old_terminated()


def _let_go(info: NodeInfo) -> NodeInfo:
    """Return the node without unconfirmed pods that the kubelet has surely released.

    The report omits such a pod, and its agent asked the kubelet after the deletion.
    """
    report, unconfirmed = info.report, info.pods.unconfirmed
    if report is None or report.not_ready or not unconfirmed:
        return info.without_old_terminated()
    shown = {a.pod_uid for a in report.allocations}
    for uid, gone in unconfirmed.items():
        # A pod whose claim is gone holds nothing, even if its kubelet still shows it.
        if uid not in shown and (info.serves_claims or gone.confirmed_by(report)):
            left = without(info.pods.unconfirmed, (uid,))
            info = replace(info, pods=replace(info.pods, unconfirmed=left))
            info = note_terminated(info, gone.pod)
    return info.without_old_terminated()
