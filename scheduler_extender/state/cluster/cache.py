"""The current state of nodes and pods, which sources write and verbs read as snapshots.

Sources write from their own threads.

Methods may be called from any thread. A source reports single changes, or a complete list. Any of
it may be late, and two changes may arrive in the wrong order. A pod that we bind is *assumed* from
the decision on: it counts on its node before the API server has confirmed the bind (:mod:`.pods`
draws a pod's life).

Nothing here does I/O. No request is evaluated under the lock: the evaluator takes a
:class:`.Snapshot`. The exception is the last attempt of a bind on a node that changes all the time.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from scheduler_extender.groupreference import NVLINK_DOMAIN
from scheduler_extender.state.answers import refusing
from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.classes import EquivalenceClasses
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.answers.tallies import Faults, Tallies
from scheduler_extender.state.cluster.freshness import UNREADY_AFTER, Watch, stale_watches
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
from scheduler_extender.state.pods.attributes import Others
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord, resource_of, with_promise_of
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest


class Cache:
    """The known nodes, pods, groups and reservations, and the cached answers."""

    def __init__(
        self,
        clock: Callable[[], float],  # in seconds; must never run backward
        settings: Settings = Settings(),
        # the watches of all sources, with their current state
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        # in seconds since 1970, for the ends of reservations
        self.today: Callable[[], float] = time.time
        self.settings = settings
        self.watches = watches
        self.faults = Faults()
        self.tallies = Tallies()
        self.nodes = Nodes(settings)
        self.pods = Pods()
        self.groups = Groups()
        self.budgets: Budgets | None = None
        # returns the requests of pods without devices; called without the lock
        self.others: Others = lambda _: None
        # predicts the devices of claims; called without the lock
        self.foresees: Foresees = nobody_foresees
        # Whether all claims of a pod that asks for a number of GPUs have devices, the pod's own
        # claim included, and the NodeInfo of a node with DRA shows that. Called without the lock.
        self.claims_known: Callable[[PodRecord, int, NodeName], bool] = lambda *_: True
        self.classes = EquivalenceClasses(self.lock)
        self.answers = AnswerCache(self.lock, self.classes)
        self._group_reservations = LastGroupReservations(self.lock, self.classes)
        self._gangs = GangDomains()
        self.recent_sends = RecentSends()
        self._node_objects = False  # whether Node objects are watched
        # whether a pod has asked for its group to share an NVLink domain
        self._racks_wanted = False
        # Grows whenever something that people see may have changed: a node, or a pod. Heartbeats
        # without news do not count. Read it without the lock.
        self.version = 0
        self.reports_out_of_order = 0
        # Called under the lock whenever a node's offer may have changed. A listener only takes a
        # note.
        self.on_change: list[Callable[[NodeName], None]] = []
        # The same with the keys of ResourceClaims that have lost their devices.
        self.on_deallocation: list[Callable[[set[str]], None]] = []
        # Called by the source's thread: when a report shows a misprediction, and when a kubelet has
        # refused a pod that we had seen before. A listener must not block.
        self.on_misprediction: list[Callable[[Misprediction], None]] = []
        self.on_refusal: list[Callable[[NodeRefusal], None]] = []

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current state."""
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

    # Read single parts of the current state.

    def node_info(self, name: NodeName) -> NodeInfo:
        """Return the current state of a node; an empty one if the node is not known."""
        with self.lock:
            self.expire()
            return self.nodes.get(name)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """Return the pod with this UID, as last seen; None if it is not known."""
        with self.lock:
            return self.pods.get(uid)

    def has_node(self, name: NodeName) -> bool:
        """Check whether a node exists; where Node objects are watched, one must exist for it."""
        with self.lock:
            info = self.nodes.infos.get(name)
            return info is not None and (info.node_object.exists or not self._node_objects)

    def is_stale(self) -> bool:
        """Check whether a watch has been silent for so long that this state may be wrong."""
        return bool(stale_watches(self.watches(), self.clock()))

    def unready(self) -> tuple[str, ...]:
        """Return the watches that have been stale for too long to go on answering."""
        return stale_watches(self.watches(), self.clock(), UNREADY_AFTER)

    def forget_answers(self) -> None:
        """Forget every cached answer, so that the next requests are evaluated again."""
        with self.lock:
            self.answers.clear()
            self._group_reservations.clear()

    def tell_of_all_nodes(self) -> None:
        """Call the listeners for every node: each may have changed, as after a watch was stale."""
        with self.lock:
            self.tell_of(self.nodes.infos)

    def tell_of(self, names: Iterable[NodeName]) -> None:
        """Call the listeners for these nodes: their offers may have changed."""
        with self.lock:
            for name in names:
                for listener in self.on_change:
                    listener(name)

    def tell_of_deallocated(self, keys: set[str]) -> None:
        """Call the listeners for these claims, which have lost their devices."""
        with self.lock:
            for listener in self.on_deallocation:
                listener(keys)

    def expire(self) -> None:
        """Apply what time alone has changed: stale nodes, ended pauses, and due reservations."""
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
            for name in self.pods.due(self.today()):
                self._reserve(name)

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
        """Take in a node's record, unless its report is older than the one we have.

        ``uid`` is the record's own UID. A record that was deleted and created again starts its
        sequence numbers again.

        ``age`` is how many seconds ago the agent read the node, by the agent's own clock. It counts
        only for the first report that we see of a node. A later report is as old as its arrival.

        A record that the agent has not sent anew (``spoken`` is False, as after a change of a
        claim) does not refresh a stale node.

        The devices in the report are then compared with the prediction, outside the lock.
        """
        hash(topology.shape)  # cached for each kind of hardware; compute it here, outside the lock
        with self.lock:
            before, report = transitions.without_released(self.nodes.get(topology.name), report)
            known, anew = before.report, uid != before.record.uid
            if report is not None and known is not None and not anew and not report.follows(known):
                self.reports_out_of_order += 1
                topology, report = before.topology or topology, known
            same = before.topology == topology
            if same and before.topology is not None:
                topology = before.topology  # it holds its derived values already
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
            # in the thread that feeds the record, so that the next request need not wait
            after.prepare()

    def put_report(self, name: NodeName, report: Report) -> bool:
        """Take in a report without a record; return False if the node has no record."""
        info = self.node_info(name)
        if info.topology is None:
            return False
        self.put_record(info.topology, report, uid=info.record.uid)
        return True

    def _with_shown(self, before: NodeInfo, after: NodeInfo) -> NodeInfo:
        """Return the node after the admission of each pod that a report shows for the first time.

        The first report that we see of a node does not say when its pods were admitted. Nor does a
        report say it for a pod that has ended meanwhile.
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
        """Forget the record of every node that a complete list does not name."""
        with self.lock:
            for name, info in list(self.nodes.infos.items()):
                if name not in names and (info.topology or info.record.problem):
                    self.drop_record(name)

    def put_node(self, name: NodeName, node_object: NodeObject, resumed: float = 0.0) -> None:
        """Take in a Node object, which exists from now on.

        An operator has cleared the node's refusals up to ``resumed``, in seconds since 1970.
        """
        with self.lock:
            self._node_objects = True
            before = self.nodes.get(name)
            info = refusing.with_resumed(before, resumed, self.clock())
            known = before.node_object
            changed = (
                known.advertises_none != node_object.advertises_none
                or info.history is not before.history
            )
            changed |= known.maintained != node_object.maintained
            labels = known.labels if known.labels == node_object.labels else node_object.labels
            info = replace(info, node_object=replace(node_object, exists=True, labels=labels))
            other_amounts = node_object.allocatable != known.allocatable
            if other_amounts and _gives_out_others(before, info):
                info, changed = info.unproven(), True
            self._put(info, changed=changed)
            self.version += info.node_object != known  # pages show a cordon
            self.nodes.note_pauses(info)

    def put_labels(self, name: NodeName, node_object: NodeObject) -> None:
        """Take in the labels of a known node from a source that does not watch Node objects.

        If this source says that the object exists, it knows everything about it. Labels and taints
        then decide which pods may come to the node.
        """
        with self.lock:
            before = self.nodes.infos.get(name)
            if before is not None:
                known = before.node_object
                exists = node_object.exists or known.exists
                told = replace(node_object, exists=exists)
                changed = (
                    told.allocatable != known.allocatable
                    or told.advertises_none != known.advertises_none
                )
                self._put(replace(before, node_object=told), changed=changed)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods are dropped by their own events."""
        with self.lock:
            info = self.nodes.infos.get(name)
            if info is not None:
                self._put(transitions.without_node_object(info))

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list does not name."""
        with self.lock:
            self._node_objects = True
            for name, info in list(self.nodes.infos.items()):
                if info.node_object.exists and name not in names:
                    self.drop_node(name)

    # Pods.

    def put_pod(self, pod: PodRecord, age: float = 0.0, *, listed: bool = False) -> None:
        """Take in the current state of a pod, and confirm its bind if the pod was assumed.

        ``age`` is how many seconds ago the kubelet admitted or refused the pod, by the kubelet's
        clock. It counts only if we see the pod for the first time. A ``listed`` pod is one of many
        that may have changed meanwhile, in any order. Listeners hear of a refusal outside the lock.

        Older news than ours is skipped: that a bound pod is on no node, or that a pod is on a node
        from which the API server has already removed it.
        """
        told = None
        with self.lock:
            earlier = self.pods.get(pod.uid)
            if pod.node is not None:
                if pod.uid in self.nodes.get(pod.node).pods.unconfirmed:
                    # a UID is never reused: the settler has already read what the watch shows late
                    return
                pod = with_promise_of(pod, earlier, self.assumed(pod.uid))
            self._take_pod(pod, earlier, listed=listed)
            if pod.node is not None:
                before = self.nodes.get(pod.node)
                if self._take_answer(pod, earlier, age) and earlier is not None:
                    told = (before, self.nodes.get(pod.node))
                self.stop_assuming(
                    pod.uid
                )  # last, otherwise the pod would be on no node in between
        if told is not None:
            self._tell_refusal(*told, pod)

    def _take_answer(self, pod: PodRecord, earlier: PodRecord | None, age: float) -> bool:
        """Take in the kubelet's answer to a bound pod, and return whether it is a new refusal."""
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
        """Call the listeners for a refusal; an error of ours here must not lose the pod."""
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
                self.pods.put(pod)  # to store its resourceVersion
            return
        if earlier is not None and earlier.node is not None and pod.node is None:
            return  # a nodeName is never taken back: this news is older than ours
        self.version += 1
        concerned = self.pods.put(pod)
        self._count_member(pod.uid)
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
        elif earlier is None or _what_peers_see(earlier) != _what_peers_see(pod):
            self._tell_of_group(pod)

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and its bind if it is assumed.

        ``version`` is the resourceVersion at which the pod was gone from the API server. Its
        kubelet may not know of the deletion yet. It may still hold the pod's devices, or even give
        it some. So the pod stays *unconfirmed* until a report shows that the kubelet has released
        it. None for ``version`` says that the kubelet has already released it.
        """
        with self.lock:
            self._drop_known_pod(uid, self.pods.get(uid), version)
            self.stop_assuming(uid)

    def drop_assumed(self, uid: PodUid, version: int) -> None:
        """Drop an assumed pod that is gone from the API server as of this resourceVersion.

        It is not known whether the bind was written before the pod was deleted. Its kubelet may
        hold devices of the pod, as in :meth:`drop_pod`.
        """
        with self.lock:
            assumed = self.assumed(uid)
            if assumed is not None:
                self._drop_known_pod(uid, assumed, version)
                self.stop_assuming(uid)

    def keep_pods(self, uids: set[PodUid], version: int | None = None) -> None:
        """Forget every pod that a complete list does not name. Assumed pods stay assumed.

        ``version`` is the resourceVersion of the list. It has the same meaning as in
        :meth:`drop_pod`.
        """
        with self.lock:
            for uid in self.pods.known.keys() - uids:
                self._drop_known_pod(uid, self.pods.get(uid), version)

    def _drop_known_pod(self, uid: PodUid, pod: PodRecord | None, version: int | None) -> None:
        """Forget a pod whose last known record is ``pod``."""
        self.version += 1
        concerned = self.pods.drop(uid)
        self._count_member(uid)
        for name in concerned:
            self._reserve(name)
        if pod is None or pod.node is None:
            if pod is not None:
                self._tell_of_group(pod)
            return
        info = self.nodes.get(pod.node)
        report = info.report
        shown = report is not None and any(a.pod_uid == uid for a in report.allocations)
        if pod.ended and not shown:
            info = transitions.without_pod(info, uid)
        elif version is None or not info.record.boot_id:
            # No report will confirm it: the kubelet has released it, or no agent has ever reported
            # here.
            info = transitions.note_terminated(transitions.without_pod(info, uid), pod)
        else:
            info = transitions.with_unconfirmed(info, pod, version)
        self._put(info)

    def _tell_of_group(self, pod: PodRecord) -> None:
        """Call the listeners, because groups may no longer wait for what this pod has asked for.

        A change of any node makes the listeners try all nodes for every group again, so one name is
        enough.
        """
        if pod.group_ref is not None:
            self.tell_of(islice(self.nodes.infos, 1))

    def _verify(self, before: NodeInfo, after: NodeInfo) -> None:
        """Compare a report with the prediction; an error of ours here must not lose the report."""
        try:
            verified = verify(before, after)
            self.tallies.count_kept(verified.kept)
            for misprediction in verified.mispredictions:
                for listener in self.on_misprediction:
                    listener(misprediction)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.faults.note(before.name, error)

    # Assumed pods: their bind is being written, or may have been written.

    def assume(
        self, name: NodeName, pod: PodRecord, *, seen: NodeInfo | None = None
    ) -> PodRecord | None:
        """Count a pod as bound to a node before the API server confirms it, and return its record.

        With ``seen``, assume it only while the answer that was computed from that NodeInfo still
        holds; otherwise return None. The answer holds while the node is in the same equivalence
        class. If the pod is already assumed here, the node without the pod must be in the same
        class too, because the answer was computed without the pod.
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
        """Undo :meth:`assume`, because the bind was certainly not written; assume ``before`` again.

        Do nothing if ``ours`` is no longer the assumed record: another bind of the pod has begun,
        or the pod's end is known.
        """
        with self.lock:
            if self.assumed(ours.uid) is not ours:
                return
            if before is None:
                self.stop_assuming(ours.uid)
            else:
                self._assume(before)

    def stop_assuming(self, uid: PodUid) -> None:
        """Stop assuming a pod: its source shows it bound, or its bind was not written."""
        with self.lock:
            pod = self.pods.assumed.drop(uid)
            if pod is not None and pod.node is not None:
                self._reserve(pod.node)

    def assumed(self, uid: PodUid) -> PodRecord | None:
        """Return an assumed pod with the node of our bind; None if it is not assumed."""
        with self.lock:
            return self.pods.assumed.get(uid)

    def _assume(self, pod: PodRecord) -> None:
        assert pod.node is not None  # noqa: S101 (each is assumed for a node)
        self.pods.assumed.put(pod.uid, pod)
        self._reserve(pod.node)

    # The state of one node, and what follows from it.

    def _put(self, info: NodeInfo, *, changed: bool = True) -> None:
        """Store the state of a node. ``changed`` says that its answers may have changed."""
        name = info.name
        before, counts_otherwise = self.nodes.put(info)
        if changed or counts_otherwise:

            def domains(kind: str) -> Iterable[str | None]:
                return (domain_of(each, kind) for each in (before, info) if each is not None)

            self.classes.changed(name, answers=changed, counts_otherwise=counts_otherwise)
            self.answers.changed(domains)
            self.tell_of([name])
        self.version += changed
        for each in self.pods.node_changed(before, info):
            self._reserve(each)

    def _reserve(self, name: NodeName) -> None:
        """Update the reservations on a node, and the pods that count as assumed there."""
        before = self.nodes.get(name)
        after = self.pods.with_reservations(before, self.today())
        if after is not before:
            self._put(after)
        known, now = before.pods.assumed, after.pods.assumed
        for uid in known.keys() | now.keys():
            if known.get(uid) != now.get(uid):
                self._count_member(uid)

    def _count_member(self, uid: PodUid) -> None:
        """Count a pod in its group, as placed or as still to come, or remove it from the group.

        A member counts as placed if it is bound or assumed, or if devices have been chosen for it.
        """
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


def _gives_out_others(before: NodeInfo, after: NodeInfo) -> bool:
    """Check whether kube-scheduler now counts another amount of a resource of this node.

    This concerns the resources that the record names. For other resources it matters only whether
    the Node object has any.
    """
    if after.topology is None:
        return False
    served = {each.name for each in after.topology.resources}
    given, now = (
        dict(before.node_object.allocatable or ()),
        dict(after.node_object.allocatable or ()),
    )
    changed = {name for name in given.keys() | now.keys() if given.get(name) != now.get(name)}
    return any(name in served or bool(given.get(name)) != bool(now.get(name)) for name in changed)


def _what_peers_see(pod: PodRecord) -> object:
    """Return the part of a waiting pod on which its group's answers depend."""
    coming = not (pod.ended or pod.terminating)
    return coming, pod.group_ref, pod.request, pod.attributes.eligible_nodes.tolerate_cordon
