"""The cluster as we know it: nodes, their records, their pods, binds in flight, and freshness.

One lock guards it all; nothing under it does I/O. Sources feed it from their own threads; verbs
read it. What a request's answer is on a node is remembered until something about the node changes,
so that asking about thousands of nodes costs a look-up each. Answers are remembered by *state*, a
number for all that they depend on, and only while some node is in that state.

A node about which deciding fails is refused (or passed, if the pod is plain) by itself: a fault of
ours on one node never takes the answer for the others with it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from scheduler_extender import freshness
from scheduler_extender.annotations import MANAGED
from scheduler_extender.freshness import Watch
from scheduler_extender.ledger import (
    Balance,
    ContradictionError,
    Departed,
    Ghost,
    PodRecord,
    balance,
)
from scheduler_extender.mix import RequestMix
from scheduler_extender.verification import Surprise, verify
from topology.core import scoring
from topology.core.admission import Kubelet
from topology.core.belief import Availability
from topology.core.devices import GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import (
    BUSY,
    DRA_ONLY,
    IN_PROGRESS,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    SPLIT,
    STALE,
    TOO_FEW,
    UNUSABLE,
    Assessment,
    Rejection,
    Verdict,
    assess,
    endangers,
)
from topology.core.remembering import interrupted_by
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest
from topology.core.scoring import Merit, Prospect, RequestClasses

REMEMBERED_REQUESTS = 128
REMEMBERED_ANSWERS = 400_000
"""Answers of one node to one request, over all requests: about 100 bytes each, 40 MB in all. The
requests that were asked longest ago are forgotten first."""
EVALUATION = 1000
"""Steps that working out one answer counts for under :meth:`Cluster.bounded`; a look-up is one."""
MOST_GHOSTS = 32
"""Pods of one resource that ended unseen on one node, which are remembered one by one; where there
are more, nothing is promised until nobody is unreported beside whom they may have been."""
KNOWN_FAULTS = 1000
"""How many different faults are told apart, to report each once."""

SLICE = 200
"""Nodes that are looked up under the lock at a time."""
TURN_SECONDS = 0.005
"""For how long nodes are worked out before others get the lock; one may take it further."""

UNDECIDED = Rejection("not guaranteed: the node could not be evaluated", resolvable=True)
OUT_OF_DATE = Rejection("the extender's view of the cluster is out of date", resolvable=False)


class NotRememberedError(Exception):
    """An answer needs more work than was allowed, or the lock is held by somebody else."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses.

    ``require`` is the weakest verdict on which a required pod passes; ``stale_after`` is in
    seconds of the local clock since the last changed report, None for never. ``all_pods_known``
    is false where the source names only some pods (see :func:`ledger.availability`).
    """

    require: Verdict = Verdict.EXPECTED
    stale_after: float | None = 180.0
    managed: tuple[str, ...] = MANAGED
    all_pods_known: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node answers to a request: it passes, or a rejection. Nodes in one state share one.

    ``assessment`` is None where there is no usable record.
    """

    rejection: Rejection | None = None
    assessment: Assessment | None = None

    @property
    def verdict(self) -> str:
        """The verdict's word; ``unknown`` where there is no usable record."""
        return self.assessment.verdict.value if self.assessment else "unknown"


@dataclass(slots=True)
class _Node:
    """Everything known of one node."""

    topology: NodeTopology | None = None
    report: Report | None = None
    problem: str | None = None
    changed_at: float = 0.0
    stale: bool = False
    exists: bool = False
    dra_only: bool = False
    record_uid: str = ""
    boot_id: str = ""
    expiry: float | None = None
    pods: dict[PodUid, PodRecord] = field(default_factory=dict)
    in_flight: dict[PodUid, PodRecord] = field(default_factory=dict)
    departed: dict[PodUid, Departed] = field(default_factory=dict)
    reported: set[PodUid] = field(default_factory=set)
    ghosts: dict[PodUid, Ghost] = field(default_factory=dict)
    views: dict[str, Availability | str] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)

    def all_pods(self) -> list[PodRecord]:
        """The pods that hold devices here or will: bound, in flight, and departed unconfirmed."""
        departed = (found.pod for found in self.departed.values())
        return [*self.pods.values(), *self.in_flight.values(), *departed]

    def promises(self) -> bool:
        """Whether a pod here was promised something that no report has shown kept yet."""
        return any(
            pod.promised != NO_CONSTRAINTS and pod.uid not in self.reported and not pod.ended
            for pod in self.all_pods()
        )

    def haunted(self) -> bool:
        """Whether more pods ended unseen here than anybody can follow."""
        return any(ghost.many for ghost in self.ghosts.values())


