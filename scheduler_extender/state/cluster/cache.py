"""Everything that is known now, and the one way in which the facts of a node change: of nodes, also
their domains, reservations, and what time changes.

A pod that we bind is *assumed* from the decision on: it counts on its node before the API server
has told us of it (:mod:`.pods` draws its life). :meth:`.Cache.assume`, :meth:`.Cache.forget`,
:meth:`.Cache.confirm` and :meth:`.Cache.assumed` may be called from any thread. For every other
method the caller holds the lock.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.classes import EquivalenceClasses
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.refusing import with_pauses_ended
from scheduler_extender.state.answers.tallies import Faults
from scheduler_extender.state.cluster.freshness import Due
from scheduler_extender.state.cluster.pods import Pods
from scheduler_extender.state.cluster.snapshot import LastGroupPlaces
from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.groups.domains import Domains, domain_of, same_domains
from scheduler_extender.state.groups.groups import Groups
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.node.transitions import with_stale_report
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.reservation import Reservation
from topology.core.devices import NodeName, PodUid


class Nodes:
    """All nodes that are known. The cluster's lock guards it."""

    def __init__(self, settings: Settings) -> None:
        self._nobody = Occupants(complete=settings.all_pods_known)
        self.facts = CopyOnWrite[NodeName, NodeFacts]()
        self.places = CopyOnWrite[NodeName, PodRecord]()  # for whom a place is reserved on a node
        self.kinds: dict[str, Domains] = {}
        """The kinds of domains that a pod has named, replaced by each move. A kind of which no node
        has a domain is none: pods can name any label, and only those that nodes have are listed."""
        self.label_keys: frozenset[str] = frozenset()  # of the labels that nodes have
        self._labels = Counter[str]()
        self.moves = 0  # how often a node has come to another domain
        self._stale_after = settings.stale_after
        self.stale = Due[NodeName]()  # nodes by when they have not reported for too long
        self.pausing = Due[NodeName]()  # nodes by when their first pause ends

    def get(self, name: NodeName) -> NodeFacts:
        """What is known of a node; empty where nobody told us of it."""
        return self.facts.get(name) or NodeFacts(name, pods=self._nobody)

    def put(self, facts: NodeFacts) -> tuple[NodeFacts | None, bool]:
        """A node's facts are these now. What they were, and whether the node counts otherwise in
        its domains: it is in others, or cordoned or not."""
        name = facts.name
        before = self.facts.get(name)
        if facts.known:
            self.facts.put(name, facts)
        elif self.facts.pop(name) is not None:
            self.stale.drop(name)
        if facts.reserved_for is not None:
            self.places.put(name, facts.reserved_for)
        else:
            self.places.pop(name)
        if before is not None and facts.known and same_domains(before, facts):
            return before, before.node_object.cordoned != facts.node_object.cordoned
        if before is not None or facts.known:
            self._moved(before, facts)
        return before, True

    def _moved(self, before: NodeFacts | None, facts: NodeFacts) -> None:
        """A node is in other domains, or has come, or is gone."""
        self.moves += 1
        after = facts if facts.known else None
        if after is not None:
            self._labels.update(after.node_object.labels.keys())
        if before is not None:
            self._labels.subtract(before.node_object.labels.keys())
        self.label_keys = frozenset(key for key, nodes in self._labels.items() if nodes)
        kinds = {}
        for kind, domains in dict(self.kinds).items():
            former = None if before is None else domain_of(before, kind)
            now = None if after is None else domain_of(after, kind)
            if former != now:
                domains = domains.with_move(facts.name, former, now)
            if domains.nodes:
                kinds[kind] = domains
        self.kinds = kinds

    def heard(self, name: NodeName, at: float) -> None:
        """A node's report has changed."""
        if self._stale_after is not None:
            self.stale.put(name, at + self._stale_after)

    def note_pauses(self, facts: NodeFacts) -> None:
        """Note when the first pause of a node ends (see :mod:`.node.backoff`)."""
        ends = [end for backoffs in facts.history.backoffs.values() for end in backoffs.pauses]
        if ends:
            self.pausing.put(facts.name, min(ends))
        else:
            self.pausing.drop(facts.name)


