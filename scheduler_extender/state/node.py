"""What is known of one node at one moment: a value. How it changes is in :mod:`.transitions`.

What follows from the facts (the ledger of each resource, the key of all that answers depend on) is
worked out when it is first asked for, and kept with them.

Three kinds of pods are no longer with the API server or have ended, and still count:

*leaving*   deleted, and no report has shown yet that the kubelet has let go
*departed*  ended before any report showed it, while other pods were unreported (see ``ledger``)
*in flight* not bound yet as far as the API server has told us: our bind is being written
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler_extender.state.ledger import ContradictionError, Departed, Leaving, Ledger, ledger
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.roster import Roster
from scheduler_extender.state.streak import Streak, Streaks, kind_of
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.remembering import Interruption
from topology.core.report import MissingGpu, Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

UNKNOWN_VERSION = -1
"""In place of a resourceVersion that cannot be compared with others."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unusable:
    """In place of a ledger: the record contradicts itself, and ``why``."""

    why: str


@dataclass(frozen=True, eq=False)
class NodeFacts:
    """Everything known of one node.

    ``problem`` is why its record cannot be used; then there is neither topology nor report.
    ``exists`` is whether a Node object was seen, ``dra_only`` that it advertises no managed
    resource, ``stale`` that its agent has not reported for too long. ``all_pods_known`` is false
    where the source names only some of the pods (see ``ledger``).

    ``reported`` are pods whose devices some report of this boot has shown, ``unsettled`` those that
    waited for it while the node's GPUs changed (:func:`.transitions.offers_the_same`).

    ``streaks`` are the kubelet's refusals that count, by resource, ``resumed`` when an operator has
    forgiven them, in seconds since 1970. ``admitted`` are the kinds of pods, by resource, of which
    the kubelet has admitted one, with the latest start time by its clock (minus infinity where no
    status had one).
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
    pods: Roster = field(default_factory=Roster)
    in_flight: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    leaving: Mapping[PodUid, Leaving] = field(default_factory=dict)
    departed: Mapping[PodUid, Departed] = field(default_factory=dict)
    reported: frozenset[PodUid] = frozenset()
    unsettled: frozenset[PodUid] = frozenset()
    streaks: Mapping[str, Streaks] = field(default_factory=dict)
    admitted: Mapping[str, Mapping[GpuRequest, float]] = field(default_factory=dict)
    resumed: float = 0.0
    _ledgers: dict[str, Ledger | Unusable] = field(init=False, repr=False, default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether there is anything to know; a node without is forgotten."""
        return bool(
            self.exists or self.topology or self.problem or self.pods or self.in_flight
        )  # leaving pods alone do not keep a node known

    @property
    def alive(self) -> Mapping[PodUid, PodRecord]:
        """The pods that are bound here and have not ended."""
        return self.pods.alive

    @property
    def all_pods(self) -> tuple[PodRecord, ...]:
        """The pods that hold devices here or will: bound, with a bind in flight, or leaving."""
        leaving = (found.pod for found in self.leaving.values())
        return (*self.pods.values(), *self.in_flight.values(), *leaving)

    @property
    def here(self) -> frozenset[PodUid]:
        """The pods of :attr:`all_pods` that are not known to have ended."""
        return frozenset((*self.alive, *self.in_flight, *self.leaving))

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
        resource = request.resource
        admitted = self.admitted.get(resource, {})
        return streaks.keeps_away(kind_of(request), self._trying(resource), admitted)

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
            if streaks.closing_to_new is not None:
                key += (frozenset(self.admitted.get(resource, ())),)
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
        return replace(
            self,
            report=report,
            pods=self.pods.without(gone),
            in_flight=without(self.in_flight, gone),
            leaving=without(self.leaving, gone),
        ).without_old_departed()

    def without_old_departed(self) -> NodeFacts:
        """The facts without departed pods beside whom nobody is unreported any more."""
        if not self.departed or self.topology is None or self.report is None:
            return self
        resources = {resource_of(gone.pod) for gone in self.departed.values()}
        unreported = {found: self.unreported(found, self.departed) for found in resources}
        kept = {
            uid: gone
            for uid, gone in self.departed.items()
            if uid in unreported[resource_of(gone.pod)]
        }
        return self if len(kept) == len(self.departed) else replace(self, departed=kept)

    def unreported(
        self, resource: str, everybody: Iterable[PodUid] | None = None
    ) -> frozenset[PodUid]:
        """Who is unreported; ``everybody`` where that cannot be told: all that have not ended, if
        left out."""
        found: Ledger | Unusable | None = None
        if self.topology is not None:
            try:
                found = self.ledger(resource)
            except Interruption:
                raise
            except Exception:  # noqa: BLE001 (a fault of ours shows when the node is asked)
                found = None
        if isinstance(found, Ledger):
            return frozenset(found.unreported)
        return self.here if everybody is None else frozenset(everybody)

    def _entered(self) -> Iterable[PodRecord]:
        """The pods that the ledger is made of: all but the ended ones that no report shows.

        It shows devices by the pods' UIDs, where the agent knows them, and CPUs by their names.
        """
        report = self.report or Report()
        shown = {a.pod_uid for a in report.allocations}
        names = {(a.namespace, a.pod) for a in report.allocations if not a.pod_uid}
        names |= {(held.namespace, held.pod) for held in report.holdings or ()}
        ended = {pod for uid in shown if (pod := self.pods.get(uid)) is not None and pod.ended}
        for name in names:
            ended.update(self.pods.ended_named(name))
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


def without(found: Mapping[PodUid, T], gone: Collection[PodUid]) -> Mapping[PodUid, T]:
    """What is found of all pods but those that are gone."""
    return {uid: value for uid, value in found.items() if uid not in gone}


def _uid(pod: PodRecord) -> PodUid:
    return pod.uid


def resource_of(pod: PodRecord) -> str:
    """The resource that a pod asks for; empty where what it asks cannot be read."""
    return pod.request.resource if isinstance(pod.request, GpuRequest) else ""
