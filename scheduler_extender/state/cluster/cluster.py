"""The cluster as we know it now: what sources feed, from their own threads, and snapshots of it.

One lock guards a few plain parts: nodes, pods, groups, binds in flight, kept places, and what is
remembered of answers. Nothing under it does I/O, and no answer is worked out under it: who asks
takes a :class:`.Snapshot`. The exceptions are the few answers that the event loop works out itself,
and the last try of a bind on a node that changes all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from scheduler_extender.deadline import NO_DEADLINE, Deadline, NotAtOnceError
from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.membership import NVLINK_DOMAIN
from scheduler_extender.state.answers import refusing
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.faults import Faults
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.answers.remembered import Remembered, Size
from scheduler_extender.state.answers.tallies import Tallies
from scheduler_extender.state.cluster import freshness
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.cluster.keptplaces import KeptPlaces, is_not_scheduled
from scheduler_extender.state.cluster.nodes import Nodes
from scheduler_extender.state.cluster.pods import Pods
from scheduler_extender.state.cluster.snapshot import LastKeeping, Parts, Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.gangdomains import GangDomains
from scheduler_extender.state.groups.groups import Groups
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.transitions import TakenRecord
from scheduler_extender.state.node.verification import Surprise, Verified, verify
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.keptplace import KeptPlace
from scheduler_extender.state.pods.record import PodRecord, resource_of, with_promise_of
from scheduler_extender.state.pods.standing import Others, nobody_knows
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest


class Cluster:
    """What is known of all nodes and pods. Methods may be called from any thread."""

    def __init__(
        self,
        clock: Callable[[], float],  # seconds; only has to run forward
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,  # that feed it, as they are now
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.watches = watches
        self.today: Callable[[], float] = time.time  # people say so until when a place is kept
        self.budgets: Budgets | None = None
        self.others: Others = nobody_knows  # asked about pods without devices; with no lock held
        self.faults = Faults()
        self.tallies = Tallies()
        self.reports_out_of_order = 0
        self.version = 0
        """Grows whenever what people are shown may have changed: a node, or a pod. To be read
        without the lock; heartbeats that say nothing new do not count."""
        self._lock = threading.RLock()
        self._nodes = Nodes(settings)
        self._pods = Pods()
        self._groups = Groups()
        self._kept_places = KeptPlaces()
        self._remembered = Remembered(self._lock)
        self._keeping = LastKeeping(self._lock, self._remembered)
        self._gangs = GangDomains()
        self._node_objects = self._racks_wanted = False
        # Called whenever what a node can offer may have changed: under the lock, to take a note.
        self.on_change: list[Callable[[NodeName], None]] = []
        # Called by whoever feeds a report that shows what was not foreseen, or a pod that a kubelet
        # has refused and we had seen before. They should not be kept waiting.
        self.on_surprise: list[Callable[[Surprise], None]] = []
        self.on_refusal: list[Callable[[NodeRefusal], None]] = []

    def snapshot(self, deadline: Deadline = NO_DEADLINE) -> Snapshot:
        """All that is known now."""
        with self._lock:
            self._expire(deadline)
            nodes, pods = self._nodes, self._pods
            return Snapshot(
                Parts(
                    self.settings,
                    self.clock,
                    self.faults,
                    self._remembered,
                    self._keeping,
                    self._gangs,
                ),
                nodes.facts.copy(),
                pods.waiting.copy(),
                pods.in_flight.copy(),
                pods.nominated.copy(),
                nodes.places.copy(),
                self._kept_places.settled(self.clock()),
                self._groups.seen(),
                nodes.kinds,
                nodes.label_keys,
                self._remembered.moment,
                nodes.moves,
                self._remembered.mix,
                self.blind(),
                self._racks_wanted,
                self.today(),
                self.budgets,
                self.others,
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Several steps as one. Nothing inside may wait for anything."""
        with self._lock:
            yield

    @contextmanager
    def locked_if_free(self) -> Iterator[None]:
        """Like :meth:`locked`. Raises :class:`NotAtOnceError` where it would have to wait."""
        if not self._lock.acquire(blocking=False):
            raise NotAtOnceError
        try:
            yield
        finally:
            self._lock.release()

    # What is known now, piece by piece.

    def facts(self, name: NodeName) -> NodeFacts:
        """What is known of a node now; empty where nobody told us of it."""
        with self._lock:
            self._expire()
            return self._nodes.get(name)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        with self._lock:
            return self._pods.get(uid)

    def has_node(self, name: NodeName) -> bool:
        """Whether the node exists, as far as we know: where Node objects are watched, one does."""
        with self._lock:
            facts = self._nodes.facts.get(name)
            return facts is not None and (facts.node_object.exists or not self._node_objects)

    def blind(self) -> bool:
        """Whether a watch has told us nothing for so long that our picture may be wrong."""
        return bool(freshness.blind(self.watches(), self.clock()))

    def unready(self) -> tuple[str, ...]:
        """The watches that have been blind for too long to go on answering."""
        return freshness.unready(self.watches(), self.clock())

    def remembered(self) -> Size:
        """How much is remembered."""
        return self._remembered.size()

    def forget_answers(self) -> None:
        """Forget every remembered answer; the next ones are worked out anew."""
        with self._lock:
            self._remembered.clear()
            self._keeping.clear()

    def tell_of_all_nodes(self) -> None:
        """Tell the listeners of every node: any of them may be news, as after a time in which a
        watch was blind."""
        with self._lock:
            for name in self._nodes.facts.now:
                self._tell(name)

    def expire(self) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses and kept places
        that are over."""
        with self._lock:
            self._expire()

    def _expire(self, deadline: Deadline = NO_DEADLINE) -> None:
        now = self.clock()
        deadline.need_quick(quick=self._nodes.staleness.overdue(now) <= AT_ONCE_STATES)
        for facts in self._nodes.expired(now):
            self._put(facts)
        for name in self._kept_places.ended(now):
            self._keep_place(name)

    # Nodes and their records.

    def put_record(
        self, topology: NodeTopology, report: Report | None, *, uid: str = "", age: float = 0.0
    ) -> None:
        """Take in a node's record. A report that is older than the one we hold is passed over.

        ``uid`` is the record's own: one that was deleted and made anew starts its numbers again.
        ``age`` is how many seconds ago the agent looked, by its own word; it counts for the first
        report that we see of a node, later ones are as old as their arrival. What a report shows is
        then held against what was foreseen, outside the lock.
        """
        hash(topology.shape)  # worked out once for each kind of hardware, and not under the lock
        with self._lock:
            taken = self._take_record(topology, report, uid, age)
        self._verify(taken)
        if taken.changed:
            taken.after.prepare()  # by whoever feeds the record, and not by the next pod that asks

    def put_report(self, name: NodeName, report: Report) -> bool:
        """Take in a report on its own; False where the node has no record to belong to."""
        facts = self.facts(name)
        if facts.topology is None:
            return False
        self.put_record(facts.topology, report, uid=facts.record.uid)
        return True

    def _take_record(
        self, topology: NodeTopology, report: Report | None, uid: str, age: float
    ) -> TakenRecord:
        """Take a record in."""
        before, report = transitions.without_released(self._nodes.get(topology.name), report)
        known, anew = before.report, uid != before.record.uid
        if report is not None and known is not None and not anew and not report.follows(known):
            self.reports_out_of_order += 1
            report = known
        same = before.topology == topology
        if same and before.topology is not None:
            topology = before.topology  # with what is worked out about it
        heard = report != known or not same or before.record.problem is not None or anew
        heartbeat = same and not before.record.stale and transitions.is_heartbeat(report, known)
        after = self._with_shown(before, transitions.with_record(before, topology, report, uid))
        if heard:
            if after.record.stale:
                after = replace(after, record=replace(after.record, stale=False))
            since = max(0.0, age) if known is None else 0.0
            self._nodes.staleness.heard(topology.name, self.clock() - since)
        moved = (
            after.history.streaks is not before.history.streaks
            or after.history.admitted is not before.history.admitted
            or after.pods.leaving.keys() != before.pods.leaving.keys()
            or after.pods.departed.keys() != before.pods.departed.keys()
        )
        changed = (heard and not heartbeat) or moved
        self._put(after, changed=changed)
        told_anew = same and heard and None not in (known, report)
        return TakenRecord(before, after, changed, told_anew)

    def _with_shown(self, before: NodeFacts, after: NodeFacts) -> NodeFacts:
        """Pods that a report shows for the first time have been admitted.

        The first report that we see of a node tells nothing of when, nor does one of a pod that has
        ended meanwhile.
        """
        if after.history.streaks and before.report is not None:
            for uid in after.pods.reported - before.pods.reported:
                pod = after.pods.bound.get(uid)
                if pod is not None and not pod.ended:
                    after = refusing.with_pod_admitted(after, pod, self.clock())
        return after

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Note that a node's record cannot be used, and why."""
        with self._lock:
            facts = self._nodes.get(name)
            if facts.record.problem != problem:
                self._nodes.staleness.forget(name)
                self._put(transitions.without_record(facts, problem))

    def drop_record(self, name: NodeName) -> None:
        """Forget a node's record; its pods stay."""
        with self._lock:
            facts = self._nodes.facts.get(name)
            if facts is not None:
                self._nodes.staleness.forget(name)
                self._put(transitions.without_record(facts))

    def keep_records(self, names: set[NodeName]) -> None:
        """Forget the record of every node that a complete list did not name."""
        with self._lock:
            for name, facts in list(self._nodes.facts.now.items()):
                if name not in names and (facts.topology or facts.record.problem):
                    self.drop_record(name)

    def put_node(self, name: NodeName, node_object: NodeObject, resumed: float = 0.0) -> None:
        """Note what a Node object says, and that it exists.

        ``resumed`` is up to when an operator forgives its refusals, in seconds since 1970.
        """
        with self._lock:
            self._node_objects = True
            before = self._nodes.get(name)
            facts = refusing.with_resumed(before, resumed, self.clock())
            known = before.node_object
            changed = known.dra_only != node_object.dra_only or facts.history is not before.history
            labels = known.labels if known.labels == node_object.labels else node_object.labels
            facts = replace(facts, node_object=replace(node_object, exists=True, labels=labels))
            other_amounts = node_object.allocatable != known.allocatable
            if other_amounts and _gives_out_others(before, facts):
                facts, changed = facts.unproven(), True
            self._put(facts, changed=changed)
            self._nodes.queue_pauses(before, facts)

    def put_labels(self, name: NodeName, node_object: NodeObject) -> None:
        """Take what is told of a known node where Node objects are not watched.

        Where it says that the object exists, nothing else is to be told: then it says who may be
        sent there. Whether the node advertises a managed resource it does not say.
        """
        with self._lock:
            before = self._nodes.facts.get(name)
            if before is not None:
                known = before.node_object
                exists = node_object.exists or known.exists
                told = replace(node_object, exists=exists, dra_only=known.dra_only)
                changed = told.allocatable != known.allocatable
                self._put(replace(before, node_object=told), changed=changed)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods go by themselves."""
        with self._lock:
            facts = self._nodes.facts.get(name)
            if facts is not None:
                self._put(transitions.without_node_object(facts))

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list did not name."""
        with self._lock:
            self._node_objects = True
            for name, facts in list(self._nodes.facts.now.items()):
                if facts.node_object.exists and name not in names:
                    self.drop_node(name)

    # Pods.

    def put_pod(self, pod: PodRecord, age: float = 0.0, *, listed: bool = False) -> None:
        """Take in a pod as it is now; a bind in flight that it confirms retires.

        ``age`` is how many seconds ago its kubelet admitted or refused it, by the kubelet's word;
        it counts where we see the pod for the first time. A pod that is ``listed`` is one of many
        that may have changed meanwhile, in whatever order. A refusal is told outside the lock.
        """
        told = None
        with self._lock:
            earlier = self._pods.get(pod.uid)
            if pod.node is not None:
                pod = with_promise_of(pod, earlier, self.bind_in_flight(pod.uid))
            self._take_pod(pod, earlier, listed=listed)
            if pod.node is not None:
                before = self._nodes.get(pod.node)
                if self._take_answer(pod, earlier, age) and earlier is not None:
                    told = (before, self._nodes.get(pod.node))
                self.release(pod.uid)  # last: else the pod would be on no node in between
        if told is not None:
            self._tell_refusal(*told, pod)

    def _take_answer(self, pod: PodRecord, earlier: PodRecord | None, age: float) -> bool:
        """Take in what the kubelet has answered to a bound pod; whether it has refused it now."""
        assert pod.node is not None  # noqa: S101 (the caller looked)
        now, before = self.clock(), self._nodes.get(pod.node)
        after, first_seen = before, earlier is None
        refused = pod.refusal is not None and (earlier is None or earlier.refusal is None)
        if refused:
            at = now - max(0.0, age) if first_seen else now
            after = refusing.with_pod_refused(before, pod, at, now, first_seen=first_seen)
        elif pod.admitted and (earlier is None or not (earlier.admitted or earlier.ended)):
            after = refusing.with_pod_admitted(before, pod, now, first_seen=first_seen)
        if after is not before:
            self._put(after)
            self._nodes.queue_pauses(before, after)
        return refused

    def _tell_refusal(self, before: NodeFacts, after: NodeFacts, pod: PodRecord) -> None:
        """Tell of a refusal; a fault of ours here costs nobody the pod."""
        try:
            if pod.refusal is not None:
                found = refusing.refusal_by(before, after, pod, pod.refusal, self.settings)
                for listener in self.on_refusal:
                    listener(found)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(before.name, error)

    def _take_pod(self, pod: PodRecord, earlier: PodRecord | None, *, listed: bool) -> None:
        if earlier == pod:
            return
        if earlier is not None and earlier.node is not None and pod.node is None:
            return  # a nodeName is never taken back: this is older news than ours
        self.version += 1
        for name in self._pods.put(pod):
            self._keep_place(name)
        if pod.node is not None:
            self._groups.put(pod)
        elif pod.uid not in self._pods.in_flight.now:
            self._groups.expect(pod)
        for name in self._kept_places.take(pod, self.clock(), self.today()):
            self._keep_place(name)
        if pod.membership is not None:
            self._racks_wanted |= pod.membership.domain == NVLINK_DOMAIN
        if earlier is None and isinstance(pod.request, GpuRequest):
            self._remembered.observe(pod.request)
        if pod.ended and not (earlier is not None and earlier.ended) and pod.node is not None:
            self._put(transitions.note_departure(self._nodes.get(pod.node), pod), changed=False)
        if earlier is not None and earlier.node is not None and earlier.node != pod.node:
            self._put(transitions.without_pod(self._nodes.get(earlier.node), pod.uid))
        if pod.node is not None:
            self._put(transitions.with_pod(self._nodes.get(pod.node), pod, listed=listed))

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and a bind of it in flight.

        ``version`` is the resourceVersion at which it was gone from the API server. Its kubelet may
        know nothing of that yet, and hold its devices or give it some: the pod counts until a
        report shows that it does not. None says that the kubelet has let go.
        """
        with self._lock:
            self._drop_known_pod(uid, self._pods.get(uid), version)
            self.release(uid)

    def drop_in_flight(self, uid: PodUid, version: int) -> None:
        """End a bind in flight whose pod is gone, as of this resourceVersion.

        Nobody saw whether it was bound before. Its kubelet may hold its devices, as in
        :meth:`drop_pod`.
        """
        with self._lock:
            flying = self.bind_in_flight(uid)
            if flying is not None:
                self._drop_known_pod(uid, flying, version)
                self.release(uid)

    def keep_pods(self, uids: set[PodUid], version: int | None = None) -> None:
        """Forget every pod that a complete list did not name. Binds in flight stay.

        ``version`` is the list's, and means what it means for :meth:`drop_pod`.
        """
        with self._lock:
            for uid in self._pods.known.keys() - uids:
                self._drop_known_pod(uid, self._pods.get(uid), version)

    def _drop_known_pod(self, uid: PodUid, pod: PodRecord | None, version: int | None) -> None:
        """Forget a pod, which was as ``pod`` says."""
        self.version += 1
        self._groups.drop(uid)
        for name in (*self._pods.drop(uid), *self._kept_places.drop(uid)):
            self._keep_place(name)
        if pod is None or pod.node is None:
            return
        facts = self._nodes.get(pod.node)
        report = facts.report
        shown = report is not None and any(a.pod_uid == uid for a in report.allocations)
        if pod.ended and not shown:
            facts = transitions.without_pod(facts, uid)
        elif version is None or not facts.record.boot_id:
            # Nothing to wait for: the kubelet has let go, or no agent has ever reported here.
            facts = transitions.note_departure(transitions.without_pod(facts, uid), pod)
        else:
            facts = transitions.with_leaving(facts, pod, version)
        self._put(facts)

    # Binds in flight: pods that count on a node before the API server has told us of it.

    def begin_bind(
        self, name: NodeName, pod: PodRecord, *, seen: NodeFacts | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server knows: its bind is in flight.

        With ``seen`` only while the answer that was worked out on these facts holds; else None.
        That is while the node is still in the same state, and in the same state without this pod
        if a bind of it is in flight here already: it is decided about as if it were not there.
        """
        with self._lock:
            self._expire()
            facts = self._nodes.get(name)
            if seen is not None and facts is not seen:
                resource = resource_of(pod)
                if facts.key(resource) != seen.key(resource):
                    return None
                gone = frozenset({pod.uid} & facts.pods.in_flight.keys())
                if gone and facts.without(gone).key(resource) != seen.without(gone).key(resource):
                    return None
            ours = replace(pod, node=name)
            self._fly(name, ours)
            return ours

    def take_back(self, ours: PodRecord, before: PodRecord | None) -> None:
        """Undo :meth:`begin_bind`: the bind was surely not written. ``before`` stands again.

        Nothing happens where it is not ours any more: another bind of the pod has begun, or its
        end is known.
        """
        with self._lock:
            if self.bind_in_flight(ours.uid) is not ours:
                return
            if before is None:
                self.release(ours.uid)
            else:
                self._fly(before.node or NodeName(""), before)

    def release(self, uid: PodUid) -> None:
        """End a bind in flight: it failed for sure, or the pod's own record has taken over."""
        with self._lock:
            flying = self._pods.in_flight.pop(uid)
            if flying is None or flying.node is None:
                return
            known = self._pods.get(uid)
            if known is None or known.node is None:
                self._groups.drop(uid)
                if known is not None:
                    self._groups.expect(known)
            facts = self._nodes.get(flying.node)
            self._put(transitions.without_bind_in_flight(facts, uid))

    def bind_in_flight(self, uid: PodUid) -> PodRecord | None:
        """A pod's bind in flight, if there is one."""
        with self._lock:
            return self._pods.in_flight.get(uid)

    def _fly(self, name: NodeName, pod: PodRecord) -> None:
        self._put(transitions.with_bind_in_flight(self._nodes.get(name), pod))
        self._pods.in_flight.put(pod.uid, pod)
        self._groups.put(pod)

    # Inside.

    def _keep_place(self, name: NodeName) -> None:
        """Keep the place on a node that is to be kept there now, or none."""
        facts = self._nodes.get(name)
        pod = self._kept_places.on(name) or self._nominee(facts)
        if _place_of(pod) != _place_of(facts.kept_for):
            self._put(replace(facts, kept_for=pod))

    def _nominee(self, facts: NodeFacts) -> PodRecord | None:
        """The nominated pod for which the node's place is kept: the one of highest priority, with
        its nomination as the place. kube-scheduler keeps a number of GPUs, and not which ones."""
        here = [
            pod
            for pod in self._pods.nominated.now.values()
            if pod.standing.nominated == facts.name
            and not is_not_scheduled(pod)
            and facts.is_open_to(pod)
        ]
        first = min(here, key=lambda pod: (-pod.standing.priority, pod.uid), default=None)
        return first and replace(first, kept_place=KeptPlace(facts.name, inf))

    def _put(self, facts: NodeFacts, *, changed: bool = True) -> None:
        """A node's facts are these now; ``changed`` says that its answers may be others."""
        name = facts.name
        before, counts_otherwise = self._nodes.put(facts)
        if changed or counts_otherwise:

            def domains(kind: str) -> Iterable[str | None]:
                return (domain_of(each, kind) for each in (before, facts) if each is not None)

            self._remembered.changed(
                name, domains, answers=changed, counts_otherwise=counts_otherwise
            )
            self._keeping.changed(name)
        if changed:
            self.version += 1
            self._tell(name)

    def _tell(self, name: NodeName) -> None:
        for listener in self.on_change:
            listener(name)

    def _verify(self, taken: TakenRecord) -> None:
        """Hold a report against what was foreseen; a fault of ours here costs nobody the report."""
        try:
            found = verify(taken.before, taken.after) if taken.told_anew else Verified()
            self.tallies.keep(found.kept)
            for surprise in found.surprises:
                for listener in self.on_surprise:
                    listener(surprise)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(taken.before.name, error)


def _place_of(pod: PodRecord | None) -> object:
    """All that a node's answers depend on of the pod for which a place is kept there."""
    return pod and (pod.uid, pod.request, pod.kept_place)


def _gives_out_others(before: NodeFacts, after: NodeFacts) -> bool:
    """Whether kube-scheduler gives out another number of some devices of ours than before, or of
    some resource that the record does not name."""
    if after.topology is None:
        return False
    served = {each.name for each in after.topology.resources}
    given, now = (
        dict(before.node_object.allocatable or ()),
        dict(after.node_object.allocatable or ()),
    )
    changed = {name for name in given.keys() | now.keys() if given.get(name) != now.get(name)}
    return any(name in served or bool(given.get(name)) != bool(now.get(name)) for name in changed)
