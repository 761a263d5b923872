"""The cluster as we know it now: what sources feed, from their own threads.

Nodes and their records, pods, and binds in flight become facts of nodes (:mod:`.node`), which the
:mod:`.board` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scheduler_extender.state.answers import refusing
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.cluster.flightboard import FlightBoard
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.cluster.groupboard import NO_LABELS
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.nodeobject import NodeObject
from scheduler_extender.state.node.transitions import TakenRecord
from scheduler_extender.state.node.verification import Surprise, Verified, verify
from scheduler_extender.state.pods.record import PodRecord, with_promise_of
from scheduler_extender.state.pods.standing import Amounts
from scheduler_extender.wire import Taint
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest


class Cluster(FlightBoard):
    """What is known of all nodes and pods; see :class:`.Board` for what is passed in."""

    def __init__(
        self,
        clock: Callable[[], float],
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        super().__init__(clock, settings, watches)
        self.reports_out_of_order = 0
        self._node_objects = False
        self._on_surprise: list[Callable[[Surprise], None]] = []
        self._on_refusal: list[Callable[[NodeRefusal], None]] = []

    def on_surprise(self, listener: Callable[[Surprise], None]) -> None:
        """Call ``listener`` when a report shows what was not foreseen.

        Called by whoever feeds the report, who should not be kept waiting.
        """
        self._on_surprise.append(listener)

    def on_refusal(self, listener: Callable[[NodeRefusal], None]) -> None:
        """Call ``listener`` when a kubelet has refused a pod that we had seen before.

        Called by whoever feeds the pod, who should not be kept waiting.
        """
        self._on_refusal.append(listener)

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
        with self._lock:
            facts = self._facts(name)
            if facts.topology is None:
                return False
            taken = self._take_record(facts.topology, report, facts.record.uid, 0.0)
        self._verify(taken)
        if taken.changed:
            taken.after.prepare()
        return True

    def _take_record(
        self, topology: NodeTopology, report: Report | None, uid: str, age: float
    ) -> TakenRecord:
        """Take a record in."""
        before, report = transitions.without_released(self._facts(topology.name), report)
        known, anew = before.report, uid != before.record.uid
        if report is not None and known is not None and not anew and not report.follows(known):
            self.reports_out_of_order += 1
            report = known
        same = before.topology == topology
        heard = report != known or not same or before.record.problem is not None or anew
        heartbeat = same and not before.record.stale and transitions.is_heartbeat(report, known)
        after = self._with_shown(before, transitions.with_record(before, topology, report, uid))
        if heard:
            if after.record.stale:
                after = replace(after, record=replace(after.record, stale=False))
            since = max(0.0, age) if known is None else 0.0
            self._staleness.heard(topology.name, self.clock() - since)
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
            facts = self._facts(name)
            if facts.record.problem != problem:
                self._staleness.forget(name)
                self._put(transitions.without_record(facts, problem))

    def drop_record(self, name: NodeName) -> None:
        """Forget a node's record; its pods stay."""
        with self._lock:
            if name in self._nodes:
                self._staleness.forget(name)
                self._put(transitions.without_record(self._nodes[name]))

    def keep_records(self, names: set[NodeName]) -> None:
        """Forget the record of every node that a complete list did not name."""
        with self._lock:
            for name, facts in list(self._nodes.items()):
                if name not in names and (facts.topology or facts.record.problem):
                    self.drop_record(name)

    def put_node(
        self,
        name: NodeName,
        *,
        advertises: bool,
        resumed: float = 0.0,
        labels: Mapping[str, str] = NO_LABELS,
        cordoned: bool = False,
        taints: tuple[Taint, ...] = (),
        allocatable: Amounts | None = None,
    ) -> None:
        """Note that a Node object exists, and whether it advertises a managed resource.

        ``resumed`` is up to when an operator forgives its refusals, in seconds since 1970.
        ``labels``, ``taints`` and whether it is ``cordoned`` say who may be sent there; ``labels``
        also say in which domain of groups the node is. ``allocatable`` is what kube-scheduler gives
        out there.
        """
        with self._lock:
            self._node_objects = True
            before = self._facts(name)
            facts = refusing.with_resumed(before, resumed, self.clock())
            known = before.node_object
            changed = known.dra_only == advertises or facts.history is not before.history
            seen = NodeObject(
                exists=True,
                dra_only=not advertises,
                labels=known.labels if known.labels == labels else labels,
                cordoned=cordoned,
                taints=taints,
                allocatable=allocatable,
            )
            facts = replace(facts, node_object=seen)
            if allocatable != known.allocatable and _gives_out_others(before, facts):
                facts, changed = facts.unproven(), True
            self._put(facts, changed=changed)
            self._queue_pauses(before, facts)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods go by themselves."""
        with self._lock:
            if name in self._nodes:
                self._put(transitions.without_node_object(self._nodes[name]))

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list did not name."""
        with self._lock:
            self._node_objects = True
            for name, facts in list(self._nodes.items()):
                if facts.node_object.exists and name not in names:
                    self.drop_node(name)

    def has_node(self, name: NodeName) -> bool:
        """Whether the node exists, as far as we know: where Node objects are watched, one does."""
        with self._lock:
            facts = self._nodes.get(name)
            return facts is not None and (facts.node_object.exists or not self._node_objects)

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
                before = self._facts(pod.node)
                if self._take_answer(pod, earlier, age) and earlier is not None:
                    told = (before, self._facts(pod.node))
                self.release(pod.uid)  # last: else the pod would be on no node in between
        if told is not None:
            self._tell_refusal(*told, pod)

    def _take_answer(self, pod: PodRecord, earlier: PodRecord | None, age: float) -> bool:
        """Take in what the kubelet has answered to a bound pod; whether it has refused it now."""
        assert pod.node is not None  # noqa: S101 (the caller looked)
        now, before = self.clock(), self._facts(pod.node)
        after, first_seen = before, earlier is None
        refused = pod.refusal is not None and (earlier is None or earlier.refusal is None)
        if refused:
            at = now - max(0.0, age) if first_seen else now
            after = refusing.with_pod_refused(before, pod, at, now, first_seen=first_seen)
        elif pod.admitted and (earlier is None or not (earlier.admitted or earlier.ended)):
            after = refusing.with_pod_admitted(before, pod, now, first_seen=first_seen)
        if after is not before:
            self._put(after)
            self._queue_pauses(before, after)
        return refused

    def _queue_pauses(self, before: NodeFacts, after: NodeFacts) -> None:
        """Note when the pauses of a node end that are new."""
        known = {until for streaks in before.history.streaks.values() for until in streaks.pauses}
        now = {until for streaks in after.history.streaks.values() for until in streaks.pauses}
        for until in now - known:
            self._pauses.put(after.name, until)

    def _tell_refusal(self, before: NodeFacts, after: NodeFacts, pod: PodRecord) -> None:
        """Tell of a refusal; a fault of ours here costs nobody the pod."""
        try:
            if pod.refusal is not None:
                found = refusing.refusal_by(before, after, pod, pod.refusal, self.settings)
                for listener in self._on_refusal:
                    listener(found)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(before.name, error)

    def _take_pod(self, pod: PodRecord, earlier: PodRecord | None, *, listed: bool) -> None:
        if earlier == pod:
            return
        if earlier is not None and earlier.node is not None and pod.node is None:
            return  # a nodeName is never taken back: this is older news than ours
        self._pods[pod.uid] = pod
        self._take_nomination(pod.uid, pod)
        self.version += 1
        if pod.node is not None:
            self._groups.put(pod)
        elif pod.uid not in self._in_flight:
            self._groups.expect(pod)
        self._take_kept_place(pod)
        self._note_wish(pod)
        if earlier is None and isinstance(pod.request, GpuRequest):
            self._lookup.observe(pod.request)
        if pod.ended and not (earlier is not None and earlier.ended) and pod.node is not None:
            self._put(transitions.note_departure(self._facts(pod.node), pod), changed=False)
        if earlier is not None and earlier.node not in (None, pod.node):
            self._put(transitions.without_pod(self._facts(earlier.node), pod.uid))
        if pod.node is not None:
            self._put(transitions.with_pod(self._facts(pod.node), pod, listed=listed))

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and a bind of it in flight.

        ``version`` is the resourceVersion at which it was gone from the API server. Its kubelet may
        know nothing of that yet, and hold its devices or give it some: the pod counts until a
        report shows that it does not. None says that the kubelet has let go.
        """
        with self._lock:
            self._drop_known_pod(uid, version)
            self.release(uid)

    def drop_in_flight(self, uid: PodUid, version: int) -> None:
        """End a bind in flight whose pod is gone, as of this resourceVersion.

        Nobody saw whether it was bound before. Its kubelet may hold its devices, as in
        :meth:`drop_pod`.
        """
        with self._lock:
            found = self.bind_in_flight(uid)
            if found is not None:
                self._pods[uid] = found
                self._drop_known_pod(uid, version)
                self.release(uid)

    def keep_pods(self, uids: set[PodUid], version: int | None = None) -> None:
        """Forget every pod that a complete list did not name. Binds in flight stay.

        ``version`` is the list's, and means what it means for :meth:`drop_pod`.
        """
        with self._lock:
            for uid in self._pods.keys() - uids:
                self._drop_known_pod(uid, version)

    def _drop_known_pod(self, uid: PodUid, version: int | None) -> None:
        pod = self._pods.pop(uid, None)
        self._take_nomination(uid, None)
        self.version += 1
        self._groups.drop(uid)
        self._drop_kept_place(uid)
        if pod is None or pod.node is None:
            return
        facts = self._facts(pod.node)
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

    def unbound_pods(self) -> list[PodRecord]:
        """Pods that are on no node, and of which no bind is in flight."""
        with self._lock:
            return [
                p for p in self._pods.values() if p.node is None and p.uid not in self._in_flight
            ]

    def nominated_pods(self) -> list[PodRecord]:
        """Unbound pods for which kube-scheduler has evicted others, and keeps a node in mind."""
        with self._lock:
            waiting = (p for p in self._nominated.values() if not (p.deleting or p.ended))
            return [pod for pod in waiting if pod.uid not in self._in_flight]

    def _verify(self, taken: TakenRecord) -> None:
        """Hold a report against what was foreseen; a fault of ours here costs nobody the report."""
        try:
            found = verify(taken.before, taken.after) if taken.told_anew else Verified()
            self.tallies.keep(found.kept)
            for surprise in found.surprises:
                for listener in self._on_surprise:
                    listener(surprise)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(taken.before.name, error)


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
