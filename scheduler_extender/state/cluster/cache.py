"""Everything that is known now of nodes and pods: what sources tell, from their own threads, and
snapshots of it for the verbs. Methods may be called from any thread.

A source tells what is new, or names everything that there is. Whatever it shows may be late, and of
two things the later may come first. A pod that we bind is *assumed* from the decision on: it counts
on its node before the API server has told us of it (:mod:`.pods` draws its life).

Nothing here does I/O, and no answer is worked out under the lock: who asks takes a
:class:`.Snapshot`. The exception is the last try of a bind on a node that changes all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from scheduler_extender.groupreference import NVLINK_DOMAIN
from scheduler_extender.state.answers import refusing
from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.classes import EquivalenceClasses
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.answers.tallies import Faults, Tallies
from scheduler_extender.state.cluster.freshness import UNREADY_AFTER, Due, Watch, stale_watches
from scheduler_extender.state.cluster.nodes import Nodes
from scheduler_extender.state.cluster.pods import Pods
from scheduler_extender.state.cluster.recentsends import RecentSends
from scheduler_extender.state.cluster.snapshot import LastGroupReservations, Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.gangdomains import GangDomains
from scheduler_extender.state.groups.groups import Groups
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.nodeinfo import Foresees, NodeInfo, nobody_foresees
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.verification import Misprediction, verify
from scheduler_extender.state.pods.attributes import Others, nobody_knows
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord, resource_of, with_promise_of
from scheduler_extender.state.pods.reservation import Reservation
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest


class Cache:
    """The nodes, pods, groups and reservations that are known, and the remembered answers."""

    def __init__(
        self,
        clock: Callable[[], float],  # seconds; only has to run forward
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,  # that tell us, as they are now
    ) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.today: Callable[[], float] = time.time  # people say so until when a place is reserved
        self.settings = settings
        self.watches = watches
        self.faults = Faults()
        self.tallies = Tallies()
        self.nodes = Nodes(settings)
        self.pods = Pods()
        self.groups = Groups()
        self.budgets: Budgets | None = None
        self.others: Others = nobody_knows  # asked about pods without devices; with no lock held
        self.foresees: Foresees = nobody_foresees  # what claims will get; with no lock held
        # Whether all claims of a pod that asks for a number of GPUs, its own among them, have
        # devices, and the facts of a node with DRA say so; with no lock held.
        self.claims_known: Callable[[PodRecord, int, NodeName], bool] = lambda *_: True
        self._reservations_end = Due[PodUid]()  # pods by the time of day at which their places end
        self.classes = EquivalenceClasses(self.lock)
        self.answers = AnswerCache(self.lock, self.classes)
        self._group_reservations = LastGroupReservations(self.lock, self.classes)
        self._gangs = GangDomains()
        self.recent_sends = RecentSends()
        self._node_objects = False  # Node objects are watched
        self._racks_wanted = False  # a pod has asked for its group to share an NVLink domain
        # Grows whenever what people are shown may have changed: a node, or a pod. Read it without
        # the lock; heartbeats that say nothing new do not count.
        self.version = 0
        self.reports_out_of_order = 0
        # Called whenever what a node can offer may have changed: under the lock, to take a note.
        self.on_change: list[Callable[[NodeName], None]] = []
        # Called by the thread that tells us a report that shows what was not foreseen, or a pod
        # that a kubelet has refused and we had seen before. They should not be kept waiting.
        self.on_misprediction: list[Callable[[Misprediction], None]] = []
        self.on_refusal: list[Callable[[NodeRefusal], None]] = []

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        with self.lock:
            self.expire()
            nodes, pods = self.nodes, self.pods
            return Snapshot(
                self.settings,
                self.clock,
                self.faults,
                self.classes,
                self.answers,
                self._group_reservations,
                self._gangs,
                self.recent_sends,
                nodes.infos.copied(),
                pods.waiting.copied(),
                pods.assumed.copied(),
                pods.nominated.copied(),
                nodes.reservations.copied(),
                self.groups.seen(),
                nodes.kinds,
                nodes.label_keys,
                self.classes.generation,
                nodes.moves,
                self.answers.mix.current,
                self.is_stale(),
                self._racks_wanted,
                self.today(),
                self.budgets,
                self.others,
                self.foresees,
            )

    # What is known now, piece by piece.

    def node_info(self, name: NodeName) -> NodeInfo:
        """What is known of a node now; empty where nobody told us of it."""
        with self.lock:
            self.expire()
            return self.nodes.get(name)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        with self.lock:
            return self.pods.get(uid)

    def has_node(self, name: NodeName) -> bool:
        """Whether the node exists, as far as we know: where Node objects are watched, one does."""
        with self.lock:
            info = self.nodes.infos.get(name)
            return info is not None and (info.node_object.exists or not self._node_objects)

    def is_stale(self) -> bool:
        """Whether a watch has told us nothing for so long that our picture may be wrong."""
        return bool(stale_watches(self.watches(), self.clock()))

    def unready(self) -> tuple[str, ...]:
        """The watches that have been stale for too long to go on answering."""
        return stale_watches(self.watches(), self.clock(), UNREADY_AFTER)

    def forget_answers(self) -> None:
        """Forget every remembered answer; the next ones are worked out anew."""
        with self.lock:
            self.answers.clear()
            self._group_reservations.clear()

    def tell_of_all_nodes(self) -> None:
        """Tell the listeners of every node: any of them may be news, as after a time in which a
        watch was stale."""
        with self.lock:
            self.tell_of(self.nodes.infos)

    def tell_of(self, names: Iterable[NodeName]) -> None:
        """Tell the listeners that what these nodes can offer may have changed."""
        with self.lock:
            for name in names:
                for listener in self.on_change:
                    listener(name)

    def expire(self) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses and reservations
        that are over."""
        now = self.clock()
        with self.lock:
            for name in self.nodes.stale.take(now):
                if (info := self.nodes.get(name)).report is not None:
                    self._put(transitions.with_stale_report(info))
            for name in self.nodes.pausing.take(now):
                before = self.nodes.get(name)
                info = refusing.with_pauses_ended(before, now)
                if info is not before:
                    self._put(info)
                self.nodes.note_pauses(info)
            for uid in self._reservations_end.take(self.today()):
                pod = self.pods.get(uid)
                if pod is not None and pod.reservation is not None:
                    self._reserve(pod.reservation.node)

    # Nodes and their records.

    def put_record(
        self,
        topology: NodeTopology,
        report: Report | None,
        *,
        uid: str = "",
        age: float = 0.0,
        spoken: bool = True,
    ) -> None:
        """Take in a node's record. A report that is older than the one we hold is passed over.

        ``uid`` is the record's own: one that was deleted and made anew starts its numbers again.
        ``age`` is how many seconds ago the agent looked, by its own word; it counts for the first
        report that we see of a node, later ones are as old as their arrival; one that the agent has
        not ``spoken`` anew (others have changed who holds what) makes no node fresh. What a report
        shows is then held against what was foreseen, outside the lock.
        """
        hash(topology.shape)  # worked out once for each kind of hardware, and not under the lock
        with self.lock:
            before, report = transitions.without_released(self.nodes.get(topology.name), report)
            known, anew = before.report, uid != before.record.uid
            if report is not None and known is not None and not anew and not report.follows(known):
                self.reports_out_of_order += 1
                topology, report = before.topology or topology, known
            same = before.topology == topology
            if same and before.topology is not None:
                topology = before.topology  # with what is worked out about it
            news = report != known or not same or before.record.problem is not None or anew
            heartbeat = same and not before.record.stale and transitions.is_heartbeat(report, known)
            after = self._with_shown(before, transitions.with_record(before, topology, report, uid))
            if news and (spoken or known is None):
                if after.record.stale:
                    after = replace(after, record=replace(after.record, stale=False))
                since = max(0.0, age) if known is None else 0.0
                self.nodes.heard(topology.name, self.clock() - since)
            moved = (
                after.history.backoffs is not before.history.backoffs
                or after.history.admitted is not before.history.admitted
                or after.pods.unconfirmed.keys() != before.pods.unconfirmed.keys()
                or after.pods.terminated.keys() != before.pods.terminated.keys()
            )
            changed = (news and not heartbeat) or moved
            self._put(after, changed=changed)
        if same and news and None not in (known, report):
            self._verify(before, after)
        if changed:
            after.prepare()  # by whoever feeds the record, and not by the next pod that asks

    def put_report(self, name: NodeName, report: Report) -> bool:
        """Take in a report on its own; False where the node has no record to belong to."""
        info = self.node_info(name)
        if info.topology is None:
            return False
        self.put_record(info.topology, report, uid=info.record.uid)
        return True

    def _with_shown(self, before: NodeInfo, after: NodeInfo) -> NodeInfo:
        """Pods that a report shows for the first time have been admitted.

        The first report that we see of a node tells nothing of when, nor does one of a pod that has
        ended meanwhile.
        """
        if after.history.backoffs and before.report is not None:
            for uid in after.pods.acknowledged - before.pods.acknowledged:
                pod = after.pods.bound.get(uid)
                if pod is not None and not pod.ended:
                    after = refusing.with_pod_admitted(after, pod, self.clock())
        return after

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Note that a node's record cannot be used, and why."""
        with self.lock:
            info = self.nodes.get(name)
            if info.record.problem != problem:
                self.nodes.stale.drop(name)
                self._put(transitions.without_record(info, problem))

    def drop_record(self, name: NodeName) -> None:
        """Forget a node's record; its pods stay."""
        with self.lock:
            info = self.nodes.infos.get(name)
            if info is not None:
                self.nodes.stale.drop(name)
                self._put(transitions.without_record(info))

    def keep_records(self, names: set[NodeName]) -> None:
        """Forget the record of every node that a complete list did not name."""
        with self.lock:
            for name, info in list(self.nodes.infos.items()):
                if name not in names and (info.topology or info.record.problem):
                    self.drop_record(name)

    def put_node(self, name: NodeName, node_object: NodeObject, resumed: float = 0.0) -> None:
        """Note what a Node object says, and that it exists.

        ``resumed`` is up to when an operator forgives its refusals, in seconds since 1970.
        """
        with self.lock:
            self._node_objects = True
            before = self.nodes.get(name)
            info = refusing.with_resumed(before, resumed, self.clock())
            known = before.node_object
            changed = known.dra_only != node_object.dra_only or info.history is not before.history
            changed |= known.maintained != node_object.maintained
            labels = known.labels if known.labels == node_object.labels else node_object.labels
            info = replace(info, node_object=replace(node_object, exists=True, labels=labels))
            other_amounts = node_object.allocatable != known.allocatable
            if other_amounts and _gives_out_others(before, info):
                info, changed = info.unproven(), True
            self._put(info, changed=changed)
            self.nodes.note_pauses(info)

    def put_labels(self, name: NodeName, node_object: NodeObject) -> None:
        """Take what is told of a known node where Node objects are not watched.

        Where it says that the object exists, nothing else is to be told: then it says who may be
        sent there.
        """
        with self.lock:
            before = self.nodes.infos.get(name)
            if before is not None:
                known = before.node_object
                exists = node_object.exists or known.exists
                told = replace(node_object, exists=exists)
                changed = told.allocatable != known.allocatable or told.dra_only != known.dra_only
                self._put(replace(before, node_object=told), changed=changed)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods go by themselves."""
        with self.lock:
            info = self.nodes.infos.get(name)
            if info is not None:
                self._put(transitions.without_node_object(info))

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list did not name."""
        with self.lock:
            self._node_objects = True
            for name, info in list(self.nodes.infos.items()):
                if info.node_object.exists and name not in names:
                    self.drop_node(name)

    # Pods.

    def put_pod(self, pod: PodRecord, age: float = 0.0, *, listed: bool = False) -> None:
        """Take in a pod as it is now; a bind in flight that it confirms retires.

        ``age`` is how many seconds ago its kubelet admitted or refused it, by the kubelet's word;
        it counts where we see the pod for the first time. A pod that is ``listed`` is one of many
        that may have changed meanwhile, in whatever order. A refusal is told outside the lock.
        Older news than ours is passed over: that a pod is on no node any more, or that it is there
        although the API server has said that it is gone.
        """
        told = None
        with self.lock:
            earlier = self.pods.get(pod.uid)
            if pod.node is not None:
                if pod.uid in self.nodes.get(pod.node).pods.unconfirmed:
                    return  # a UID is given once: the settler has read what the watch shows late
                pod = with_promise_of(pod, earlier, self.assumed(pod.uid))
            self._take_pod(pod, earlier, listed=listed)
            if pod.node is not None:
                before = self.nodes.get(pod.node)
                if self._take_answer(pod, earlier, age) and earlier is not None:
                    told = (before, self.nodes.get(pod.node))
                self.confirm(pod.uid)  # last: else the pod would be on no node in between
        if told is not None:
            self._tell_refusal(*told, pod)

    def _take_answer(self, pod: PodRecord, earlier: PodRecord | None, age: float) -> bool:
        """Take in what the kubelet has answered to a bound pod; whether it has refused it now."""
        assert pod.node is not None  # noqa: S101 (the caller looked)
        now, before = self.clock(), self.nodes.get(pod.node)
        after, first_seen = before, earlier is None
        refused = pod.refusal is not None and (earlier is None or earlier.refusal is None)
        if refused:
            at = now - max(0.0, age) if first_seen else now
            after = refusing.with_pod_refused(before, pod, at, now, first_seen=first_seen)
        elif pod.admitted and (earlier is None or not (earlier.admitted or earlier.ended)):
            after = refusing.with_pod_admitted(before, pod, now, first_seen=first_seen)
        if after is not before:
            self._put(after)
            self.nodes.note_pauses(after)
        return refused

    def _tell_refusal(self, before: NodeInfo, after: NodeInfo, pod: PodRecord) -> None:
        """Tell of a refusal; a fault of ours here costs nobody the pod."""
        try:
            if pod.refusal is not None:
                told = refusing.refusal_by(before, after, pod, pod.refusal, self.settings)
                for listener in self.on_refusal:
                    listener(told)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(before.name, error)

    def _take_pod(self, pod: PodRecord, earlier: PodRecord | None, *, listed: bool) -> None:
        if earlier == pod:
            if pod.node is None:
                self.pods.put(pod)  # for its resourceVersion
            return
        if earlier is not None and earlier.node is not None and pod.node is None:
            return  # a nodeName is never taken back: this is older news than ours
        self.version += 1
        concerned = self.pods.put(pod)
        self._count_member(pod.uid)
        if pod.reservation is not None:
            self._reservations_end.put(pod.uid, pod.reservation.until)
        for name in concerned:
            self._reserve(name)
        if pod.group_ref is not None:
            self._racks_wanted |= pod.group_ref.domain == NVLINK_DOMAIN
        request = pod.request
        if earlier is None and isinstance(request, GpuRequest) and request.effective_count:
            self.answers.mix.observe(request)
        if pod.ended and not (earlier is not None and earlier.ended) and pod.node is not None:
            self._put(transitions.note_terminated(self.nodes.get(pod.node), pod), changed=False)
        if earlier is not None and earlier.node is not None and earlier.node != pod.node:
            self._put(transitions.without_pod(self.nodes.get(earlier.node), pod.uid))
        if pod.node is not None:
            self._put(transitions.with_pod(self.nodes.get(pod.node), pod, listed=listed))

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and a bind of it in flight.

        ``version`` is the resourceVersion at which it was gone from the API server. Its kubelet may
        know nothing of that yet, and hold its devices or give it some: the pod counts until a
        report shows that it does not. None says that the kubelet has let go.
        """
        with self.lock:
            self._drop_known_pod(uid, self.pods.get(uid), version)
            self.confirm(uid)

    def drop_assumed(self, uid: PodUid, version: int) -> None:
        """End a bind in flight whose pod is gone, as of this resourceVersion.

        Nobody saw whether it was bound before. Its kubelet may hold its devices, as in
        :meth:`drop_pod`.
        """
        with self.lock:
            flying = self.assumed(uid)
            if flying is not None:
                self._drop_known_pod(uid, flying, version)
                self.confirm(uid)

    def keep_pods(self, uids: set[PodUid], version: int | None = None) -> None:
        """Forget every pod that a complete list did not name. Binds in flight stay.

        ``version`` is the list's, and means what it means for :meth:`drop_pod`.
        """
        with self.lock:
            for uid in self.pods.known.keys() - uids:
                self._drop_known_pod(uid, self.pods.get(uid), version)

    def _drop_known_pod(self, uid: PodUid, pod: PodRecord | None, version: int | None) -> None:
        """Forget a pod, which was as ``pod`` says."""
        self.version += 1
        concerned = self.pods.drop(uid)
        self._count_member(uid)
        self._reservations_end.drop(uid)
        for name in concerned:
            self._reserve(name)
        if pod is None or pod.node is None:
            if pod is not None and pod.gang is not None:
                # It may have held up its siblings, who are asked about all nodes whichever changes.
                self.tell_of(list(self.nodes.infos)[:1])
            return
        info = self.nodes.get(pod.node)
        report = info.report
        shown = report is not None and any(a.pod_uid == uid for a in report.allocations)
        if pod.ended and not shown:
            info = transitions.without_pod(info, uid)
        elif version is None or not info.record.boot_id:
            # Nothing to wait for: the kubelet has let go, or no agent has ever reported here.
            info = transitions.note_terminated(transitions.without_pod(info, uid), pod)
        else:
            info = transitions.with_unconfirmed(info, pod, version)
        self._put(info)

    def _verify(self, before: NodeInfo, after: NodeInfo) -> None:
        """Hold a report against what was foreseen; a fault of ours here costs nobody the report."""
        try:
            verified = verify(before, after)
            self.tallies.keep(verified.kept)
            for misprediction in verified.mispredictions:
                for listener in self.on_misprediction:
                    listener(misprediction)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(before.name, error)

    # Assumed pods: their bind is being written, or may have been.

    def assume(
        self, name: NodeName, pod: PodRecord, *, seen: NodeInfo | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server knows: its bind is in flight.

        With ``seen`` only while the answer that was worked out on these facts holds; else None.
        That is while the node is still in the same state, and in the same state without this pod
        if a bind of it is in flight here already: it is decided about as if it were not there.
        """
        with self.lock:
            self.expire()
            info = self.nodes.get(name)
            if seen is not None and info is not seen:
                resource = resource_of(pod)
                if info.key(resource) != seen.key(resource):
                    return None
                gone = frozenset({pod.uid} & info.pods.assumed.keys())
                if gone and info.without(gone).key(resource) != seen.without(gone).key(resource):
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
        """A pod is assumed no more: its source has it bound, or its bind was not written."""
        with self.lock:
            pod = self.pods.assumed.drop(uid)
            if pod is not None and pod.node is not None:
                self._reserve(pod.node)

    def assumed(self, uid: PodUid) -> PodRecord | None:
        """An assumed pod, as our bind will have it."""
        with self.lock:
            return self.pods.assumed.get(uid)

    def _assume(self, pod: PodRecord) -> None:
        assert pod.node is not None  # noqa: S101 (each is assumed for a node)
        self.pods.assumed.put(pod.uid, pod)
        self._reserve(pod.node)

    # One node's facts, and what follows from them.

    def _put(self, info: NodeInfo, *, changed: bool = True) -> None:
        """A node's facts are these now; ``changed`` says that its answers may be others."""
        name = info.name
        before, counts_otherwise = self.nodes.put(info)
        if changed or counts_otherwise:

            def domains(kind: str) -> Iterable[str | None]:
                return (domain_of(each, kind) for each in (before, info) if each is not None)

            self.classes.changed(name, answers=changed, counts_otherwise=counts_otherwise)
            self.answers.changed(domains)
            self.tell_of([name])
        self.version += changed
        # Nobody is nominated to a node of which nothing was known: else a place was reserved there.
        changes = set[NodeName]()
        if before is None or not info.has_objects_of(before):
            if before and _what_decides_nominees(before) != _what_decides_nominees(info):
                changes.add(name)
            claimed = _claimed(info)
            for uid in claimed ^ (_claimed(before) if before else frozenset()):
                changes.update(self.pods.claim(uid, name, ends=uid not in claimed))
        for each in changes:
            self._reserve(each)

    def _reserve(self, name: NodeName) -> None:
        """Reserve the place on a node that is to be kept there now, or none.

        Where it allocates devices before the bind (DRA), kube-scheduler nominates a pod when it has
        chosen them, and before the pod's claim says which. So all that it has nominated are on
        their way, as if their binds were in flight, and none is kept a place.
        """
        info = self.nodes.get(name)
        nominees, coming = self._nominees(info), dict[PodUid, PodRecord]()
        if info.allocates_before_bind:
            coming, nominees = {pod.uid: replace(pod, node=name) for pod in nominees}, []
        flying = {uid: pod for uid, pod in self.pods.assumed.items() if pod.node == name}
        before, now = info.pods.assumed, {**coming, **flying}
        if before != now:
            info = replace(info, pods=replace(info.pods, assumed=now)).without_old_terminated()
            self._put(info)
            for uid in before.keys() | now.keys():
                if before.get(uid) != now.get(uid):
                    self._count_member(uid)
        pod = self._annotated(name)
        if pod is None and nominees:
            first = min(nominees, key=lambda pod: (-pod.attributes.priority, pod.uid))
            pod = replace(first, reservation=Reservation(name, inf))
        if _reservation_of(pod) != _reservation_of(info.reserved_for):
            self._put(replace(info, reserved_for=pod))

    def _count_member(self, uid: PodUid) -> None:
        """A pod counts in its group where it is bound, its bind is in flight, or devices have been
        chosen for it; else it is still to come, or gone."""
        pod = self.pods.get(uid)
        if pod is None or pod.node is None:
            nominated = self.pods.nominated.get(uid)
            to = nominated and nominated.attributes.nominated
            coming = to and self.nodes.get(to).pods.assumed.get(uid)
            pod = self.pods.assumed.get(uid) or coming or pod
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
        return min(
            pods,
            key=lambda pod: (inf if pod.created is None else pod.created, pod.uid),
            default=None,
        )

    def _nominees(self, info: NodeInfo) -> list[PodRecord]:
        """The pods that kube-scheduler has nominated to a node. Elsewhere than under DRA it keeps a
        number of GPUs, and not which ones, for the one of highest priority."""
        return [
            pod
            for pod in self.pods.nominated_to.on(info.name)
            if not _is_not_scheduled(pod) and info.is_open_to(pod)
        ]


def _gives_out_others(before: NodeInfo, after: NodeInfo) -> bool:
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


def _is_not_scheduled(pod: PodRecord) -> bool:
    """Whether kube-scheduler does not look at a pod: no pod is kept off a node for it."""
    return pod.ended or pod.terminating or pod.gated


def _what_decides_nominees(info: NodeInfo) -> object:
    """All of a node that says which nominated pods may come to it, and what is kept for them."""
    node = info.node_object
    open_to = (node.exists, node.cordoned, node.labels, node.taints)
    return (info.serves_claims, info.allocates_before_bind, *open_to)


def _claimed(info: NodeInfo) -> frozenset[PodUid]:
    """The pods that have devices of a node by claims."""
    shown = () if info.report is None else info.report.allocations
    return frozenset(each.pod_uid for each in shown if each.claim)


def _reservation_of(pod: PodRecord | None) -> object:
    """All that a node's answers depend on of the pod for which a place is reserved there."""
    return pod and (pod.uid, pod.request, pod.reservation)
