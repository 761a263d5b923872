"""The facts of every node, and the answers about them, under one lock.

Nothing under the lock does I/O. Who asks takes a :class:`.lookup.Look`, works out what is missing
on the frozen facts in it (:mod:`.enquiry`), and hands the answers in to be remembered. That is done
without the lock, but for the few answers that the event loop works out itself, and the last try of
a bind on a node that changes all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

from scheduler_extender.deadline import NO_DEADLINE, Deadline, NotAtOnceError
from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.membership import Group
from scheduler_extender.state.answers.decision import Decision, Settings, undecided
from scheduler_extender.state.answers.faults import Faults
from scheduler_extender.state.answers.lookup import (
    SLICE,
    Look,
    Lookup,
    Size,
)
from scheduler_extender.state.answers.refusing import with_pauses_ended
from scheduler_extender.state.answers.remembered import State
from scheduler_extender.state.answers.tallies import Tallies
from scheduler_extender.state.cluster import freshness
from scheduler_extender.state.cluster.freshness import Staleness, Watch
from scheduler_extender.state.cluster.keptplaces import KeptPlaces, is_not_scheduled
from scheduler_extender.state.cluster.pauses import Pauses
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.node.transitions import with_stale_report
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.keptplace import KeptPlace
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import Others, nobody_knows
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.core.scoring import Mix, Prospect, RequestClasses


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is known of all nodes at one moment, by name, and what else their answers depend on.

    ``mix`` is what scores weigh the future by. ``blind`` says that a watch had told us nothing for
    so long that all of this may be wrong.
    """

    nodes: tuple[NodeFacts, ...]
    mix: Mix
    blind: bool


