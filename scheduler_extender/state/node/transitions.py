"""How the facts of a node change when a record, a pod or a bind comes, changes or goes.

A transition takes the facts as they were and gives the facts as they are now; it asks nobody and
changes nothing. What follows from a kubelet's answers is in :mod:`.answers.refusing`.

**Success.** A kubelet writes the phase Succeeded once a pod holds nothing any more, and nobody else
writes it. It drops the pod's devices before it hands out the next ones, and until then it may show
them. So they are free to whoever is admitted from now on, and are taken out of the report. Two
cases are left to :mod:`.ledger`, for which the devices may be released at any moment:

* Somebody is unreported, who may have been admitted while the pod held its devices.
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

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.objects import AgentRecord
from scheduler_extender.state.node.occupants import Departed, Leaving
from scheduler_extender.state.pods.record import PodRecord, resource_of, without
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

SUCCEEDED = "Succeeded"
# Departed pods of one resource on one node that are remembered one by one. With more, nothing is
# promised until every pod is reported that was unreported beside them.
MOST_DEPARTED = 32


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


def _is_as_before(facts: NodeFacts, topology: NodeTopology, report: Report | None) -> bool:
    """Whether a node is, by its record, as it was known: what its kubelet answered then holds."""
    known = facts.report
    return (
        report is not None
        and known is not None
        and not report.not_ready
        and report.boot_id == facts.record.boot_id
        and offers_the_same(report, known)
        and facts.topology == topology
    )


def without_released(facts: NodeFacts, report: Report | None) -> tuple[NodeFacts, Report | None]:
    """A report that has come without the devices of released pods, and the facts with those of
    these pods that may be shown again: reports show them, or they are still known."""
    pods, known = facts.pods, facts.report
    if report is None or not pods.released:
        return facts, report
    left = without_devices_of(report, pods.released)
    if known is not None and not report.follows(known):
        return facts, left
    shown = {a.pod_uid for a in report.allocations}
    released = frozenset(uid for uid in pods.released if uid in shown or uid in pods.bound)
    return replace(facts, pods=replace(pods, released=released)), left


def without_devices_of(report: Report, released: Collection[PodUid]) -> Report:
    """A report without the devices of pods that have released theirs."""
    left = tuple(a for a in report.allocations if a.pod_uid not in released)
    return report if len(left) == len(report.allocations) else replace(report, allocations=left)


def with_record(
    facts: NodeFacts, topology: NodeTopology, report: Report | None, uid: str
) -> NodeFacts:
    """A record has come. ``uid`` is its own: one that was made anew starts its numbers again."""
    if not _is_as_before(facts, topology, report):
        facts = facts.unproven()
    pods, known, boot_id = facts.pods, facts.report, facts.record.boot_id
    if report is not None:
        leaving, unsettled, reported = pods.leaving, pods.unsettled, pods.reported
        departed, released = pods.departed, pods.released
        leaving = {  # the numbers of a record that is made anew start again
            each: replace(gone, sequence=min(gone.sequence, report.sequence))
            for each, gone in leaving.items()
        }
        if known is not None:
            waiting = unsettled if offers_the_same(report, known) else pods.here
            # One report more than the first that shows it: that may show some of its containers.
            unsettled = (waiting & pods.here) - reported
        if report.boot_id != boot_id:
            boot_id, departed, leaving = report.boot_id, {}, {}
            released = reported = frozenset()
        reported &= {*pods.bound, *pods.in_flight, *leaving}
        reported |= {a.pod_uid for a in report.allocations}
        pods = replace(
            pods,
            leaving=leaving,
            departed=departed,
            reported=reported,
            unsettled=unsettled,
            released=released,
        )
    record = AgentRecord(topology, report, None, uid, boot_id, facts.record.stale)
    return _let_go(replace(facts, record=record, pods=pods))


def without_record(facts: NodeFacts, problem: str | None = None) -> NodeFacts:
    """The record is gone, or cannot be used; the pods stay."""
    facts = facts.unproven()
    record = replace(facts.record, topology=None, report=None, problem=problem, uid="")
    return replace(facts, record=record)


def with_stale_report(facts: NodeFacts) -> NodeFacts:
    """Its agent has not reported for too long."""
    return replace(facts.unproven(), record=replace(facts.record, stale=True))


def without_node_object(facts: NodeFacts) -> NodeFacts:
    """The Node object is gone; what it said of the node is kept."""
    gone = replace(facts.node_object, exists=False, dra_only=False)
    return replace(facts.unproven(), node_object=gone)


# Pods.


def with_pod(facts: NodeFacts, pod: PodRecord, *, listed: bool = False) -> NodeFacts:
    """A pod is bound here, or has changed. With ``listed`` others may have come before that, of
    which we hear only later."""
    pods = replace(facts.pods, bound=facts.pods.bound.with_pod(pod))
    after = replace(facts, pods=pods).without_old_departed()
    return after if listed else _with_success(facts, after, pod)


def _with_success(before: NodeFacts, after: NodeFacts, pod: PodRecord) -> NodeFacts:
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
        unreported = before.unreported(served.name)  # worked out already, as a rule
        if pod.uid in unreported:
            unreported = after.unreported(served.name)
        if unreported:
            return after
    released = after.pods.released | {pod.uid}
    record = replace(after.record, report=without_devices_of(report, released))
    return replace(after, record=record, pods=replace(after.pods, released=released))


def without_pod(facts: NodeFacts, uid: PodUid) -> NodeFacts:
    """A pod is bound here no more, and holds nothing here."""
    pods = replace(facts.pods, bound=facts.pods.bound.without((uid,)))
    return replace(facts, pods=pods).without_old_departed()


def with_leaving(facts: NodeFacts, pod: PodRecord, version: int) -> NodeFacts:
    """A pod of this node is gone from the API server as of ``version``; it is bound no more.

    That is one transition: were it nowhere in between, those who departed beside it were forgotten.
    """
    # Its end is not in doubt, only when: so it counts as a pod on its way out. Nobody is left to
    # keep its promise to.
    gone = replace(pod, deleting=True, promised=NO_CONSTRAINTS, survives_endings=False)
    sequence = facts.report.sequence if facts.report else inf  # that of the next one
    met = pod.admitted or pod.uid in facts.pods.reported
    leaving = {**facts.pods.leaving, pod.uid: Leaving(gone, version, sequence, met)}
    bound = facts.pods.bound.without((pod.uid,))
    return _let_go(replace(facts, pods=replace(facts.pods, bound=bound, leaving=leaving)))


def with_bind_in_flight(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Our bind of the pod to this node is in flight."""
    return replace(facts, pods=facts.pods.with_in_flight(pod)).without_old_departed()


