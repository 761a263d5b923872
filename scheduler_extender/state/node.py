"""What is known of one node at one moment, and how it changes: a value and its transitions.

A transition takes the facts as they were and gives the facts as they are now; it asks nobody and
changes nothing. What follows from the facts (the ledger of each resource, the key of all that
answers depend on) is worked out when it is first asked for, and kept with them.

Three kinds of pods are no longer with the API server or have ended, and still count:

*leaving*   deleted, and no report has shown yet that the kubelet has let go
*departed*  ended before any report showed it, while other pods were unreported (see ``ledger``)
*in flight* not bound yet as far as the API server has told us: our bind is being written
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler_extender.state.ledger import ContradictionError, Departed, Leaving, Ledger, ledger
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.streak import Streak, Streaks, kind_of
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.remembering import Interruption
from topology.core.report import MissingGpu, Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

UNKNOWN_VERSION = -1
"""In place of a resourceVersion that cannot be compared with others."""
MOST_DEPARTED = 32
"""Departed pods of one resource on one node that are remembered one by one; where there are more,
nothing is promised until nobody is unreported beside whom they may have been."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unusable:
    """In place of a ledger: the record contradicts itself, and ``why``."""

    why: str


@dataclass(frozen=True, slots=True)
class _Alive:
    """Those of the pods ``of`` a node that have not ended."""

    of: Mapping[PodUid, PodRecord]
    pods: Mapping[PodUid, PodRecord]


