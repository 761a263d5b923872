"""What sources feed: the records of agents, Node objects, and pods, from the sources' own threads.

A source tells what is new, or names everything that there is. Whatever it shows may be late, and of
two things the later may come first.
"""

from collections.abc import Callable
from dataclasses import replace

from scheduler_extender.membership import NVLINK_DOMAIN
from scheduler_extender.state.answers import refusing
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.answers.tallies import Tallies
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.transitions import TakenRecord
from scheduler_extender.state.node.verification import Surprise, Verified, verify
from scheduler_extender.state.pods.record import PodRecord, with_promise_of
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest


class EventHandlers:
    """Takes in what sources tell. Methods may be called from any thread."""

    def __init__(self, cache: Cache, tallies: Tallies) -> None:
        self._cache = cache
        self._tallies = tallies
        self._lock, self._nodes, self._pods = cache.lock, cache.nodes, cache.pods
        self.reports_out_of_order = 0
        # Called by whoever feeds a report that shows what was not foreseen, or a pod that a kubelet
        # has refused and we had seen before. They should not be kept waiting.
        self.on_surprise: list[Callable[[Surprise], None]] = []
        self.on_refusal: list[Callable[[NodeRefusal], None]] = []

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
        with self._lock:
            taken = self._take_record(topology, report, uid, age, spoken=spoken)
        self._verify(taken)
        if taken.changed:
            taken.after.prepare()  # by whoever feeds the record, and not by the next pod that asks

    def put_report(self, name: NodeName, report: Report) -> bool:
        """Take in a report on its own; False where the node has no record to belong to."""
        with self._lock:
            self._cache.expire()
            facts = self._nodes.get(name)
        if facts.topology is None:
            return False
        self.put_record(facts.topology, report, uid=facts.record.uid)
        return True

    def _take_record(
        self, topology: NodeTopology, report: Report | None, uid: str, age: float, *, spoken: bool
    ) -> TakenRecord:
        """Take a record in."""
        before, report = transitions.without_released(self._nodes.get(topology.name), report)
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
            self._nodes.heard(topology.name, self._cache.clock() - since)
        moved = (
            after.history.backoffs is not before.history.backoffs
            or after.history.admitted is not before.history.admitted
            or after.pods.leaving.keys() != before.pods.leaving.keys()
            or after.pods.departed.keys() != before.pods.departed.keys()
        )
        changed = (news and not heartbeat) or moved
        self._cache.put(after, changed=changed)
        told_anew = same and news and None not in (known, report)
        return TakenRecord(before, after, changed, told_anew)

    def _with_shown(self, before: NodeFacts, after: NodeFacts) -> NodeFacts:
        """Pods that a report shows for the first time have been admitted.

        The first report that we see of a node tells nothing of when, nor does one of a pod that has
        ended meanwhile.
        """
        if after.history.backoffs and before.report is not None:
            for uid in after.pods.reported - before.pods.reported:
                pod = after.pods.bound.get(uid)
                if pod is not None and not pod.ended:
                    after = refusing.with_pod_admitted(after, pod, self._cache.clock())
        return after

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Note that a node's record cannot be used, and why."""
        with self._lock:
            facts = self._nodes.get(name)
            if facts.record.problem != problem:
                self._nodes.stale.drop(name)
                self._cache.put(transitions.without_record(facts, problem))

    def drop_record(self, name: NodeName) -> None:
        """Forget a node's record; its pods stay."""
        with self._lock:
            facts = self._nodes.facts.get(name)
            if facts is not None:
                self._nodes.stale.drop(name)
                self._cache.put(transitions.without_record(facts))

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
            self._cache.node_objects = True
            before = self._nodes.get(name)
            facts = refusing.with_resumed(before, resumed, self._cache.clock())
            known = before.node_object
            changed = known.dra_only != node_object.dra_only or facts.history is not before.history
            changed |= known.maintained != node_object.maintained
            labels = known.labels if known.labels == node_object.labels else node_object.labels
            facts = replace(facts, node_object=replace(node_object, exists=True, labels=labels))
            other_amounts = node_object.allocatable != known.allocatable
            if other_amounts and _gives_out_others(before, facts):
                facts, changed = facts.unproven(), True
            self._cache.put(facts, changed=changed)
            self._nodes.note_pauses(facts)

    def put_labels(self, name: NodeName, node_object: NodeObject) -> None:
        """Take what is told of a known node where Node objects are not watched.

        Where it says that the object exists, nothing else is to be told: then it says who may be
        sent there.
        """
        with self._lock:
            before = self._nodes.facts.get(name)
            if before is not None:
                known = before.node_object
                exists = node_object.exists or known.exists
                told = replace(node_object, exists=exists)
                changed = told.allocatable != known.allocatable or told.dra_only != known.dra_only
                self._cache.put(replace(before, node_object=told), changed=changed)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods go by themselves."""
        with self._lock:
            facts = self._nodes.facts.get(name)
            if facts is not None:
                self._cache.put(transitions.without_node_object(facts))

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list did not name."""
        with self._lock:
            self._cache.node_objects = True
            for name, facts in list(self._nodes.facts.now.items()):
                if facts.node_object.exists and name not in names:
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
        with self._lock:
            earlier = self._pods.get(pod.uid)
            if pod.node is not None:
                if pod.uid in self._nodes.get(pod.node).pods.leaving:
                    return  # a UID is given once: the settler has read what the watch shows late
                pod = with_promise_of(pod, earlier, self._cache.assumed(pod.uid))
            self._take_pod(pod, earlier, listed=listed)
            if pod.node is not None:
                before = self._nodes.get(pod.node)
                if self._take_answer(pod, earlier, age) and earlier is not None:
                    told = (before, self._nodes.get(pod.node))
                self._cache.confirm(pod.uid)  # last: else the pod would be on no node in between
        if told is not None:
            self._tell_refusal(*told, pod)

    def _take_answer(self, pod: PodRecord, earlier: PodRecord | None, age: float) -> bool:
        """Take in what the kubelet has answered to a bound pod; whether it has refused it now."""
        assert pod.node is not None  # noqa: S101 (the caller looked)
        now, before = self._cache.clock(), self._nodes.get(pod.node)
        after, first_seen = before, earlier is None
        refused = pod.refusal is not None and (earlier is None or earlier.refusal is None)
        if refused:
            at = now - max(0.0, age) if first_seen else now
            after = refusing.with_pod_refused(before, pod, at, now, first_seen=first_seen)
        elif pod.admitted and (earlier is None or not (earlier.admitted or earlier.ended)):
            after = refusing.with_pod_admitted(before, pod, now, first_seen=first_seen)
        if after is not before:
            self._cache.put(after)
            self._nodes.note_pauses(after)
        return refused

    def _tell_refusal(self, before: NodeFacts, after: NodeFacts, pod: PodRecord) -> None:
        """Tell of a refusal; a fault of ours here costs nobody the pod."""
        try:
            if pod.refusal is not None:
                told = refusing.refusal_by(before, after, pod, pod.refusal, self._cache.settings)
                for listener in self.on_refusal:
                    listener(told)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._cache.faults.note(before.name, error)

    def _take_pod(self, pod: PodRecord, earlier: PodRecord | None, *, listed: bool) -> None:
        if earlier == pod:
            return
        if earlier is not None and earlier.node is not None and pod.node is None:
            return  # a nodeName is never taken back: this is older news than ours
        self._cache.version += 1
        concerned = self._pods.put(pod)
        self._cache.count_member(pod.uid)
        if pod.reservation is not None:
            self._cache.reservations_end.put(pod.uid, pod.reservation.until)
        for name in concerned:
            self._cache.reserve(name)
        if pod.membership is not None:
            self._cache.racks_wanted |= pod.membership.domain == NVLINK_DOMAIN
        request = pod.request
        if earlier is None and isinstance(request, GpuRequest) and request.effective_count:
            self._cache.answers.observe(request)
        if pod.ended and not (earlier is not None and earlier.ended) and pod.node is not None:
            self._cache.put(
                transitions.note_departure(self._nodes.get(pod.node), pod), changed=False
            )
        if earlier is not None and earlier.node is not None and earlier.node != pod.node:
            self._cache.put(transitions.without_pod(self._nodes.get(earlier.node), pod.uid))
        if pod.node is not None:
            self._cache.put(transitions.with_pod(self._nodes.get(pod.node), pod, listed=listed))

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and a bind of it in flight.

        ``version`` is the resourceVersion at which it was gone from the API server. Its kubelet may
        know nothing of that yet, and hold its devices or give it some: the pod counts until a
        report shows that it does not. None says that the kubelet has let go.
        """
        with self._lock:
            self._drop_known_pod(uid, self._pods.get(uid), version)
            self._cache.confirm(uid)

    def drop_in_flight(self, uid: PodUid, version: int) -> None:
        """End a bind in flight whose pod is gone, as of this resourceVersion.

        Nobody saw whether it was bound before. Its kubelet may hold its devices, as in
        :meth:`drop_pod`.
        """
        with self._lock:
            flying = self._cache.assumed(uid)
            if flying is not None:
                self._drop_known_pod(uid, flying, version)
                self._cache.confirm(uid)

    def keep_pods(self, uids: set[PodUid], version: int | None = None) -> None:
        """Forget every pod that a complete list did not name. Binds in flight stay.

        ``version`` is the list's, and means what it means for :meth:`drop_pod`.
        """
        with self._lock:
            for uid in self._pods.known.keys() - uids:
                self._drop_known_pod(uid, self._pods.get(uid), version)

    def _drop_known_pod(self, uid: PodUid, pod: PodRecord | None, version: int | None) -> None:
        """Forget a pod, which was as ``pod`` says."""
        self._cache.version += 1
        concerned = self._pods.drop(uid)
        self._cache.count_member(uid)
        self._cache.reservations_end.drop(uid)
        for name in concerned:
            self._cache.reserve(name)
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
        self._cache.put(facts)

    def _verify(self, taken: TakenRecord) -> None:
        """Hold a report against what was foreseen; a fault of ours here costs nobody the report."""
        try:
            verified = verify(taken.before, taken.after) if taken.told_anew else Verified()
            self._tallies.keep(verified.kept)
            for surprise in verified.surprises:
                for listener in self.on_surprise:
                    listener(surprise)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._cache.faults.note(taken.before.name, error)


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
