"""How the facts of a node change when a record, a pod or a bind comes, changes or goes.

A transition takes the facts as they were and gives the facts as they are now; it asks nobody and
changes nothing. What follows from a kubelet's answers is in :mod:`.answers.refusing`.

**Success.** A kubelet writes the phase Succeeded once a pod holds nothing any more, and nobody else
writes it. It drops the pod's devices before it hands out the next ones, and until then it may show
them. So they are free to whoever is admitted from now on, and are taken out of the report. Two
cases are left to :mod:`.ledger`, for which the devices may be released at any moment:

* Somebody is unacknowledged, who may have been admitted while the pod held its devices.
* We did not see the pod succeed, but find it so in a list: others may have come before that, of
  which we hear only later.

Under DRA a pod has its devices as long as its claim.

A failed pod is none of these: others than its kubelet write that phase, too.

Sources: Kubernetes 1.36 ``kubelet/status/status_manager.go`` (``mergePodStatus``),
``kubelet/kubelet_pods.go`` (``isPodInactive``), ``kubelet/cm/devicemanager/manager.go``
(``UpdateAllocatedDevices``).
"""

from __future__ import annotations

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
# Departed pods of one resource on one node that are remembered one by one. With more, nothing is
# promised until every pod is reported that was unacknowledged beside them.
MOST_TERMINATED = 32


# Records.


def is_heartbeat(report: Report | None, known: Report | None) -> bool:
    """Whether a report says nothing but that its agent lives."""
    return (
        report is not None
        and known is not None
        and replace(report, sequence=0) == replace(known, sequence=0)
    )


def offers_the_same(report: Report, earlier: Report) -> bool:
    """Whether two reports call the same GPUs allocatable, sick and missing.

    Else the kubelet may have handed out from the GPUs of one or the other, or from some of them in
    between.
    """

    def offered(told: Report) -> tuple[object, ...]:
        sick = frozenset(gpu.uuid for gpu in told.health if not gpu.healthy)
        return told.allocatable, sick, told.missing

    return offered(report) == offered(earlier)


def _is_as_before(info: NodeInfo, topology: NodeTopology, report: Report | None) -> bool:
    """Whether a node is, by its record, as it was known: what its kubelet answered then holds."""
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
    """A report that has come without the devices of released pods, and the facts with those of
    these pods that may be shown again: reports show them, or they are still known."""
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
    """A report without the devices of pods that have released theirs."""
    left = tuple(a for a in report.allocations if a.pod_uid not in released)
    return report if len(left) == len(report.allocations) else replace(report, allocations=left)


def with_record(
    info: NodeInfo, topology: NodeTopology, report: Report | None, uid: str
) -> NodeInfo:
    """A record has come. ``uid`` is its own: one that was made anew starts its numbers again."""
    if not _is_as_before(info, topology, report):
        info = info.unproven()
    pods, known, boot_id = info.pods, info.report, info.record.boot_id
    if report is not None:
        unconfirmed, unsettled, acknowledged = pods.unconfirmed, pods.unsettled, pods.acknowledged
        terminated, released = pods.terminated, pods.released
        unconfirmed = {  # the numbers of a record that is made anew start again
            each: replace(gone, sequence=min(gone.sequence, report.sequence))
            for each, gone in unconfirmed.items()
        }
        if known is not None:
            waiting = unsettled if offers_the_same(report, known) else pods.here
            # One report more than the first that shows it: that may show some of its containers.
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
    """The record is gone, or cannot be used; the pods stay."""
    info = info.unproven()
    record = replace(info.record, topology=None, report=None, problem=problem, uid="")
    return replace(info, record=record)


def with_stale_report(info: NodeInfo) -> NodeInfo:
    """Its agent has not reported for too long."""
    return replace(info.unproven(), record=replace(info.record, stale=True))


def without_node_object(info: NodeInfo) -> NodeInfo:
    """The Node object is gone; what it said of the node is kept."""
    gone = replace(info.node_object, exists=False, dra_only=False)
    return replace(info.unproven(), node_object=gone)