@dataclass(slots=True)
class Table:
    """The remembered answers to one request, as the three parts of a filter answer.

    ``by_state`` holds the answer of each state that some node is in, ``prospects`` what speaks for
    a state, over ``kinds``, and ``merits`` the same under the current weights of the kinds.
    ``faulted`` are nodes about which deciding failed: they are tried again next time.
    """

    decisions: dict[str, Decision] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    by_state: dict[int, Decision] = field(default_factory=dict)
    merits: dict[int, Merit] = field(default_factory=dict)
    prospects: dict[int, Prospect] = field(default_factory=dict)
    kinds: RequestClasses = ()
    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    faulted: set[str] = field(default_factory=set)

    def put(self, name: str, state: int, decision: Decision) -> None:
        """Remember a node's answer."""
        self.decisions[name] = decision
        self.states[name] = state
        if decision.rejection is None:
            self.passed.add(name)
        elif decision.rejection.resolvable:
            self.failed[name] = decision.rejection.reason
        else:
            self.unresolvable[name] = decision.rejection.reason

    def drop(self, name: str) -> None:
        """Forget a node's answer."""
        if self.decisions.pop(name, None) is not None:
            del self.states[name]
            self.passed.discard(name)
            self.failed.pop(name, None)
            self.unresolvable.pop(name, None)
            self.faulted.discard(name)

    def forget_state(self, state: int) -> None:
        """Forget a state that no node is in any more."""
        self.by_state.pop(state, None)
        self.prospects.pop(state, None)
        self.merits.pop(state, None)


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known of one node at one moment; ``ghosts`` counts pods that ended unseen."""

    name: NodeName
    topology: NodeTopology | None
    report: Report | None
    problem: str | None
    stale: bool
    pods: tuple[PodRecord, ...]
    ghosts: int
    dra_only: bool


NO_STATE = 0
"""In place of the state of a node about which deciding failed; nothing is remembered under it."""


@dataclass(frozen=True, slots=True)
class _News:
    """Two reports of a node, and what was known between them: what verification looks at."""

    topology: NodeTopology
    before: Report
    after: Report
    pods: list[PodRecord]
    ghosts: list[Ghost]
    reported: frozenset[PodUid]


class Cluster:
    """What is known of all nodes. ``clock`` gives seconds and only has to run forward.

    ``watches`` are the watches that feed it, as they are now; none where nothing is watched.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        self._clock = clock
        self.settings = settings
        self.watches = watches
        self._lock = threading.RLock()
        self._nodes: dict[NodeName, _Node] = {}
        self._pods: dict[PodUid, PodRecord] = {}
        self._in_flight: dict[PodUid, NodeName] = {}
        self._tables: OrderedDict[GpuRequest, Table] = OrderedDict()
        self._expiries: list[tuple[float, NodeName]] = []
        self._state_numbers: dict[tuple[object, ...], int] = {}
        self._facts: dict[int, tuple[object, ...]] = {}
        self._nodes_in: Counter[int] = Counter()
        self._last_state = 0
        self._node_objects = False
        self._mix = RequestMix()
        self._listeners: list[Callable[[NodeName], None]] = []
        self._surprised: list[Callable[[Surprise], None]] = []
        self._on_fault: list[Callable[[NodeName, Exception], None]] = []
        self._faults: set[tuple[NodeName, str]] = set()
        self.reports_out_of_order = 0
        self.faults = 0
        """How often deciding about one node, or verifying it, has failed."""
        self._allowance: int | None = None
        self._until: float | None = None

    @contextmanager
    def bounded(self, steps: int, *, wait: bool, until: float | None = None) -> Iterator[None]:
        """Like :meth:`locked`, for no more than ``steps`` of work: see :data:`EVALUATION`.

        More is begun as long as the clock has not reached ``until``. What is asked inside raises
        :class:`NotRememberedError` where it needs more; what was worked out until then stays
        remembered. Without ``wait`` the same is raised at once if the lock is not free.
        """
        if not self._lock.acquire(blocking=wait):
            raise NotRememberedError
        try:
            self._allowance, self._until = steps, until
            yield
        finally:
            self._allowance = self._until = None
            self._lock.release()

    def _spend(self, steps: int) -> None:
        if self._allowance is not None:
            self._allowance -= steps
            if self._allowance < 0 and (self._until is None or self._clock() >= self._until):
                raise NotRememberedError

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Several steps as one. Nothing inside may wait for anything."""
        with self._lock:
            yield

    def on_change(self, listener: Callable[[NodeName], None]) -> None:
        """Call ``listener`` with a node's name whenever what it can offer may have changed.

        Called under the lock, so it must only take a note.
        """
        self._listeners.append(listener)

    def on_surprise(self, listener: Callable[[Surprise], None]) -> None:
        """Call ``listener`` when a report shows what was not foreseen.

        Called by whoever feeds the report, who should not be kept waiting.
        """
        self._surprised.append(listener)

    def on_fault(self, listener: Callable[[NodeName, Exception], None]) -> None:
        """Call ``listener`` with the node and the error when evaluating a node fails.

        Each fault is told once; :attr:`faults` counts them all. May be called under the lock, so it
        must not wait for anything.
        """
        self._on_fault.append(listener)

    def _fault(self, name: NodeName, error: Exception) -> None:
        self.faults += 1
        known = (name, repr(error)[:200])
        if known in self._faults:
            return
        if len(self._faults) >= KNOWN_FAULTS:
            self._faults.clear()
        self._faults.add(known)
        for listener in self._on_fault:
            listener(name, error)

    # What sources feed.

    def put_record(
        self,
        topology: NodeTopology,
        report: Report | None,
        *,
        uid: str = "",
        age: float = 0.0,
    ) -> None:
        """Take in a node's record. A report that is older than the one we hold is passed over.

        ``uid`` is the record's own: one that was deleted and made anew starts its numbers again.
        ``age`` is how many seconds ago the agent looked, by its own word; it counts for the first
        report that we see of a node, later ones are as old as their arrival. What a report shows is
        then held against what was foreseen, outside the lock.
        """
        with self._lock:
            news = self._take_record(topology, report, uid, age)
        self._verify(news)

    def put_report(self, name: NodeName, report: Report) -> bool:
        """Take in a report on its own; False where the node has no record to belong to."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.topology is None:
                return False
            news = self._take_record(node.topology, report, node.record_uid, 0.0)
        self._verify(news)
        return True

    def _take_record(
        self, topology: NodeTopology, report: Report | None, uid: str, age: float
    ) -> _News | None:
        """Take a record in, under the lock; what is to be verified of it, if anything."""
        node = self._nodes.setdefault(topology.name, _Node())
        known = node.report
        anew = uid != node.record_uid
        if report is not None and known is not None and not anew and not report.follows(known):
            self.reports_out_of_order += 1
            report = known
        heard = report != known or node.topology != topology or node.problem is not None or anew
        same = node.topology == topology
        quiet = same and not node.stale and _same_but_sequence(report, known)
        pods, ghosts = node.all_pods(), list(node.ghosts.values())
        reported = frozenset(node.reported)
        node.topology, node.report, node.problem = topology, report, None
        node.record_uid = uid
        if anew and report is not None:
            for gone, found in node.departed.items():  # their numbers were the former record's
                sequence = min(found.sequence, report.sequence)
                node.departed[gone] = replace(found, sequence=sequence)
        _remember_reported(node)
        if heard:
            self._freshen(topology.name, node, age if known is None else 0.0)
        let_go = self._release_departed(node)
        if (heard and not quiet) or let_go:
            self._touch(topology.name)
        if same and heard and report is not None and known is not None:
            return _News(topology, known, report, pods, ghosts, reported)
        return None

    def _verify(self, news: _News | None) -> None:
        """Hold a report against what was foreseen; a fault of ours here costs nobody the report."""
        if news is None:
            return
        try:
            found = verify(
                news.topology, news.before, news.after, news.pods, news.ghosts, news.reported
            )
            for surprise in found:
                for listener in self._surprised:
                    listener(surprise)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._fault(news.topology.name, error)

    def _release_departed(self, node: _Node) -> bool:
        """Let go of deleted pods of which the kubelet, asked since, shows nothing any more."""
        report = node.report
        if report is None or report.not_ready or not node.departed:
            return False
        shown = {a.pod_uid for a in report.allocations}
        gone = [
            found
            for uid, found in node.departed.items()
            if uid not in shown and found.confirmed_by(report)
        ]
        for found in gone:
            del node.departed[found.pod.uid]
            self._haunt(found.pod)
        return bool(gone)

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Note that a node's record cannot be used, and why."""
        with self._lock:
            node = self._nodes.setdefault(name, _Node())
            if node.problem != problem:
                node.record_uid = ""
                node.topology, node.report, node.problem = None, None, problem
                self._touch(name)

    def drop_record(self, name: NodeName) -> None:
        """Forget a node's record; its pods stay."""
        with self._lock:
            node = self._nodes.get(name)
            if node is not None:
                node.topology = node.report = node.problem = None
                node.record_uid = ""
                self._touch(name)
                self._prune(name)

    def put_node(self, name: NodeName, *, advertises: bool) -> None:
        """Note that a Node object exists, and whether it advertises a managed resource."""
        with self._lock:
            self._node_objects = True
            node = self._nodes.setdefault(name, _Node())
            node.exists = True
            if node.dra_only == advertises:
                node.dra_only = not advertises
                self._touch(name)

    def drop_node(self, name: NodeName) -> None:
        """Note that a Node object is gone; its record and pods go by themselves."""
        with self._lock:
            node = self._nodes.get(name)
            if node is not None:
                node.exists = node.dra_only = False
                self._touch(name)
                self._prune(name)

    def keep_nodes(self, names: set[NodeName]) -> None:
        """Note as gone every Node object that a complete list did not name."""
        with self._lock:
            self._node_objects = True
            for name in [n for n, node in self._nodes.items() if node.exists and n not in names]:
                self.drop_node(name)

    def _haunt(self, pod: PodRecord) -> None:
        """Remember a pod that ends before any report showed it, if others are unreported too."""
        node = self._nodes.get(pod.node) if pod.node is not None else None
        if node is None or pod.uid in node.reported or not isinstance(pod.request, GpuRequest):
            return
        try:
            waiting = self._balance(node, pod.request.resource)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._fault(NodeName(pod.node or ""), error)
            waiting = None  # then everybody is taken for unreported
        here = {other.uid for other in node.all_pods()}
        witnesses = frozenset(waiting.unreported if waiting else here) - {pod.uid}
        if not witnesses:
            return
        alike = [
            uid
            for uid, ghost in node.ghosts.items()
            if ghost.pod.request.resource == pod.request.resource  # type: ignore[union-attr]
        ]
        if len(alike) < MOST_GHOSTS:
            node.ghosts[pod.uid] = Ghost(pod, witnesses)
            return
        former = node.ghosts.pop(alike[-1])
        node.ghosts[pod.uid] = Ghost(pod, (witnesses | former.witnesses) & here, many=True)

    def _balance(self, node: _Node, resource: str) -> Balance | None:
        """The node's accounts; None without a record, or where it contradicts itself."""
        if node.topology is None:
            return None
        try:
            return self._accounts(node, node.topology, resource)
        except ContradictionError:
            return None

    def _accounts(self, node: _Node, topology: NodeTopology, resource: str) -> Balance:
        return balance(
            topology,
            node.report,
            node.all_pods(),
            resource,
            all_pods_known=self.settings.all_pods_known,
            reported=node.reported,
            ghosts=node.ghosts.values(),
        )

    def _prune(self, name: NodeName) -> None:
        """Forget a node of which nothing is known any more."""
        node = self._nodes[name]
        if not (node.exists or node.topology or node.problem or node.pods or node.in_flight):
            del self._nodes[name]

    def put_pod(self, pod: PodRecord) -> None:
        """Take in a pod as it is now; a bind in flight that it confirms retires."""
        with self._lock:
            earlier = self._pods.get(pod.uid)
            if pod.node is not None:
                pod = _with_promise_of(pod, earlier, self.reservation(pod.uid))
                self.release(pod.uid)
            if earlier == pod:
                return
            if earlier is not None and earlier.node is not None and pod.node is None:
                return  # a nodeName is never taken back: this is older news than ours
            self._pods[pod.uid] = pod
            if earlier is None:
                self._observe(pod)
            if pod.ended and not (earlier is not None and earlier.ended):
                self._haunt(pod)
            if earlier is not None and earlier.node is not None:
                self._nodes[earlier.node].pods.pop(pod.uid, None)
                self._touch(earlier.node)
            if pod.node is not None:
                self._nodes.setdefault(pod.node, _Node()).pods[pod.uid] = pod
                self._touch(pod.node)

    def drop_pod(self, uid: PodUid, version: int | None = None) -> None:
        """Forget a pod that is gone, and a bind of it in flight.

        ``version`` is the resourceVersion at which it was gone from the API server. Its kubelet may
        know nothing of that yet, and hold its devices or give it some: the pod counts until a
        report shows that it does not. None says that the kubelet has let go.
        """
        with self._lock:
            self._drop_known_pod(uid, version)
            self.release(uid)

    def drop_flight(self, uid: PodUid, version: int) -> None:
        """End a bind in flight whose pod is gone, as of this resourceVersion.

        Nobody saw whether it was bound before. Its kubelet may hold its devices, as in
        :meth:`drop_pod`.
        """
        with self._lock:
            flying = self.reservation(uid)
            if flying is not None:
                self._pods[uid] = flying
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
        if pod is None or pod.node is None:
            return
        node = self._nodes[pod.node]
        node.pods.pop(uid, None)
        if not pod.ended:
            if version is None or not node.boot_id:
                self._haunt(pod)  # nothing to wait for: no agent has ever reported here
            else:
                # Its end is not in doubt, only when: so it counts as a pod on its way out.
                # Nobody is left to keep its promise to.
                gone = replace(pod, deleting=True, promised=NO_CONSTRAINTS, survives_endings=False)
                sequence = node.report.sequence if node.report else 0
                node.departed[uid] = Departed(gone, version, sequence)
                self._release_departed(node)
        self._touch(pod.node)
        self._prune(pod.node)

    def keep_records(self, names: set[NodeName]) -> None:
        """Forget the record of every node that a complete list did not name."""
        with self._lock:
            for name, node in list(self._nodes.items()):
                if name not in names and (node.topology or node.problem):
                    self.drop_record(name)

    # What verbs ask.

    def blind(self) -> bool:
        """Whether a watch has told us nothing for so long that our picture may be wrong."""
        return bool(freshness.blind(self.watches(), self._clock()))

    def unready(self) -> tuple[str, ...]:
        """The watches that have been blind for too long to go on answering."""
        return freshness.unready(self.watches(), self._clock())

    def has_node(self, name: NodeName) -> bool:
        """Whether the node exists, as far as we know: where Node objects are watched, one does."""
        with self._lock:
            node = self._nodes.get(name)
            return node is not None and (node.exists or not self._node_objects)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        with self._lock:
            return self._pods.get(uid)

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """The pod of this name, as last seen. O(pods)."""
        with self._lock:
            found = (p for p in self._pods.values() if (p.namespace, p.name) == (namespace, name))
            return next(found, None)

    def waiting_pods(self) -> list[PodRecord]:
        """Pods that kube-scheduler has called unschedulable."""
        with self._lock:
            return [pod for pod in self._pods.values() if pod.unschedulable]

    def names(self) -> list[NodeName]:
        """Every node we know of, sorted."""
        with self._lock:
            return sorted(self._nodes)

    def node(self, name: NodeName) -> tuple[NodeTopology | None, Report | None, str | None, bool]:
        """A node's topology, report, problem and staleness, for people to look at."""
        with self._lock:
            self._expire()
            node = self._nodes.get(name) or _Node()
            return node.topology, node.report, node.problem, node.stale

    def pods_on(self, name: NodeName) -> list[PodRecord]:
        """The pods of a node, binds in flight included."""
        with self._lock:
            node = self._nodes.get(name) or _Node()
            return node.all_pods()

    def known(self) -> tuple[list[Known], list[PodRecord]]:
        """Every node and every pod without one, all of one moment."""
        with self._lock:
            self._expire()
            nodes = [
                Known(
                    name,
                    node.topology,
                    node.report,
                    node.problem,
                    node.stale,
                    tuple(_as_known(pod, node) for pod in node.all_pods()),
                    len(node.ghosts),
                    node.dra_only,
                )
                for name, node in sorted(self._nodes.items())
            ]
            unbound = [
                p for p in self._pods.values() if p.node is None and p.uid not in self._in_flight
            ]
            return nodes, unbound

    def view(self, name: NodeName, resource: str) -> Availability | str:
        """What is free on a node for ``resource``, or the text of what is wrong with its record."""
        with self._lock:
            try:
                return self._view(self._nodes[name], resource)
            except Exception as error:  # noqa: BLE001 (a listener logs it)
                self._fault(name, error)
                return f"internal error: {type(error).__name__}"

    def _view(self, node: _Node, resource: str) -> Availability | str:
        if resource not in node.views:
            assert node.topology is not None  # noqa: S101 (callers looked)
            try:
                found = self._accounts(node, node.topology, resource)
                for uid, ghost in list(node.ghosts.items()):
                    request = ghost.pod.request
                    mine = isinstance(request, GpuRequest) and request.resource == resource
                    if mine and uid not in found.unreported:
                        del node.ghosts[uid]
                node.views[resource] = found.availability
            except ContradictionError as error:
                node.views[resource] = str(error)
        return node.views[resource]

    def table(self, request: GpuRequest, names: Iterable[str], *, retry: bool = True) -> Table:
        """The answers to ``request`` with every known node of ``names`` worked out.

        Call and read it under :meth:`locked`. Nodes that nobody told us of are left out. With
        ``retry`` the nodes about which deciding failed before are tried again.
        """
        self._expire()
        table = self._tables.get(request)
        if table is None:
            table = self._tables[request] = Table()
            self._forget_old_tables()
        else:
            self._tables.move_to_end(request)
        if retry:
            for name in list(table.faulted):
                table.drop(name)
        known, by_state, nodes = table.decisions, table.by_state, self._nodes
        added = 0
        for name in [n for n in names if n not in known]:
            if name in nodes:
                self._spend(1)
                added += 1
                node = nodes[NodeName(name)]
                try:
                    state = node.states.get(request.resource) or self._state(node, request.resource)
                    decision = by_state.get(state)
                    if decision is None:
                        self._spend(EVALUATION)
                        decision = by_state[state] = self._decide(node, request)
                except NotRememberedError:
                    raise
                except Exception as error:  # noqa: BLE001 (a listener logs it)
                    self._fault(NodeName(name), error)
                    table.put(name, NO_STATE, _undecided(node, request))
                    table.faulted.add(name)
                else:
                    table.put(name, state, decision)
        if added:
            self._forget_old_tables()
        return table

    def work_out(
        self, request: GpuRequest, names: Sequence[str], seconds: float, *, scores: bool = False
    ) -> bool:
        """Work out what nobody has asked yet, for about so long; whether all of it is done.

        The lock is held for a few states at a time. What is done stays remembered, so whoever asks
        again goes on from there. With ``scores`` that is the scores, too.
        """
        until = self._clock() + seconds

        def in_time() -> None:
            if self._clock() >= until:
                raise NotRememberedError

        with self._lock:
            self.table(request, ())  # what failed in former calls is tried again, once
        for start in range(0, len(names), SLICE):
            part = names[start : start + SLICE]
            while True:
                try:
                    steps, end = EVALUATION + 2 * len(part), self._clock() + TURN_SECONDS
                    with self.bounded(steps, wait=True, until=end), interrupted_by(in_time):
                        if scores:
                            self.scores(request, part, retry=False)
                        else:
                            self.table(request, part, retry=False)
                    break
                except NotRememberedError:
                    if self._clock() >= until:
                        return False
        return True

    def left_over(self, request: GpuRequest, names: Iterable[str]) -> list[str]:
        """The known nodes of which no answer is remembered. Call it under :meth:`locked`."""
        decided = self.table(request, (), retry=False).decisions
        return [n for n in names if n not in decided and n in self._nodes]

    def undecided(self, name: str, request: GpuRequest) -> Decision:
        """The answer of a node that there was no time to decide about."""
        with self._lock:
            return _undecided(self._nodes.get(NodeName(name)), request)

    def _forget_old_tables(self) -> None:
        """Forget the requests asked longest ago where there are too many answers; one stays."""
        answers = sum(len(table.decisions) for table in self._tables.values())
        while len(self._tables) > 1 and (
            len(self._tables) > REMEMBERED_REQUESTS or answers > REMEMBERED_ANSWERS
        ):
            _, oldest = self._tables.popitem(last=False)
            answers -= len(oldest.decisions)

    def scores(
        self,
        request: GpuRequest,
        names: Iterable[str],
        *,
        work: bool = True,
        retry: bool = True,
    ) -> dict[str, int]:
        """The score of each named node beside the others, 0 to 10; a refused one has 0.

        Nodes that nobody told us of are scored, and not remembered: anyone can name some. Without
        ``work`` nothing is worked out, and nodes that are not remembered are scored like them.
        """
        with self._lock:
            names = list(names)
            table = self.table(request, names if work else (), retry=retry)
            states, passed = list(map(table.states.get, names)), table.passed
            # Nodes in one state have one answer: any of them stands for all.
            some = {s: n for s, n in dict(zip(states, names, strict=True)).items() if n in passed}
            merits: dict[int, Merit] = {}
            for state, name in some.items():
                if state is not None and work:
                    merits[state] = self._merit_or_unknown(NodeName(name), state, request, table)
                elif state is not None:
                    merits[state] = table.merits.get(state, scoring.UNKNOWN)
            by_merit = scoring.scores(request, {*merits.values(), scoring.UNKNOWN})
            score_of: dict[int | None, int] = dict.fromkeys(states, 0)
            score_of |= {state: by_merit[m] for state, m in merits.items()}
            score_of[None] = by_merit[scoring.UNKNOWN]
            return dict(zip(names, map(score_of.__getitem__, states), strict=True))

    def _merit_or_unknown(
        self, name: NodeName, state: int, request: GpuRequest, table: Table
    ) -> Merit:
        """What speaks for a state; :data:`scoring.UNKNOWN` where working it out fails."""
        if state == NO_STATE:
            return scoring.UNKNOWN
        merit = table.merits.get(state)
        if merit is None:
            try:
                merit = table.merits[state] = self._merit(name, request, table)
            except NotRememberedError:
                raise
            except Exception as error:  # noqa: BLE001 (a listener logs it)
                self._fault(name, error)
                merit = table.merits[state] = scoring.UNKNOWN
        return merit

    def _merit(self, name: NodeName, request: GpuRequest, table: Table) -> Merit:
        mix = self._mix.current
        kinds = scoring.classes_of(mix)
        if table.kinds != kinds:
            table.kinds = kinds
            table.prospects.clear()
        state = table.states[name]
        self._spend(1)
        if state not in table.prospects:
            self._spend(EVALUATION)
            table.prospects[state] = self._prospect(name, request, table)
        return table.prospects[state].weighed(mix)

    def _prospect(self, name: NodeName, request: GpuRequest, table: Table) -> Prospect:
        assessed, node = table.decisions[name].assessment, self._nodes[name]
        if assessed is None or node.topology is None:
            return Prospect(scoring.UNKNOWN)
        served = node.topology.resource(request.resource)
        view = self._view(node, request.resource)
        if served is None or isinstance(view, str):
            return Prospect(scoring.UNKNOWN)
        kubelet = kubelet_of(node.topology, served)
        return scoring.prospect(kubelet, view, request, assessed, table.kinds)

    def _observe(self, pod: PodRecord) -> None:
        """Count a pod that is seen for the first time into the mix of requests."""
        if isinstance(pod.request, GpuRequest) and self._mix.observe(pod.request):
            for table in self._tables.values():
                table.merits.clear()

    def decide(self, name: NodeName, request: GpuRequest) -> Decision:
        """The answer of one node to one request: the filter table of the design, row by row.

        Where deciding fails it is refused, or passes if the pod is plain (see :func:`_undecided`).
        """
        if request.required and self.blind():
            return Decision(OUT_OF_DATE)
        with self._lock:
            self._expire()
            return self._decide_or_refuse(name, self._nodes.get(name), request)

    def _decide_or_refuse(
        self, name: NodeName, node: _Node | None, request: GpuRequest
    ) -> Decision:
        self._spend(EVALUATION)
        try:
            return self._decide(node, request)
        except NotRememberedError:
            raise
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._fault(name, error)
            return _undecided(node, request)

    def state(self, name: NodeName, resource: str) -> int:
        """A number for all that a known node's answers over ``resource`` depend on.

        Nodes with one number answer every request alike; it holds until the node changes
        (:meth:`on_change`). Raises :class:`KeyError` for a node that nobody told us of.
        """
        with self._lock:
            self._expire()
            node = self._nodes[name]
            return node.states.get(resource) or self._state(node, resource)

    def _state_facts(self, node: _Node, resource: str) -> tuple[object, ...]:
        """Everything that a node's answers over ``resource`` depend on."""
        topology = node.topology
        facts: tuple[object, ...] = (
            node.problem is not None,
            node.report is None,
            node.dra_only,
            node.stale,
            node.report is not None and node.report.not_ready != "",
        )
        if topology is not None:
            view = None if node.problem or node.report is None else self._view(node, resource)
            facts += (topology.shape, topology.allocator, topology.resources, view)
            facts += (node.haunted(),)
        return facts

    def _state(self, node: _Node, resource: str) -> int:
        """A number for what a node's answers over ``resource`` depend on."""
        facts = self._state_facts(node, resource)
        state = self._state_numbers.get(facts)
        if state is None:
            self._last_state += 1
            state = self._state_numbers[facts] = self._last_state
            self._facts[state] = facts
        node.states[resource] = state
        self._nodes_in[state] += 1
        return state

    def _leave_states(self, node: _Node) -> None:
        """The node is about to change; a state that no node is in any more is forgotten."""
        for state in node.states.values():
            self._nodes_in[state] -= 1
            if not self._nodes_in[state]:
                del self._nodes_in[state], self._state_numbers[self._facts.pop(state)]
                for table in self._tables.values():
                    table.forget_state(state)
        node.states.clear()

    def decide_without(
        self,
        name: NodeName,
        request: GpuRequest,
        gone: frozenset[PodUid],
        known: dict[tuple[object, ...], Decision] | None = None,
    ) -> Decision:
        """The answer that a node would give, had some of its pods ended and let go.

        ``known`` holds the answers of one request over many nodes, by what they depend on.
        """
        if request.required and self.blind():
            return Decision(OUT_OF_DATE)
        with self._lock:
            self._expire()
            node = self._nodes.get(name)
            if node is None or node.topology is None or node.report is None:
                return self._decide_or_refuse(name, node, request)
            kept = tuple(a for a in node.report.allocations if a.pod_uid not in gone)
            without = replace(
                node,
                report=replace(node.report, allocations=kept),
                pods={uid: pod for uid, pod in node.pods.items() if uid not in gone},
                in_flight={uid: pod for uid, pod in node.in_flight.items() if uid not in gone},
                departed={uid: pod for uid, pod in node.departed.items() if uid not in gone},
                ghosts=dict(node.ghosts),  # what is supposed here must not prune the real ones
                views={},
                states={},
            )
            # Nodes that would be in one state share the answer.
            try:
                facts = self._state_facts(without, request.resource)
            except Exception as error:  # noqa: BLE001 (a listener logs it)
                self._fault(name, error)
                return _undecided(without, request)
            known = {} if known is None else known
            if facts not in known:
                known[facts] = self._decide_or_refuse(name, without, request)
            return known[facts]

    def _decide(self, node: _Node | None, request: GpuRequest) -> Decision:
        if node is not None and node.problem is not None:
            return _unknown(request, UNUSABLE)
        if node is None or node.topology is None or node.report is None:
            return _unknown(request, NO_REPORT)
        if node.dra_only or not node.topology.resources:
            return _unknown(request, DRA_ONLY)
        if node.stale:
            return _unknown(request, STALE)
        if node.report.not_ready:
            return _unknown(request, NOT_READY)
        served = node.topology.resource(request.resource)
        if served is None:
            return _unknown(request, NOT_SERVED)
        if served.strategy == "mig":
            return _unknown(request, SPLIT)
        view = self._view(node, request.resource)
        if isinstance(view, str):
            return _unknown(request, UNUSABLE)
        if node.haunted():
            return _undecided(node, request)
        kubelet = kubelet_of(node.topology, served)
        assessed = assess(kubelet, view, request)
        if not assessed.fits and not request.required:
            # The constraints do not refuse it, the count does.
            return Decision(TOO_FEW if assessed.rejection is TOO_FEW else BUSY, assessed)
        if request.required and assessed.rejection is not None:
            return Decision(assessed.rejection, assessed)
        if endangers(kubelet, view, request):
            return Decision(IN_PROGRESS, assessed)
        if request.required and not _strong_enough(assessed.verdict, self.settings.require):
            words = f"not guaranteed if a running GPU pod ends: {request.constraints.text}"
            return Decision(Rejection(words, resolvable=True), assessed)
        return Decision(None, assessed)

    def forget_answers(self) -> None:
        """Forget every remembered answer; the next ones are worked out anew."""
        with self._lock:
            self._tables.clear()

    # Binds in flight.

    def reserve(self, name: NodeName, pod: PodRecord) -> PodRecord:
        """Count a pod as bound to a node before the API server knows; the reservation."""
        with self._lock:
            ours = replace(pod, node=name)
            self._fly(name, ours)
            return ours

    def take_back(self, ours: PodRecord, before: PodRecord | None) -> None:
        """Undo a reservation whose bind was surely not written: ``before`` stands again.

        Nothing happens where it is not ours any more: another bind of the pod has begun, or its
        end is known.
        """
        with self._lock:
            if self.reservation(ours.uid) is not ours:
                return
            if before is None:
                self.release(ours.uid)
            else:
                self._fly(before.node or NodeName(""), before)

    def _fly(self, name: NodeName, pod: PodRecord) -> None:
        self._nodes.setdefault(name, _Node()).in_flight[pod.uid] = pod
        self._in_flight[pod.uid] = name
        self._touch(name)

    def release(self, uid: PodUid) -> None:
        """End a bind in flight: it failed for sure, or the pod's own record has taken over."""
        with self._lock:
            name = self._in_flight.pop(uid, None)
            if name is not None:
                self._nodes[name].in_flight.pop(uid, None)
                self._touch(name)
                self._prune(name)

    def reservation(self, uid: PodUid) -> PodRecord | None:
        """A pod's bind in flight, if there is one."""
        with self._lock:
            name = self._in_flight.get(uid)
            return None if name is None else self._nodes[name].in_flight[uid]

    def in_flight(self) -> list[PodRecord]:
        """Every bind in flight."""
        with self._lock:
            return [pod for node in self._nodes.values() for pod in node.in_flight.values()]

    # Freshness.

    def _freshen(self, name: NodeName, node: _Node, age: float) -> None:
        node.changed_at = self._clock() - max(0.0, age)
        node.stale = False
        if self.settings.stale_after is not None and node.expiry is None:
            self._queue_expiry(name, node, node.changed_at + self.settings.stale_after)

    def _queue_expiry(self, name: NodeName, node: _Node, when: float) -> None:
        node.expiry = when
        heappush(self._expiries, (when, name))

    def _expire(self) -> None:
        """Call stale whoever has not reported for too long.

        A node stands in the queue once; when its turn comes and it has reported since, it queues
        again for its new time.
        """
        if not self._expiries:
            return
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            self._spend(1 + len(self._tables) // 16)
            when, name = heappop(self._expiries)
            node = self._nodes.get(name)
            if node is None or node.expiry != when:
                continue  # another node of this name has been forgotten since
            node.expiry = None
            if node.report is None or self.settings.stale_after is None:
                continue
            deadline = node.changed_at + self.settings.stale_after
            if deadline > now:
                self._queue_expiry(name, node, deadline)
            else:
                node.stale = True
                self._touch(name)

    def sighted(self) -> None:
        """Tell the listeners of every node: after a time of blindness anything may have changed."""
        with self._lock:
            for name in self._nodes:
                for listener in self._listeners:
                    listener(name)

    def _touch(self, name: NodeName) -> None:
        self._nodes[name].views.clear()
        self._leave_states(self._nodes[name])
        for table in self._tables.values():
            table.drop(name)
        for listener in self._listeners:
            listener(name)


def kubelet_of(topology: NodeTopology, served: GpuResource) -> Kubelet:
    """How a node hands out one of its resources."""
    return Kubelet(topology.shape, topology.allocator, served.replicas)


def _as_known(pod: PodRecord, node: _Node) -> PodRecord:
    """A pod that an earlier report has shown runs, whatever its own status says so far."""
    seen = pod.uid in node.reported and pod.phase == "Pending"
    return replace(pod, phase="Running") if seen else pod


def _unknown(request: GpuRequest, why: Rejection) -> Decision:
    """The rows of the filter table in which a node's state is not known."""
    return Decision(why if request.required else None)


def _with_promise_of(pod: PodRecord, *known: PodRecord | None) -> PodRecord:
    """A bound pod with the promise that we know of, not the one that its annotation tells now.

    A promise is given by the bind and stays: whoever writes to the pod later changes nothing.
    """
    for earlier in known:
        if earlier is not None and earlier.node == pod.node:
            return replace(
                pod, promised=earlier.promised, survives_endings=earlier.survives_endings
            )
    return pod


def _undecided(node: _Node | None, request: GpuRequest) -> Decision:
    """The answer of a node about which deciding failed: only what cannot break a promise passes."""
    if request.required:
        return Decision(UNDECIDED)
    return Decision(IN_PROGRESS if node is not None and node.promises() else None)


def _remember_reported(node: _Node) -> None:
    """Keep in mind whose devices have been shown since the node booted."""
    report = node.report
    if report is None:
        return
    if report.boot_id != node.boot_id:
        node.boot_id = report.boot_id
        node.reported.clear()
        node.ghosts.clear()
        node.departed.clear()
    node.reported &= {pod.uid for pod in node.all_pods()}
    node.reported |= {a.pod_uid for a in report.allocations}


def _same_but_sequence(report: Report | None, known: Report | None) -> bool:
    """Whether a report is a mere heartbeat."""
    return (
        report is not None
        and known is not None
        and replace(report, sequence=0) == replace(known, sequence=0)
    )


def _strong_enough(verdict: Verdict, least: Verdict) -> bool:
    return verdict is Verdict.GUARANTEED or least is Verdict.EXPECTED
