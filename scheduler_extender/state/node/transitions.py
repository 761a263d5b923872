"""How the facts of a node change when a record, a pod or a bind comes, changes or goes.

A transition takes the facts as they were and gives the facts as they are now; it asks nobody and
changes nothing. What follows from a kubelet's answers is in :mod:`.refusing`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_extender.state.node.departures import Departed, Leaving
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.released import still_released, with_success, without_devices_of
from scheduler_extender.state.pods.record import PodRecord, resource_of, without
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

MOST_DEPARTED = 32
"""Departed pods of one resource on one node that are remembered one by one; where there are more,
nothing is promised until nobody is unreported beside whom they may have been."""


@dataclass(frozen=True, slots=True)
class TakenRecord:
    """A record that was taken in: the facts of its node before and after.

    ``changed`` says that the node's answers may be others, ``told_anew`` that the report is to be
    held against what was foreseen.
    """

    before: NodeFacts
    after: NodeFacts
    changed: bool
    told_anew: bool


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

    def offered(found: Report) -> tuple[object, ...]:
        sick = frozenset(gpu.uuid for gpu in found.health if not gpu.healthy)
        return found.allocatable, sick, found.missing

    return offered(report) == offered(earlier)


def _is_as_before(facts: NodeFacts, topology: NodeTopology, report: Report | None) -> bool:
    """Whether a node is, by its record, as it was known: what its kubelet answered then holds."""
    known = facts.report
    return (
        report is not None
        and known is not None
        and not report.not_ready
        and report.boot_id == facts.boot_id
        and offers_the_same(report, known)
        and facts.topology == topology
    )


def without_released(facts: NodeFacts, report: Report | None) -> tuple[NodeFacts, Report | None]:
    """A report that has come without the devices of released pods, and the facts with those of
    these pods that may be shown again."""
    if report is None or not facts.released:
        return facts, report
    known = facts.report
    older = known is not None and not report.follows(known)
    released = facts.released if older else still_released(facts.released, report, facts.pods)
    return facts.changed(released=released), without_devices_of(report, facts.released)


def with_record(
    facts: NodeFacts, topology: NodeTopology, report: Report | None, uid: str
) -> NodeFacts:
    """A record has come. ``uid`` is its own: one that was made anew starts its numbers again."""
    leaving = facts.leaving
    if uid != facts.record_uid and report is not None:
        # Their sequences were the former record's.
        leaving = {
            pod: replace(found, sequence=min(found.sequence, report.sequence))
            for pod, found in leaving.items()
        }
    known = facts.report
    if not _is_as_before(facts, topology, report):
        facts = facts.unproven()
    if report is not None and known is not None:
        waiting = facts.unsettled if offers_the_same(report, known) else facts.here
        # One report more than the first that shows it: that may show some of its containers only.
        unsettled = (waiting & facts.here) - facts.reported
        facts = facts.changed(unsettled=unsettled)
    facts = facts.changed(
        topology=topology,
        report=report,
        problem=None,
        record_uid=uid,
        leaving=leaving,
    )
    return _let_go(_with_reported(facts))


def without_record(facts: NodeFacts, problem: str | None = None) -> NodeFacts:
    """The record is gone, or cannot be used; the pods stay."""
    return replace(facts.unproven(), topology=None, report=None, problem=problem, record_uid="")


def with_stale_report(facts: NodeFacts) -> NodeFacts:
    """Its agent has not reported for too long."""
    return replace(facts.unproven(), stale=True)


def with_pod(facts: NodeFacts, pod: PodRecord, *, listed: bool = False) -> NodeFacts:
    """A pod is bound here, or has changed. With ``listed`` others may have come before that, of
    which we hear only later."""
    before = facts.pods.get(pod.uid)
    facts = facts.changed(pods=facts.pods.with_pod(pod)).without_old_departed()
    return facts if listed else with_success(facts, before, pod)


def without_pod(facts: NodeFacts, uid: PodUid) -> NodeFacts:
    """A pod is bound here no more, and holds nothing here."""
    return replace(facts, pods=facts.pods.without((uid,))).without_old_departed()


def with_leaving(facts: NodeFacts, pod: PodRecord, version: int) -> NodeFacts:
    """A pod of this node is gone from the API server as of ``version``; it is bound no more.

    That is one transition: were it nowhere in between, those who departed beside it were forgotten.
    """
    # Its end is not in doubt, only when: so it counts as a pod on its way out. Nobody is left to
    # keep its promise to.
    gone = replace(pod, deleting=True, promised=NO_CONSTRAINTS, survives_endings=False)
    sequence = facts.report.sequence if facts.report else 0
    leaving = {**facts.leaving, pod.uid: Leaving(gone, version, sequence)}
    return _let_go(replace(facts, pods=facts.pods.without((pod.uid,)), leaving=leaving))


def with_bind_in_flight(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Our bind of the pod to this node is in flight."""
    in_flight = {**facts.in_flight, pod.uid: pod}
    return replace(facts, in_flight=in_flight).without_old_departed()


def without_bind_in_flight(facts: NodeFacts, uid: PodUid) -> NodeFacts:
    """A bind in flight has ended, one way or the other."""
    return replace(
        facts, in_flight=without(facts.in_flight, frozenset({uid}))
    ).without_old_departed()


def note_departure(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Remember a pod that ends before any report showed it, if others are unreported too."""
    request = pod.request
    if pod.uid in facts.reported or not isinstance(request, GpuRequest):
        return facts
    beside = facts.unreported(request.resource) - {pod.uid}
    if not beside:
        return facts
    alike = [
        uid for uid, gone in facts.departed.items() if resource_of(gone.pod) == request.resource
    ]
    departed = dict(facts.departed)
    if len(alike) < MOST_DEPARTED:
        departed[pod.uid] = Departed(pod, beside)
    else:
        former = departed.pop(alike[-1])
        departed[pod.uid] = Departed(pod, (beside | former.beside) & facts.here, many=True)
    return replace(facts, departed=departed).without_old_departed()


def _with_reported(facts: NodeFacts) -> NodeFacts:
    """Keep in mind whose devices have been shown since the node booted."""
    report = facts.report
    if report is None:
        return facts
    reported = facts.reported
    if report.boot_id != facts.boot_id:
        facts = replace(
            facts, boot_id=report.boot_id, departed={}, leaving={}, released=frozenset()
        )
        reported = frozenset()
    reported &= {pod.uid for pod in facts.all_pods}
    return facts.changed(reported=reported | {a.pod_uid for a in report.allocations})


def _let_go(facts: NodeFacts) -> NodeFacts:
    """Let go of leaving pods of which the kubelet, asked since, shows nothing any more."""
    report = facts.report
    if report is None or report.not_ready or not facts.leaving:
        return facts.without_old_departed()
    shown = {a.pod_uid for a in report.allocations}
    gone = [
        found
        for uid, found in facts.leaving.items()
        if uid not in shown and found.confirmed_by(report)
    ]
    for found in gone:
        facts = replace(facts, leaving=without(facts.leaving, frozenset({found.pod.uid})))
        facts = note_departure(facts, found.pod)
    return facts.without_old_departed()
