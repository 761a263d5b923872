"""What is known of one node at one moment: a value. How it changes is in :mod:`.transitions`.

What follows from the facts (the ledger of each resource, the key of all that answers depend on) is
worked out when it is first asked for, and kept with them.

Pods count that are gone or have ended (:mod:`.departures`), and such as are *in flight*: not bound
yet as far as the API server has told us, while our bind is being written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from scheduler_extender.membership import Group
from scheduler_extender.state.node.contradictions import contradiction
from scheduler_extender.state.node.departures import Departed, Leaving
from scheduler_extender.state.node.ledger import Ledger, ledger
from scheduler_extender.state.node.offer import Offer
from scheduler_extender.state.node.proven import NOTHING_PROVEN, Proven, one_like_the_other
from scheduler_extender.state.node.roster import Roster
from scheduler_extender.state.node.streak import Streak, Streaks, kind_of
from scheduler_extender.state.pods.record import PodRecord, resource_of, without
from scheduler_extender.state.pods.selecting import Destinations
from scheduler_extender.state.pods.standing import Amounts, pieces
from scheduler_extender.wire import Taint
from topology.core.admission import kubelet_of
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.mig import shape_of
from topology.core.placement import (
    DRA_ONLY,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    STALE,
    UNUSABLE,
    Rejection,
)
from topology.core.report import MissingGpu, Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest


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
    status had one). ``proven`` are those of which one was admitted since the node last changed.

    ``released`` are pods that have succeeded and whose devices reports may show for a while yet:
    ``report`` is without them (:mod:`.released`).

    ``kept_for`` is the waiting pod for which a place is kept here. ``departing`` are the pods that
    are gone before that one comes: only its own facts have any (:attr:`kept`).

    ``labels`` and ``taints`` are the Node object's, and ``cordoned`` says that the scheduler sends
    nobody: they say who may be sent here, and no answer of the node itself depends on them.
    ``allocatable`` is what kube-scheduler gives out here, None where nobody said so: it decides how
    many siblings of a gang may be sent here (:meth:`overcounted`).
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
    released: frozenset[PodUid] = frozenset()
    streaks: Mapping[str, Streaks] = field(default_factory=dict)
    admitted: Mapping[str, Mapping[GpuRequest, float]] = field(default_factory=dict)
    proven: Proven = NOTHING_PROVEN
    resumed: float = 0.0
    kept_for: PodRecord | None = None
    departing: frozenset[PodUid] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts | None = None
    _offers: dict[str, Offer | Rejection] = field(init=False, repr=False, default_factory=dict)
    _keys: dict[str, Hashable] = field(init=False, repr=False, default_factory=dict)

    def changed(self, **fields: Any) -> NodeFacts:
        """The facts with some fields changed: :func:`dataclasses.replace`, in a quarter of the
        time. Thousands of pods come at a start, and each changes its node twice."""
        values = list(_VALUES(self))
        for name, value in fields.items():
            values[_AT[name]] = value
        return NodeFacts(*values)

    @property
    def known(self) -> bool:
        """Whether there is anything to know; a node without is forgotten."""
        return bool(
            self.exists
            or self.topology
            or self.problem
            or self.pods
            or self.in_flight
            or self.kept_for
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
        """Whether a pod here was promised something, and may not have its devices yet: no report
        has shown them, and its kubelet has not said that it took the pod. Or a place is kept
        until a time."""
        place = self.kept_for.kept_place if self.kept_for is not None and self.kept else None
        return (place is not None and not place.by_nomination) or any(
            pod.promised != NO_CONSTRAINTS
            and not (pod.ended or pod.admitted or pod.uid in self.reported)
            for pod in self.all_pods
        )

    def shares_promised(self, resource: str) -> bool:
        """Whether a pod here counts on what others do on GPUs that it may share. That stands until
        it has ended, or is deleted."""
        served = self.topology.resource(resource) if self.topology is not None else None
        if served is not None and served.replicas == 1:
            return False
        pods = (*self.alive.values(), *self.in_flight.values())
        return any(pod.counts_on_others(resource) for pod in pods)

    def offer(self, resource: str) -> Offer | Rejection:
        """What the node offers of a resource; or why nothing can be decided about it there."""
        if self.problem is None and self.topology is not None:
            if self.report is None:
                return NO_REPORT
            if self.dra_only or not self.topology.resources:
                return DRA_ONLY
            if self.stale:
                return STALE
            if self.report.not_ready:
                return NOT_READY
        return self.last_offer(resource)

    def last_offer(self, resource: str) -> Offer | Rejection:
        """What the node offered of a resource when its agent last reported, however long ago.

        Before the first report the node counts as empty.
        """
        found = self._offers.get(resource)
        if found is None:
            found = self._offers[resource] = self._offer(resource)
        return found

    def _offer(self, resource: str) -> Offer | Rejection:
        topology = self.topology
        if topology is None:
            return NO_REPORT if self.problem is None else UNUSABLE
        served = topology.resource(resource)
        if served is None:
            return NOT_SERVED
        if self.contradiction(resource) is not None:
            return UNUSABLE
        kubelet = kubelet_of(topology, served, self.missing)
        return Offer(topology, served, kubelet, self._ledger(topology, resource))

    def devices_left(self, resource: str) -> int:
        """The devices that are left of a resource by the last report; 0 if nobody can tell."""
        offer = self.last_offer(resource)
        if self.report is None or isinstance(offer, Rejection):
            return 0
        return offer.availability.devices_left

    def contradiction(self, resource: str) -> str | None:
        """Why the record cannot be true over a resource; None if it can."""
        if self.topology is None:
            return None
        return contradiction(self.topology, self.report or Report(), resource)

    @property
    def too_many_departed(self) -> bool:
        """Whether more pods departed here than anybody can follow."""
        return bool(self.departed) and any(gone.many for gone in self.departed.values())

    @property
    def ending(self) -> frozenset[PodUid]:
        """The pods here that are on their way out: they let go of their devices by themselves."""
        return frozenset((*(p.uid for p in self.alive.values() if p.deleting), *self.leaving))

    @cached_property
    def kept(self) -> NodeFacts | None:
        """The facts for the pod for which a place is kept; None where none is.

        It is on its way here, and was promised what it asks for. Whoever is evicted for it, and
        whoever is ending, lets go before it comes: some of them, or all, may still be here when
        another pod does.
        """
        pod = self.kept_for
        if pod is None or pod.kept_place is None:
            return None
        if pod.uid in self.pods or pod.uid in self.in_flight:
            return None
        departing = pod.kept_place.victims | self.ending
        pods, in_flight = self.pods, dict(self.in_flight)
        for uid in departing:  # deleting, so that their CPUs count as coming free
            if uid in self.alive:
                pods = pods.with_pod(replace(self.alive[uid], deleting=True))
            if uid in in_flight:
                in_flight[uid] = replace(in_flight[uid], deleting=True)
        facts = replace(self, pods=pods, in_flight=in_flight, departing=departing, kept_for=None)
        return facts.with_place_for(pod)

    def is_open_to(self, pod: PodRecord) -> bool:
        """Whether kube-scheduler may send a pod here: :meth:`is_one_of` its destinations."""
        return self.is_one_of(pod.standing.destinations)

    def is_one_of(self, destinations: Destinations) -> bool:
        """Whether kube-scheduler may send a pod with these destinations here, by the pod's
        selectors and the node's taints. Where no Node object is known everybody may come."""
        return not self.exists or destinations.include(
            self.name, self.labels, self.taints, cordoned=self.cordoned
        )

    def yielding_to(self, priority: int, gang: Group | None = None) -> NodeFacts:
        """The facts for a pod from which the place that is kept here is not kept."""
        return replace(self, kept_for=None) if self.yields_to(priority, gang) else self

    def yields_to(self, priority: int, gang: Group | None = None) -> bool:
        """Whether a place is kept here that is not kept from a pod of this priority in this gang.

        That of a nominated pod is not kept from those of higher priority. That of a member of the
        gang counts among its siblings that may come first, and is not counted a second time.
        """
        waiting = self.kept_for
        if waiting is None or waiting.kept_place is None:
            return False
        if gang is not None and waiting.gang == gang:
            return True
        return waiting.kept_place.by_nomination and waiting.standing.priority < priority

    def keeps_place_for(self, uid: PodUid) -> bool:
        """Whether a place is kept here for this pod."""
        return self.kept_for is not None and self.kept_for.uid == uid

    def with_place_for(self, pod: PodRecord) -> NodeFacts:
        """The facts if a pod were bound here with a promise of what it requires."""
        request = pod.request
        promised = NO_CONSTRAINTS
        if isinstance(request, GpuRequest) and request.required:
            promised = request.constraints
        survives = promised != NO_CONSTRAINTS
        ours = replace(pod, node=self.name, promised=promised, survives_endings=survives)
        return replace(self, in_flight={**self.in_flight, pod.uid: ours})

    def overcounted(self, resource: str) -> int:
        """The devices that kube-scheduler takes for free here, and that are not: neither now, nor
        once the pods that are ending have let go.

        So it is with a GPU that the plugin calls sick, until the node's status says so. 0 where
        nobody knows what kube-scheduler counts. O(pods of the node).
        """
        given = pieces(self.allocatable or (), resource)
        if given is None or not self.all_pods_known:
            return 0
        offer = self.last_offer(resource)
        if isinstance(offer, Rejection):
            return 0
        for pod in (*self.alive.values(), *self.in_flight.values()):
            asked = pod.request
            if not isinstance(asked, GpuRequest):
                return 0
            given -= asked.effective_count if asked.resource == resource else 0
        available = offer.availability
        return max(0, given - available.devices_left - available.devices_ending)

    def gives_out(self, resource: str) -> bool:
        """Whether the Node object has some of a resource for pods; False where that is unknown."""
        return bool(pieces(self.allocatable or (), resource))

    def unanswered(self, resource: str) -> list[PodRecord]:
        """Pods over ``resource`` of which nobody has seen yet whether the kubelet takes them."""
        return [
            pod
            for pod in (*self.alive.values(), *self.in_flight.values())
            if not (pod.ended or pod.admitted or pod.uid in self.reported)
            and resource_of(pod) == resource
        ]

    def surely_admits(self, request: GpuRequest) -> bool:
        """Whether the kubelet admits a pod with this request like the last one of its kind, if it
        has devices enough and the model knows of no hazard."""
        kind = kind_of(request)
        return (
            kind in self.proven.kinds
            and self.topology is not None
            and one_like_the_other(kind, self.topology.allocator)
        )

    def unproven(self) -> NodeFacts:
        """The facts after a change of the node: what its kubelet answered before proves nothing."""
        return self.changed(proven=Proven(beside=self.here))

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

    def key(self, resource: str) -> Hashable:
        """All that the answers about this node over ``resource`` depend on.

        Nodes with equal keys answer every request alike. Where something is not known of the node,
        or of the cluster, a plain pod's answer depends on whether a promise stands.
        """
        found = self._keys.get(resource)
        if found is None:
            found = self._keys[resource] = self._key(resource)
        return found

    def prepare(self) -> None:
        """Work out now what the next question about the node needs.

        A fault of ours is left for then: it shows when the node is asked.
        """
        for served in self.topology.resources if self.topology is not None else ():
            try:
                self.key(served.name)
            except Exception:  # noqa: BLE001
                return

    def _key(self, resource: str) -> Hashable:
        key: tuple[object, ...] = (
            self.problem is not None,
            self.report is None,
            self.dra_only,
            self.stale,
            self.report is not None and self.report.not_ready != "",
            self.promises,
            self.shares_promised(resource),
        )
        streaks = self.streaks.get(resource)
        if streaks is not None:
            key += (streaks.key, self._trying(resource))
            if streaks.closing_to_new is not None:
                key += (frozenset(self.admitted.get(resource, ())),)
        topology = self.topology
        served = None if topology is None else topology.resource(resource)
        if topology is not None and served is None:
            # Whatever else is on it.
            return (*key, bool(topology.resources), self.gives_out(resource))
        if topology is not None and served is not None:
            usable = not self.problem and self.report is not None
            offer = self.last_offer(resource) if usable else None
            available = offer.availability if isinstance(offer, Offer) else None
            shape = shape_of(topology, served)  # profiles and memory of MIG instances are in it
            key += (shape, topology.allocator, topology.resources, available, offer is UNUSABLE)
            key += (self.missing, self.overcounted(resource) if usable else 0)
            key += (self.too_many_departed,)
        if self.kept_for is not None and self.kept is not None:
            key += (self.kept_for.uid, self.kept_for.kept_place, self.kept.key(resource))
        return key

    def without(self, gone: frozenset[PodUid]) -> NodeFacts:
        """The facts if some pods had ended and their devices had been released.

        A place that is kept for one of them is kept no more.
        """
        report = self.report
        waiting = self.kept_for
        if report is not None:
            kept = tuple(a for a in report.allocations if a.pod_uid not in gone)
            report = replace(report, allocations=kept)
        return replace(
            self,
            report=report,
            pods=self.pods.without(gone),
            in_flight=without(self.in_flight, gone),
            leaving=without(self.leaving, gone),
            kept_for=None if waiting is not None and waiting.uid in gone else waiting,
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
        topology = self.topology
        if topology is not None:
            with suppress(Exception):  # a fault of ours shows when the node is asked
                offer = self.last_offer(resource)
                if isinstance(offer, Offer):
                    return frozenset(offer.ledger.unreported)
                if offer is NOT_SERVED and self.contradiction(resource) is None:
                    return frozenset(self._ledger(topology, resource).unreported)
        return self.here if everybody is None else frozenset(everybody)

    def _entered(self) -> Iterable[PodRecord]:
        """The pods that the ledger is made of: all but the ended ones that no report shows."""
        ended = self.pods.ended_shown_by(self.report or Report()) if self.pods.any_ended else ()
        leaving = [found.pod for found in self.leaving.values()]
        return (*self.alive.values(), *ended, *self.in_flight.values(), *leaving)

    def _ledger(self, topology: NodeTopology, resource: str) -> Ledger:
        return ledger(
            topology,
            self.report,
            self._entered(),
            resource,
            all_pods_known=self.all_pods_known,
            reported=self.reported,
            departed=self.departed.values(),
            departing=self.departing,
        )


_AT = {given.name: i for i, given in enumerate(g for g in fields(NodeFacts) if g.init)}
_VALUES = attrgetter(*_AT)