class Cache:
    """The nodes, pods, groups and reservations that are known, and the remembered answers."""

    def __init__(self, clock: Callable[[], float], settings: Settings) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.today: Callable[[], float] = time.time  # people say so until when a place is reserved
        self.settings = settings
        self.faults = Faults()
        self.nodes = Nodes(settings)
        self.pods = Pods()
        self.groups = Groups()
        self.reservations_end = Due[PodUid]()  # pods by the time of day at which their places end
        self.classes = EquivalenceClasses(self.lock)
        self.answers = AnswerCache(self.lock, self.classes)
        self.group_places = LastGroupPlaces(self.lock, self.classes)
        self.node_objects = False  # Node objects are watched
        self.racks_wanted = False  # a pod has asked for its group to share an NVLink domain
        self.version = 0  # see :attr:`.Cluster.version`
        self.on_change: list[Callable[[NodeName], None]] = []

    def expire(self) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses and reservations
        that are over."""
        now = self.clock()
        nodes = self.nodes
        for name in nodes.stale.take(now):
            if (facts := nodes.get(name)).report is not None:
                self.put(with_stale_report(facts))
        for name in nodes.pausing.take(now):
            before = nodes.get(name)
            facts = with_pauses_ended(before, now)
            if facts is not before:
                self.put(facts)
            nodes.note_pauses(facts)
        for uid in self.reservations_end.take(self.today()):
            pod = self.pods.get(uid)
            if pod is not None and pod.reservation is not None:
                self.reserve(pod.reservation.node)

    def put(self, facts: NodeFacts, *, changed: bool = True) -> None:
        """A node's facts are these now; ``changed`` says that its answers may be others."""
        name = facts.name
        before, counts_otherwise = self.nodes.put(facts)
        if changed or counts_otherwise:

            def domains(kind: str) -> Iterable[str | None]:
                return (domain_of(each, kind) for each in (before, facts) if each is not None)

            self.classes.changed(name, answers=changed, counts_otherwise=counts_otherwise)
            self.answers.changed(domains)
            self.group_places.changed(name)
            self.tell(name)
        self.version += changed
        # Nobody is nominated to a node of which nothing was known: else a place was reserved there.
        changes = set[NodeName]()
        if before and _what_decides_nominees(before) != _what_decides_nominees(facts):
            changes.add(name)
        claimed = _claimed(facts)
        for uid in claimed ^ (_claimed(before) if before else frozenset()):
            changes.update(self.pods.claim(uid, name, ends=uid not in claimed))
        for each in changes:
            self.reserve(each)

    def tell(self, name: NodeName) -> None:
        """Tell the listeners that what a node can offer may have changed."""
        for listener in self.on_change:
            listener(name)

    def reserve(self, name: NodeName) -> None:
        """Reserve the place on a node that is to be kept there now, or none.

        Under DRA kube-scheduler nominates a pod when it has chosen devices for it, and before the
        pod's claim says which. So all that it has nominated are on their way, as if their binds
        were in flight, and none is kept a place.
        """
        facts = self.nodes.get(name)
        nominees = self._nominees(facts)
        coming = {pod.uid: replace(pod, node=name) for pod in nominees if facts.by_dra}
        flying = {uid: pod for uid, pod in self.pods.in_flight.now.items() if pod.node == name}
        before, now = facts.pods.in_flight, {**coming, **flying}
        if before != now:
            facts = replace(facts, pods=replace(facts.pods, in_flight=now)).without_old_departed()
            self.put(facts)
            for uid in before.keys() | now.keys():
                if before.get(uid) != now.get(uid):
                    self.count_member(uid)
        pod = self._annotated(name)
        if pod is None and nominees and not facts.by_dra:
            first = min(nominees, key=lambda pod: (-pod.standing.priority, pod.uid))
            pod = replace(first, reservation=Reservation(name, inf))
        if _place_of(pod) != _place_of(facts.reserved_for):
            self.put(replace(facts, reserved_for=pod))

    # Assumed pods: their bind is being written, or may have been.

    def assume(
        self, name: NodeName, pod: PodRecord, *, seen: NodeFacts | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server knows: its bind is in flight.

        With ``seen`` only while the answer that was worked out on these facts holds; else None.
        That is while the node is still in the same state, and in the same state without this pod
        if a bind of it is in flight here already: it is decided about as if it were not there.
        """
        with self.lock:
            self.expire()
            facts = self.nodes.get(name)
            if seen is not None and facts is not seen:
                resource = resource_of(pod)
                if facts.key(resource) != seen.key(resource):
                    return None
                gone = frozenset({pod.uid} & facts.pods.in_flight.keys())
                if gone and facts.without(gone).key(resource) != seen.without(gone).key(resource):
                    return None
            ours = replace(pod, node=name)
            self._assume(ours)
            return ours

    def forget(self, ours: PodRecord, before: PodRecord | None = None) -> None:
        """Undo :meth:`assume`: the bind was surely not written. ``before`` stands again.

        Nothing happens where it is not ours any more: another bind of the pod has begun, or its
        end is known.
        """
        with self.lock:
            if self.assumed(ours.uid) is not ours:
                return
            if before is None:
                self.confirm(ours.uid)
            else:
                self._assume(before)

    def confirm(self, uid: PodUid) -> None:
        """A pod is assumed no more: what its source says of it has taken over."""
        with self.lock:
            pod = self.pods.in_flight.pop(uid)
            if pod is not None and pod.node is not None:
                self.reserve(pod.node)

    def assumed(self, uid: PodUid) -> PodRecord | None:
        """An assumed pod, as our bind will have it."""
        with self.lock:
            return self.pods.in_flight.get(uid)

    def _assume(self, pod: PodRecord) -> None:
        assert pod.node is not None  # noqa: S101 (each is assumed for a node)
        self.pods.in_flight.put(pod.uid, pod)
        self.reserve(pod.node)

    def count_member(self, uid: PodUid) -> None:
        """A pod counts in its group where it is bound, its bind is in flight, or devices have been
        chosen for it; else it is still to come, or gone."""
        pod = self.pods.get(uid)
        if pod is None or pod.node is None:
            nominated = self.pods.nominated.get(uid)
            to = nominated and nominated.standing.nominated
            coming = to and self.nodes.get(to).pods.in_flight.get(uid)
            pod = self.pods.in_flight.get(uid) or coming or pod
        if pod is not None and pod.node is not None:
            self.groups.put(pod)
            return
        self.groups.drop(uid)
        if pod is not None:
            self.groups.expect(pod)

    def _annotated(self, name: NodeName) -> PodRecord | None:
        """The pod whose annotation reserves a place on a node: of several the oldest."""
        pods = [
            pod
            for pod in self.pods.reserved_on.on(name)
            if pod.reservation is not None
            and pod.reservation.lasts(self.today())
            and not _is_not_scheduled(pod)
        ]
        return min(pods, key=_by_age, default=None)

    def _nominees(self, facts: NodeFacts) -> list[PodRecord]:
        """The pods that kube-scheduler has nominated to a node. Elsewhere than under DRA it keeps a
        number of GPUs, and not which ones, for the one of highest priority."""
        return [
            pod
            for pod in self.pods.nominated_to.on(facts.name)
            if not _is_not_scheduled(pod) and facts.is_open_to(pod)
        ]


def _is_not_scheduled(pod: PodRecord) -> bool:
    """Whether kube-scheduler does not look at a pod: no pod is kept off a node for it."""
    return pod.ended or pod.deleting or pod.gated


def _by_age(pod: PodRecord) -> tuple[float, PodUid]:
    """Pods in this order are the oldest first."""
    return inf if pod.created is None else pod.created, pod.uid


def _what_decides_nominees(facts: NodeFacts) -> object:
    """All of a node that says which nominated pods may come to it, and what is kept for them."""
    node = facts.node_object
    open_to = (node.exists, node.cordoned, node.labels, node.taints)
    return (facts.by_dra, facts.by_plugin, *open_to)


def _claimed(facts: NodeFacts) -> frozenset[PodUid]:
    """The pods that have devices of a node by claims."""
    report = facts.report if facts.by_dra else None
    return frozenset(each.pod_uid for each in report.allocations) if report else frozenset()


def _place_of(pod: PodRecord | None) -> object:
    """All that a node's answers depend on of the pod for which a place is reserved there."""
    return pod and (pod.uid, pod.request, pod.reservation)