@dataclass(frozen=True, eq=False)
class NodeFacts:
    """Everything known of one node.

    ``problem`` is why its record cannot be used; then there is neither topology nor report.
    ``exists`` is whether a Node object was seen, ``dra_only`` that it advertises no managed
    resource, ``stale`` that its agent has not reported for too long. ``reported`` are pods whose
    devices some report of this boot has shown. ``all_pods_known`` is false where the source names
    only some of the pods (see ``ledger``). ``streaks`` are the kubelet's refusals that count, by
    resource, ``resumed`` when an operator has forgiven them, in seconds since 1970.
    """

    name: NodeName
    all_pods_known: bool = True
    topology: NodeTopology | None = None
    report: Report | None = None
    problem: str | None = None
    record_uid: str = ""
    boot_id: str = ""
    stale: bool = False
    exists: bool = False
    dra_only: bool = False
    pods: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    in_flight: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    leaving: Mapping[PodUid, Leaving] = field(default_factory=dict)
    departed: Mapping[PodUid, Departed] = field(default_factory=dict)
    reported: frozenset[PodUid] = frozenset()
    streaks: Mapping[str, Streaks] = field(default_factory=dict)
    resumed: float = 0.0
    _alive: _Alive | None = field(repr=False, default=None)
    _ledgers: dict[str, Ledger | Unusable] = field(init=False, repr=False, default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether there is anything to know; a node without is forgotten."""
        return bool(
            self.exists or self.topology or self.problem or self.pods or self.in_flight
        )  # leaving pods alone do not keep a node known

    @property
    def alive(self) -> Mapping[PodUid, PodRecord]:
        """The pods that are bound here and have not ended.

        They are carried from facts to facts beside ``pods``: a controller that runs away leaves
        thousands of ended pods on a node, which hold nothing and are not gone through each time.
        """
        known = self._alive
        if known is None or known.of is not self.pods:
            found = {uid: pod for uid, pod in self.pods.items() if not pod.ended}
            known = _Alive(self.pods, found)
            object.__setattr__(self, "_alive", known)
        return known.pods

    @property
    def all_pods(self) -> tuple[PodRecord, ...]:
        """The pods that hold devices here or will: bound, with a bind in flight, or leaving."""
        leaving = (found.pod for found in self.leaving.values())
        return (*self.pods.values(), *self.in_flight.values(), *leaving)

    @property
    def missing(self) -> tuple[MissingGpu, ...]:
        """The GPUs that do not answer their driver, by the last report."""
        return self.report.missing if self.report is not None else ()

    @property
    def promises(self) -> bool:
        """Whether a pod here was promised something that no report has shown kept yet."""
        leaving = (found.pod for found in self.leaving.values())
        return any(
            pod.promised != NO_CONSTRAINTS and pod.uid not in self.reported and not pod.ended
            for pod in (*self.alive.values(), *self.in_flight.values(), *leaving)
        )

    @property
    def too_many_departed(self) -> bool:
        """Whether more pods departed here than anybody can follow."""
        return any(gone.many for gone in self.departed.values())

    def unanswered(self, resource: str) -> list[PodRecord]:
        """Pods over ``resource`` of which nobody has seen yet whether the kubelet takes them."""
        return [
            pod
            for pod in (*self.alive.values(), *self.in_flight.values())
            if not (pod.ended or pod.admitted or pod.uid in self.reported)
            and resource_of(pod) == resource
        ]

    def refusing(self, request: GpuRequest) -> Streak | None:
        """The refusals for which the node takes no pod with this request now.

        None where it takes one. While a pause lasts it takes none, and afterwards one at a time,
        until one is admitted.
        """
        streaks = self.streaks.get(request.resource)
        if streaks is None:
            return None
        return streaks.keeps_away(kind_of(request), self._trying(request.resource))

    def _trying(self, resource: str) -> frozenset[GpuRequest]:
        """The kinds of the pods that the kubelet has not answered."""
        requests = (pod.request for pod in self.unanswered(resource))
        return frozenset(kind_of(found) for found in requests if isinstance(found, GpuRequest))

    def ledger(self, resource: str) -> Ledger | Unusable:
        """The ledger over one resource. There has to be a topology."""
        found = self._ledgers.get(resource)
        if found is None:
            found = self._ledgers[resource] = self._ledger(resource)
        return found

    def availability(self, resource: str) -> Availability | Unusable:
        """What is available of one resource. There has to be a topology."""
        found = self.ledger(resource)
        return found if isinstance(found, Unusable) else found.availability

    def key(self, resource: str) -> Hashable:
        """All that the answers about this node over ``resource`` depend on.

        Nodes with equal keys answer every request alike. Where too many pods have departed nobody
        decides: then a plain pod's answer depends on whether a promise is outstanding.
        """
        key: tuple[object, ...] = (
            self.problem is not None,
            self.report is None,
            self.dra_only,
            self.stale,
            self.report is not None and self.report.not_ready != "",
        )
        streaks = self.streaks.get(resource)
        if streaks is not None:
            key += (streaks.key, self._trying(resource))
        topology = self.topology
        if topology is not None:
            usable = not self.problem and self.report is not None
            available = self.availability(resource) if usable else None
            key += (topology.shape, topology.allocator, topology.resources, available)
            key += (self.missing,)
            key += (self.too_many_departed, self.too_many_departed and self.promises)
        return key

    def without(self, gone: frozenset[PodUid]) -> NodeFacts:
        """The facts if some pods had ended and their devices had been released."""
        report = self.report
        if report is not None:
            kept = tuple(a for a in report.allocations if a.pod_uid not in gone)
            report = replace(report, allocations=kept)
        pods = _without(self.pods, gone)
        return _without_old_departed(
            replace(
                self,
                report=report,
                pods=pods,
                _alive=_Alive(pods, _without(self.alive, gone)),
                in_flight=_without(self.in_flight, gone),
                leaving=_without(self.leaving, gone),
            )
        )

    def _entered(self) -> Iterable[PodRecord]:
        """The pods that the ledger is made of: all but the ended ones that no report shows."""
        shown = {a.pod_uid for a in (self.report.allocations if self.report else ())}
        if "" in shown:
            return self.all_pods  # any pod of that name may be meant
        ended = [self.pods[uid] for uid in shown & self.pods.keys() - self.alive.keys()]
        leaving = (found.pod for found in self.leaving.values())
        return (*self.alive.values(), *sorted(ended, key=_uid), *self.in_flight.values(), *leaving)

    def _ledger(self, resource: str) -> Ledger | Unusable:
        assert self.topology is not None  # noqa: S101 (callers looked)
        try:
            return ledger(
                self.topology,
                self.report,
                self._entered(),
                resource,
                all_pods_known=self.all_pods_known,
                reported=self.reported,
                departed=self.departed.values(),
            )
        except ContradictionError as error:
            return Unusable(str(error))


def _without(found: Mapping[PodUid, T], gone: Container[PodUid]) -> Mapping[PodUid, T]:
    return {uid: value for uid, value in found.items() if uid not in gone}


def _uid(pod: PodRecord) -> PodUid:
    return pod.uid


def resource_of(pod: PodRecord) -> str:
    """The resource that a pod asks for; empty where what it asks cannot be read."""
    return pod.request.resource if isinstance(pod.request, GpuRequest) else ""


def is_heartbeat(report: Report | None, known: Report | None) -> bool:
    """Whether a report says nothing but that its agent lives."""
    return (
        report is not None
        and known is not None
        and replace(report, sequence=0) == replace(known, sequence=0)
    )


# The transitions.


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
    facts = replace(
        facts,
        topology=topology,
        report=report,
        problem=None,
        record_uid=uid,
        leaving=leaving,
    )
    return _let_go(_with_reported(facts))


def without_record(facts: NodeFacts, problem: str | None = None) -> NodeFacts:
    """The record is gone, or cannot be used; the pods stay."""
    return replace(facts, topology=None, report=None, problem=problem, record_uid="")


def with_pod(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """A pod is bound here, or has changed."""
    pods = {**facts.pods, pod.uid: pod}
    alive = _without(facts.alive, {pod.uid}) if pod.ended else {**facts.alive, pod.uid: pod}
    return _without_old_departed(replace(facts, pods=pods, _alive=_Alive(pods, alive)))


def without_pod(facts: NodeFacts, uid: PodUid) -> NodeFacts:
    """A pod is bound here no more, and holds nothing here."""
    return _without_old_departed(replace(facts, pods=_without(facts.pods, frozenset({uid}))))


def with_leaving(facts: NodeFacts, pod: PodRecord, version: int) -> NodeFacts:
    """A pod of this node is gone from the API server as of ``version``; it is bound no more.

    That is one transition: were it nowhere in between, those who departed beside it were forgotten.
    """
    # Its end is not in doubt, only when: so it counts as a pod on its way out. Nobody is left to
    # keep its promise to.
    gone = replace(pod, deleting=True, promised=NO_CONSTRAINTS, survives_endings=False)
    sequence = facts.report.sequence if facts.report else 0
    leaving = {**facts.leaving, pod.uid: Leaving(gone, version, sequence)}
    pods = _without(facts.pods, frozenset({pod.uid}))
    return _let_go(replace(facts, pods=pods, leaving=leaving))


def with_bind_in_flight(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Our bind of the pod to this node is in flight."""
    return _without_old_departed(replace(facts, in_flight={**facts.in_flight, pod.uid: pod}))


def without_bind_in_flight(facts: NodeFacts, uid: PodUid) -> NodeFacts:
    """A bind in flight has ended, one way or the other."""
    return _without_old_departed(
        replace(facts, in_flight=_without(facts.in_flight, frozenset({uid})))
    )


def note_departure(facts: NodeFacts, pod: PodRecord) -> NodeFacts:
    """Remember a pod that ends before any report showed it, if others are unreported too."""
    request = pod.request
    if pod.uid in facts.reported or not isinstance(request, GpuRequest):
        return facts
    beside = _unreported(facts, request.resource) - {pod.uid}
    if not beside:
        return facts
    alike = [
        uid
        for uid, gone in facts.departed.items()
        if isinstance(gone.pod.request, GpuRequest)
        and gone.pod.request.resource == request.resource
    ]
    departed = dict(facts.departed)
    if len(alike) < MOST_DEPARTED:
        departed[pod.uid] = Departed(pod, beside)
    else:
        former = departed.pop(alike[-1])
        here = frozenset(other.uid for other in facts.all_pods)
        departed[pod.uid] = Departed(pod, (beside | former.beside) & here, many=True)
    return _without_old_departed(replace(facts, departed=departed))


def _unreported(
    facts: NodeFacts, resource: str, everybody: Iterable[PodUid] | None = None
) -> frozenset[PodUid]:
    """Who is unreported; ``everybody`` where that cannot be told: all pods, if left out."""
    found: Ledger | Unusable | None = None
    if facts.topology is not None:
        try:
            found = facts.ledger(resource)
        except Interruption:
            raise
        except Exception:  # noqa: BLE001 (a fault of ours shows when the node is asked)
            found = None
    if isinstance(found, Ledger):
        return frozenset(found.unreported)
    return frozenset([pod.uid for pod in facts.all_pods] if everybody is None else everybody)


def _with_reported(facts: NodeFacts) -> NodeFacts:
    """Keep in mind whose devices have been shown since the node booted."""
    report = facts.report
    if report is None:
        return facts
    reported = facts.reported
    if report.boot_id != facts.boot_id:
        facts = replace(facts, boot_id=report.boot_id, departed={}, leaving={})
        reported = frozenset()
    reported &= {pod.uid for pod in facts.all_pods}
    return replace(facts, reported=reported | {a.pod_uid for a in report.allocations})


def _let_go(facts: NodeFacts) -> NodeFacts:
    """Let go of leaving pods of which the kubelet, asked since, shows nothing any more."""
    report = facts.report
    if report is None or report.not_ready or not facts.leaving:
        return _without_old_departed(facts)
    shown = {a.pod_uid for a in report.allocations}
    gone = [
        found
        for uid, found in facts.leaving.items()
        if uid not in shown and found.confirmed_by(report)
    ]
    for found in gone:
        facts = replace(facts, leaving=_without(facts.leaving, frozenset({found.pod.uid})))
        facts = note_departure(facts, found.pod)
    return _without_old_departed(facts)


def _without_old_departed(facts: NodeFacts) -> NodeFacts:
    """Forget departed pods beside whom nobody is unreported any more."""
    if not facts.departed or facts.topology is None or facts.report is None:
        return facts
    kept = {}
    for uid, gone in facts.departed.items():
        request = gone.pod.request
        resource = request.resource if isinstance(request, GpuRequest) else ""
        if uid in _unreported(facts, resource, facts.departed):
            kept[uid] = gone
    return facts if len(kept) == len(facts.departed) else replace(facts, departed=kept)