def note_departure(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Remember a pod that ends before any report showed it, if others are unreported too."""
    request = pod.request
    if pod.uid in facts.pods.reported or not isinstance(request, GpuRequest):
        return facts
    if not request.effective_count:
        return facts  # by claims of its own, which last as long as the API server has them
    beside = facts.unreported(request.resource) - {pod.uid}
    if not beside:
        return facts
    departed = dict(facts.pods.departed)
    alike = [uid for uid, gone in departed.items() if resource_of(gone.pod) == request.resource]
    if len(alike) < MOST_DEPARTED:
        departed[pod.uid] = Departed(pod, beside)
    else:
        former = departed.pop(alike[-1])
        beside = (beside | former.beside) & facts.pods.here
        departed[pod.uid] = Departed(pod, beside, many=True)
    return facts.with_departed(departed).without_old_departed()


def _let_go(facts: NodeFacts) -> NodeFacts:
    """Let go of leaving pods of which the kubelet, asked since, shows nothing any more."""
    report, leaving = facts.report, facts.pods.leaving
    if report is None or report.not_ready or not leaving:
        return facts.without_old_departed()
    shown = {a.pod_uid for a in report.allocations}
    for uid, gone in leaving.items():
        # A pod whose claim is gone holds nothing, whatever its kubelet says.
        if uid not in shown and (facts.serves_claims or gone.confirmed_by(report)):
            left = without(facts.pods.leaving, (uid,))
            facts = replace(facts, pods=replace(facts.pods, leaving=left))
            facts = note_departure(facts, gone.pod)
    return facts.without_old_departed()