# Pods.


def with_pod(info: NodeInfo, pod: PodRecord, *, listed: bool = False) -> NodeInfo:
    """A pod is bound here, or has changed. With ``listed`` others may have come before that, of
    which we hear only later."""
    pods = replace(info.pods, bound=info.pods.bound.with_pod(pod))
    after = replace(info, pods=pods).without_old_terminated()
    return after if listed else _with_success(info, after, pod)


def _with_success(before: NodeInfo, after: NodeInfo, pod: PodRecord) -> NodeInfo:
    """The facts after a pod has changed: if it succeeds now, its devices are free."""
    known = before.pods.bound.get(pod.uid)
    if pod.phase != SUCCEEDED or known is None or known.ended:
        return after
    report, topology = after.report, after.topology
    if report is None or topology is None or report.not_ready:
        return after
    if not any(a.pod_uid == pod.uid and not a.claim for a in report.allocations):
        return after
    for served in topology.resources:
        unacknowledged = before.unacknowledged(served.name)  # worked out already, as a rule
        if pod.uid in unacknowledged:
            unacknowledged = after.unacknowledged(served.name)
        if unacknowledged:
            return after
    released = after.pods.released | {pod.uid}
    record = replace(after.record, report=without_devices_of(report, released))
    return replace(after, record=record, pods=replace(after.pods, released=released))


def without_pod(info: NodeInfo, uid: PodUid) -> NodeInfo:
    """A pod is bound here no more, and holds nothing here."""
    pods = replace(info.pods, bound=info.pods.bound.without((uid,)))
    return replace(info, pods=pods).without_old_terminated()


def with_unconfirmed(fields: NodeInfo, pod: PodRecord, version: int) -> NodeInfo:
    """A pod of this node is gone from the API server as of ``version``; it is bound no more.

    That is one transition: were it nowhere in between, those who terminated beside it were
    forgotten.
    """
    # Its end is not in doubt, only when: so it counts as a pod on its way out. Nobody is left to
    # keep its promise to.
    gone = replace(pod, terminating=True, promised=NO_CONSTRAINTS, survives_endings=False)
    sequence = fields.report.sequence if fields.report else inf  # that of the next one
    met = pod.admitted or pod.uid in fields.pods.acknowledged
    unconfirmed = {**fields.pods.unconfirmed, pod.uid: Unconfirmed(gone, version, sequence, met)}
    bound = fields.pods.bound.without((pod.uid,))
    return _let_go(replace(fields, pods=replace(fields.pods, bound=bound, unconfirmed=unconfirmed)))


def with_assumed_pod(info: NodeInfo, pod: PodRecord) -> NodeInfo:
    """Our bind of the pod to this node is in flight."""
    return replace(info, pods=info.pods.with_assumed(pod)).without_old_terminated()


def note_terminated(info: NodeInfo, pod: PodRecord) -> NodeInfo:
    """Remember a pod that ends before any report showed it, if others are unacknowledged too."""
    request = pod.request
    if pod.uid in info.pods.acknowledged or not isinstance(request, GpuRequest):
        return info
    if not request.effective_count:
        return info  # by claims of its own, which last as long as the API server has them
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
    """Let go of leaving pods of which the kubelet, asked since, shows nothing any more."""
    report, unconfirmed = info.report, info.pods.unconfirmed
    if report is None or report.not_ready or not unconfirmed:
        return info.without_old_terminated()
    shown = {a.pod_uid for a in report.allocations}
    for uid, gone in unconfirmed.items():
        # A pod whose claim is gone holds nothing, whatever its kubelet says.
        if uid not in shown and (info.serves_claims or gone.confirmed_by(report)):
            left = without(info.pods.unconfirmed, (uid,))
            info = replace(info, pods=replace(info.pods, unconfirmed=left))
            info = note_terminated(info, gone.pod)
    return info.without_old_terminated()