class Board:
    """What is known of all nodes now. ``clock`` gives seconds and only has to run forward.

    ``today`` gives the time of day in seconds since 1970, in which people say until when a place
    is kept.
    ``budgets`` are the PodDisruptionBudgets; None as long as they are not known.
    ``others`` is whom to ask about the pods without devices; not under the lock.
    ``watches`` are the watches that feed it, as they are now; none where nothing is watched.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.watches = watches
        self.today: Callable[[], float] = time.time
        self.budgets: Budgets | None = None
        self.others: Others = nobody_knows
        self.faults = Faults()
        self.tallies = Tallies()
        self._lock = threading.RLock()
        self._nodes: dict[NodeName, NodeFacts] = {}
        self._nobody = Occupants(complete=settings.all_pods_known)
        self._staleness = Staleness(settings.stale_after)
        self._pauses = Pauses()
        self._kept_places = KeptPlaces()
        self._nominated: dict[PodUid, PodRecord] = {}
        self._lookup = Lookup(self.faults)
        self._pods: dict[PodUid, PodRecord] = {}
        self._on_change: list[Callable[[NodeName], None]] = []
        self.version = 0
        """Grows whenever what people are shown may have changed: a node, or a pod. To be read
        without the lock; heartbeats that say nothing new do not count."""

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

    def on_change(self, listener: Callable[[NodeName], None]) -> None:
        """Call ``listener`` with a node's name whenever what it can offer may have changed.

        Called under the lock, so it must only take a note.
        """
        self._on_change.append(listener)

    # What is known.

    def facts(self, name: NodeName) -> NodeFacts:
        """What is known of a node now; empty where nobody told us of it."""
        with self._lock:
            self._expire()
            return self._facts(name)

    def all_facts(self) -> list[NodeFacts]:
        """What is known of every node now, by name."""
        with self._lock:
            self._expire()
            return [facts for _, facts in sorted(self._nodes.items())]

    def cluster_facts(self) -> ClusterFacts:
        """All that answers depend on, at this one moment."""
        with self._lock:
            return ClusterFacts(tuple(self.all_facts()), self._lookup.mix, self.blind())

    def names(self) -> list[NodeName]:
        """Every node we know of, sorted."""
        with self._lock:
            return sorted(self._nodes)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        with self._lock:
            return self._pods.get(uid)

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """The pod of this name, as last seen. O(pods)."""
        with self._lock:
            found = (p for p in self._pods.values() if (p.namespace, p.name) == (namespace, name))
            return next(found, None)

    def pods_by_name(self) -> dict[tuple[str, str], PodRecord]:
        """Every pod by namespace and name, as last seen."""
        with self._lock:
            return {(pod.namespace, pod.name): pod for pod in self._pods.values()}

    def unschedulable_pods(self) -> list[PodRecord]:
        """Pods that kube-scheduler has called unschedulable."""
        with self._lock:
            return [pod for pod in self._pods.values() if pod.unschedulable]

    # The answers that are remembered.

    def look(
        self,
        request: GpuRequest,
        names: Sequence[str],
        *,
        scores: bool = False,
        deadline: Deadline = NO_DEADLINE,
    ) -> Look:
        """The remembered answers about some nodes, and what is missing.

        The states of nodes that have changed are found while there is time. With ``scores`` the
        look has merits, too. The event loop's look raises :class:`NotAtOnceError` where the states
        of more than a few nodes have to be found, or finding one fails.
        """
        faulted: set[str] = set()
        look = self._look(request, names, faulted, scores=scores, deadline=deadline)
        deadline.need_quick(not (look.faulted or look.unfound))
        if look.unfound:
            self._find_states(request.resource, look.unfound, faulted, deadline)
            look = self._look(request, names, faulted, scores=scores)
        return look

    def _look(
        self,
        request: GpuRequest,
        names: Sequence[str],
        faulted: set[str],
        *,
        scores: bool,
        deadline: Deadline = NO_DEADLINE,
    ) -> Look:
        with self._lock:
            self._expire(deadline)
            return self._lookup.look(
                request, names, self._nodes, faulted, scores=scores, deadline=deadline
            )

    def holds(self, look: Look) -> bool:
        """Whether nothing has changed since a look."""
        with self._lock:
            self._expire()
            return self._lookup.moment == look.moment

    def _find_states(
        self, resource: str, names: Sequence[str], faulted: set[str], deadline: Deadline
    ) -> None:
        """Find the states of nodes that have changed, each once; the lock is given back between."""
        for start in range(0, len(names), SLICE):
            if deadline.passed():
                return
            with self._lock:
                self._lookup.find(resource, names[start : start + SLICE], self._nodes, faulted)

    def _states_found(self, resource: str, names: Sequence[str], deadline: Deadline) -> None:
        """Find the states of nodes that have changed. The event loop's caller holds the lock, and
        is told with :class:`.NotAtOnceError` if there are any."""
        if deadline.at_once:
            deadline.need_quick(not self._lookup.unknown(resource, names, self._nodes))
        else:
            self._find_states(resource, names, set(), deadline)

    def remember(self, request: GpuRequest, state: State, decision: Decision) -> None:
        """Remember an answer, as long as some node is in that state."""
        with self._lock:
            self._lookup.remember(request, state, decision)

    def remember_prospect(
        self, request: GpuRequest, state: State, prospect: Prospect, classes: RequestClasses
    ) -> None:
        """Remember what a placement in a state would cost, as long as some node is in it."""
        with self._lock:
            self._lookup.remember_prospect(request, state, prospect, classes)

    def undecided(self, names: Iterable[str], request: GpuRequest) -> dict[str, Decision]:
        """The answers of nodes that could not be decided about."""
        with self._lock:
            return {n: undecided(self._facts(NodeName(n)), request) for n in names}

    def state(self, name: NodeName, resource: str) -> State:
        """The state of a known node over ``resource``; it holds until the node changes.

        Raises :class:`KeyError` for a node that nobody told us of.
        """
        with self._lock:
            self._expire()
            return self._lookup.state(self._nodes[name], resource)

    def remembered(self) -> Size:
        """How much is remembered."""
        with self._lock:
            return self._lookup.size()

    def forget_answers(self) -> None:
        """Forget every remembered answer; the next ones are worked out anew."""
        with self._lock:
            self._lookup.clear()

    # Freshness.

    def blind(self) -> bool:
        """Whether a watch has told us nothing for so long that our picture may be wrong."""
        return bool(freshness.blind(self.watches(), self.clock()))

    def unready(self) -> tuple[str, ...]:
        """The watches that have been blind for too long to go on answering."""
        return freshness.unready(self.watches(), self.clock())

    def tell_of_all_nodes(self) -> None:
        """Tell the listeners of every node: any of them may be news, as after a time in which a
        watch was blind."""
        with self._lock:
            for name in self._nodes:
                self._tell(name)

    def expire(self) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses that are over."""
        with self._lock:
            self._expire()

    def _expire(self, deadline: Deadline = NO_DEADLINE) -> None:
        """Call stale whoever has not reported for too long; end the pauses that are over."""
        now = self.clock()
        deadline.need_quick(self._staleness.overdue(now) <= AT_ONCE_STATES)
        for name in self._staleness.take(now):
            facts = self._nodes.get(name)
            if facts is not None and facts.report is not None:
                self._put(with_stale_report(facts))
        for name in self._pauses.take(now):
            facts = self._nodes.get(name)
            if facts is not None and (ended := with_pauses_ended(facts, now)) is not facts:
                self._put(ended)
        for name in self._kept_places.ended(now):
            self._keep_place(name)

    # Places that are kept for waiting pods.

    def places_of(self, uid: PodUid) -> frozenset[NodeName]:
        """The nodes on which a place is kept for this pod: one by its annotation, one where
        kube-scheduler has nominated it."""
        if not self._kept_places and uid not in self._nominated:
            return frozenset()
        with self._lock:
            self._expire()
            nominee = self._nominated.get(uid)
            names = self._kept_places.of(uid), nominee and nominee.standing.nominated
            return frozenset(n for n in names if n and self._facts(n).keeps_place_for(uid))

    def asked_apart(
        self, uid: PodUid, priority: int, gang: Group | None = None
    ) -> frozenset[NodeName]:
        """The nodes that answer this pod otherwise than others that ask the same: a place is kept
        there for the pod itself, or one that yields to it (:meth:`.NodeFacts.yields_to`)."""
        own = self.places_of(uid)
        with self._lock:
            nominated = {pod.standing.nominated for pod in self._nominated.values()}
            if gang is not None:
                nominated |= {
                    pod.kept_place.node for pod in self._kept_places.waiting() if pod.kept_place
                }
            found = {n for n in nominated if n and self._facts(n).yields_to(priority, gang)}
        return own | found

    def places_settled(self) -> bool:
        """Whether the order of the places that are kept is settled (:mod:`.keptplaces`)."""
        with self._lock:
            return self._kept_places.settled(self.clock())

    def pods_with_places(self) -> list[PodRecord]:
        """The waiting pods for which a place is kept somewhere."""
        with self._lock:
            self._expire()
            kept = {pod.uid: pod for pod in self._kept_places.waiting()}
            return list((kept | self._nominated).values())

    def _take_kept_place(self, pod: PodRecord) -> None:
        """Take in what a pod's annotation says of a place that is kept for it."""
        for name in self._kept_places.take(pod, self.clock(), self.today()):
            self._keep_place(name)

    def _drop_kept_place(self, uid: PodUid) -> None:
        for name in self._kept_places.drop(uid):
            self._keep_place(name)

    def _keep_place(self, name: NodeName) -> None:
        """Keep the place on a node that is to be kept there now, or none."""
        pod, before = self._kept_places.on(name), self._facts(name).kept_for
        if pod is None:
            pod = self._nominee(name)
        if _place_of(pod) != _place_of(before):
            self._put(replace(self._facts(name), kept_for=pod))

    def _take_nomination(self, uid: PodUid, pod: PodRecord | None) -> None:
        """Take in whether kube-scheduler has a node in mind for a pod; None where it is gone."""
        before = self._nominated.pop(uid, None)
        if pod is not None and pod.node is None and pod.standing.nominated is not None:
            self._nominated[uid] = pod
        for known in (before, self._nominated.get(uid)):
            if known is not None and known.standing.nominated is not None:
                self._keep_place(known.standing.nominated)

    def _nominee(self, name: NodeName) -> PodRecord | None:
        """The nominated pod for which the node's place is kept: the one of highest priority, with
        its nomination as the place. kube-scheduler keeps a number of GPUs, and not which ones."""
        facts = self._facts(name)
        here = [
            pod
            for pod in self._nominated.values()
            if pod.standing.nominated == name
            and not is_not_scheduled(pod)
            and facts.is_open_to(pod)
        ]
        first = min(here, key=lambda pod: (-pod.standing.priority, pod.uid), default=None)
        return first and replace(first, kept_place=KeptPlace(name, inf))

    # Inside.

    def _facts(self, name: NodeName) -> NodeFacts:
        return self._nodes.get(name) or NodeFacts(name, pods=self._nobody)

    def _put(self, facts: NodeFacts, *, changed: bool = True) -> None:
        """A node's facts are these now; ``changed`` says that its answers may be others."""
        name = facts.name
        before = self._nodes.get(name)
        if facts.known:
            self._nodes[name] = facts
        elif self._nodes.pop(name, None) is not None:
            self._staleness.forget(name)
        self._replaced(before, facts, changed=changed)
        if changed:
            self.version += 1
            self._lookup.leave(name)
            self._tell(name)

    def _replaced(self, before: NodeFacts | None, after: NodeFacts, *, changed: bool) -> None:
        """A node's facts are others now; see :meth:`_put`."""

    def _tell(self, name: NodeName) -> None:
        for listener in self._on_change:
            listener(name)


def _place_of(pod: PodRecord | None) -> object:
    """All that a node's answers depend on of the pod for which a place is kept there."""
    return pod and (pod.uid, pod.request, pod.kept_place)
