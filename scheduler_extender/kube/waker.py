"""Wakes pods that were called unschedulable when a node they fit on has changed.

kube-scheduler does not look again at a rejected pod when a GPUTopology changes. A small annotation
on the pod makes it look; written only after our own cache holds the change, only if a changed node
would take the pod now, and for one pod ever more rarely while it stays: kube-scheduler may refuse
it for reasons that we do not see, or another pod may be faster. A node has changed, too, where a
place that was kept for a group is no longer.

A round does a bounded amount of work however many pods wait and nodes change. Pods that ask the
same, and have been looked at equally late, share one look; what a round does not get to, the next
ones do, whoever has waited longest first.
"""

import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from uuid import uuid4

import msgspec
import structlog

from scheduler_extender.annotations import WAKE, Malformed
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.membership import Group
from scheduler_extender.ratelimit import LogLimit
from scheduler_extender.state.asking.byclaims import ask_by_claims
from scheduler_extender.state.asking.enquiry import answer, decided, states_of
from scheduler_extender.state.asking.places import PlaceCounter
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.kubeapi.apiserver import ApiFailure, ApiServer, ApiUnreachable, path

log = structlog.get_logger(__name__)

WRITE_TIMEOUT = 2.0  # seconds
# Seconds between two log lines about one request that fails; lines a second, at once.
PAUSE, RATE, BURST = 3600.0, 0.1, 8


_Alike = tuple[GpuRequest, int, frozenset[NodeName]]
"""What pods ask, the last change that they have seen, and the places that yield to them."""


@dataclass(slots=True)
class _Budget:
    """What is left of one round's work."""

    looks: int
    evaluations: int
    deadline: Deadline

    @property
    def spent(self) -> bool:
        return self.looks <= 0 or self.evaluations <= 0 or self.deadline.passed()


class Waker:
    """See the module. :meth:`round` is called by one thread; ``breathe`` lets other threads run
    before something is worked out, and ``clock`` gives the seconds that a round takes.

    ``woken``, ``failed`` and ``looks`` count wakes, requests whose evaluation failed, and times
    that the cluster was asked.
    """

    # Seconds between the first two wakes of a pod; each further pause is twice as long.
    SHORTEST = 2.0
    # Seconds between two wakes at most, where few pods have been woken and still wait.
    # kube-scheduler itself lets a pod that it keeps refusing wait for 10 s between two tries.
    LONGEST_ALONE = 10.0
    LONGEST = 60.0  # seconds between two wakes at most, however many pods wait
    # Wakes a second that pods may cost in the long run, where a node changes all the time. Only if
    # more than ``CROWD_RATE * LONGEST`` pods wait they cost more: each is woken every
    # :data:`LONGEST` seconds.
    CROWD_RATE = 10.0
    MEMORY = 90.0  # seconds for which a change counts
    AT_ONCE = 50  # wakes in one round; whoever is left waits for the next
    LOOKS = 500
    SLICE = 100  # times that the cluster is asked in one round, and about how many nodes each time
    EVALUATIONS = 50  # answers that are worked out in one round
    # Pods in a row about which the API server does not answer; then the round is over.
    MOST_UNANSWERED = 2
    SECONDS = 0.15  # after so long, too, a round works nothing more out

    def __init__(
        self,
        cluster: Cluster,
        api: ApiServer,
        breathe: Callable[[], None] = lambda: time.sleep(0.001),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._breathe = breathe
        self._clock = clock
        self._new: set[NodeName] = set()
        self._lock = threading.Lock()
        # Changed nodes in the order of their last change: its number, and when we heard of it.
        self._changed: dict[NodeName, tuple[int, float]] = {}
        self._names: list[NodeName] = []
        self._numbers: list[int] = []
        self._last = self._rounds = 0
        # The places that were kept for groups when we last looked, and when we look again.
        self._kept: Mapping[NodeName, Collection[object]] = {}
        self._look_again = float("-inf")
        # For each unschedulable pod: the number of the last change that it was asked about; when it
        # was woken last, and the pause after that where nobody else waits for long.
        self._tried: dict[PodUid, int] = {}
        self._tried_place: dict[PodUid, int] = {}
        self._woken: dict[PodUid, tuple[float, float]] = {}
        # The last round in which a request was looked at, or a pod with claims of its own.
        self._served: dict[GpuRequest, int] = {}
        self._looked: dict[PodUid, int] = {}
        self._limit = LogLimit(PAUSE, RATE, BURST)
        # The pods about which the API server has not answered, since it last did about any.
        self._unanswered: set[PodUid] = set()
        self.woken = self.failed = self.looks = 0
        # A value that another extender wrote, before us or started with us, would change nothing,
        # and wake nobody.
        self._ours = uuid4().hex[:12]
        cluster.on_change.append(self._note)

    def _note(self, name: NodeName) -> None:
        with self._lock:
            self._new.add(name)

    def round(self, now: float) -> None:
        """Wake whoever a recently changed node would take. ``now`` in seconds."""
        self._cluster.expire()  # a pause that ends is a change, and nobody else may be asking
        snapshot = self._take_changes(now)
        unschedulable = {pod.uid: pod for pod in snapshot.unschedulable}
        self._woken = {uid: last for uid, last in self._woken.items() if uid in unschedulable}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in unschedulable}
        self._looked = {uid: at for uid, at in self._looked.items() if uid in unschedulable}
        places = self._tried_place.items()
        self._tried_place = {uid: at for uid, at in places if uid in unschedulable}
        if not self._changed:
            return
        self._wake_for_their_places(snapshot, unschedulable, now)
        self._wake_by_claims(snapshot, unschedulable.values(), now)
        groups = self._groups(snapshot, unschedulable.values(), now)
        requests = {request for request, *_ in groups}
        self._served = {r: at for r, at in self._served.items() if r in requests}
        budget = _Budget(self.LOOKS, self.EVALUATIONS, within(self._clock, self.SECONDS))
        wakes = self.AT_ONCE
        # Whose request was looked at longest ago comes first; among equals, who has seen least.
        for key in sorted(groups, key=lambda k: (self._served.get(k[0], -1), k[1])):
            if wakes <= 0 or budget.spent:
                return
            (request, tried, yielding), pods = key, groups[key]
            self._served[request] = self._rounds
            then = snapshot.with_facts(map(_without_place, map(snapshot.facts, yielding)))
            fits, tried = self._look(then, request, tried, budget)
            self._tried |= dict.fromkeys((pod.uid for pod in pods), tried)
            if not fits:
                continue
            # Those who were woken least often come first.
            pods.sort(key=lambda pod: self._woken.get(pod.uid, (0.0, 0.0))[1])
            if not self._wake_in_turn(pods[:wakes], now):
                return  # the next would wait for nothing, too
            wakes -= len(pods[:wakes])

    def _wake_in_turn(self, pods: Iterable[PodRecord], now: float) -> bool:
        """Wake these pods; False where the API server does not answer about several in a row.

        About one alone it may be slow, over a webhook for instance: the others do not wait for it,
        and it is tried ever more rarely.
        """
        for pod in pods:
            _, pause = self._woken.get(pod.uid, (0.0, self.SHORTEST / 2))
            self._woken[pod.uid] = (now, max(pause, self.SHORTEST))
            try:
                self._wake(pod)
            except ApiUnreachable as error:
                log.info("could not wake a pod", pod=pod.full_name, cause=str(error))
                self._unanswered.add(pod.uid)
                if len(self._unanswered) >= self.MOST_UNANSWERED:
                    return False
            except ApiFailure as error:
                log.info("could not wake a pod", pod=pod.full_name, cause=str(error))
            else:
                self._tried[pod.uid] = self._tried_place[pod.uid] = self._last
                self._rest(pod.uid, now, 2 * pause)
                if len(self._unanswered) < self.MOST_UNANSWERED:  # else it answered about nobody
                    for uid in self._unanswered:
                        self._rest(uid, now, 2 * self._woken.get(uid, (now, self.SHORTEST))[1])
                self._unanswered.clear()
        return True

    def _rest(self, uid: PodUid, now: float, pause: float) -> None:
        self._woken[uid] = (now, min(pause, self.LONGEST))

    def _wake_for_their_places(
        self, snapshot: Snapshot, unschedulable: dict[PodUid, PodRecord], now: float
    ) -> None:
        """Wake pods whose own place has come free, or GPUs on the node to which they are nominated:
        to all others that node answers no. Who has seen least comes first."""
        places = defaultdict[PodUid, set[NodeName | None]](set)
        for name, placed in snapshot.places.items():
            places[placed.uid].add(name)
        for uid, nominee in snapshot.nominated.items():
            places[uid].add(nominee.standing.nominated)
        deadline = within(self._clock, self.SECONDS)
        for uid in sorted(places, key=lambda uid: self._tried_place.get(uid, -1)):
            pod = unschedulable.get(uid)
            if pod is None or isinstance(pod.request, Malformed) or now < self._due(uid):
                continue
            if deadline.passed():
                return
            numbers = {name: self._changed.get(name, (-1, 0.0))[0] for name in places[uid] if name}
            newest = max(numbers.values(), default=-1)
            tried = self._tried_place.get(uid, -1)
            fits = any(
                number > tried and _fits(snapshot, name, pod, pod.request, deadline)
                for name, number in numbers.items()
            )
            if not fits:
                self._tried_place[uid] = max(tried, newest)
            elif not self._wake_in_turn([pod], now):
                return

    def _wake_by_claims(self, snapshot: Snapshot, pods: Iterable[PodRecord], now: float) -> None:
        """Wake pods with claims of their own. Each is looked at by itself, whoever was looked at
        longest ago first; among equals, who has seen least."""
        waiting = [
            (self._looked.get(pod.uid, -1), tried, pod)
            for pod in pods
            if pod.of_claims is not None
            and (tried := self._tried.get(pod.uid, -1)) < self._numbers[-1]
            and now >= self._due(pod.uid)
        ]
        waiting.sort(key=itemgetter(0, 1))
        deadline = within(self._clock, self.SECONDS)
        for _, tried, pod in waiting[: self.AT_ONCE]:
            if snapshot.blind or deadline.passed():
                return
            at = bisect_right(self._numbers, tried)
            names = self._names[at : at + self.SLICE]
            self._looked[pod.uid] = self._rounds
            self.looks += 1
            if not _claims_fit(snapshot, pod, names, deadline):
                self._tried[pod.uid] = self._numbers[at + len(names) - 1]
            elif not self._wake_in_turn([pod], now):
                return

    def _take_changes(self, now: float) -> Snapshot:
        """Take note of the nodes that have changed; the cluster after these changes."""
        self._rounds += 1
        with self._lock:
            new, self._new = self._new, set()
        snapshot = self._cluster.snapshot()
        new |= self._given_back(snapshot)
        changes = {name: at for name, at in self._changed.items() if name not in new}
        changes |= {name: (number, now) for number, name in enumerate(sorted(new), self._last + 1)}
        self._last += len(new)
        self._changed = {
            name: (number, at)
            for name, (number, at) in changes.items()
            if name in snapshot.by_name and now - at < self.MEMORY
        }
        self._names = list(self._changed)
        self._numbers = [number for number, _ in self._changed.values()]
        return snapshot

    def _given_back(self, snapshot: Snapshot) -> set[NodeName]:
        """The nodes on which a place was kept for a group, and no longer is. Thousands of groups
        take long to look at: that takes a tenth of the time at most."""
        before, began = self._kept, self._clock()
        if began < self._look_again:
            return set()
        deadline = within(self._clock, self.SECONDS)
        with deadline.ends():
            counter = PlaceCounter(snapshot, deadline)
            kept = counter.kept().kept
            self._kept = before if counter.late else kept
        self._look_again = self._clock() + 9 * (self._clock() - began)
        now = self._kept
        return {name for name, places in before.items() if not {*places} <= {*now.get(name, ())}}

    def _groups(
        self, snapshot: Snapshot, pods: Iterable[PodRecord], now: float
    ) -> dict[_Alike, list[PodRecord]]:
        """The pods that may be woken now and have not seen all changes, by what they ask, and which
        of the changed nodes keep a place that yields to them."""
        newest = self._numbers[-1]
        groups: dict[_Alike, list[PodRecord]] = {}
        places = [snapshot.facts(name) for name in snapshot.places.keys() & self._changed.keys()]
        yielding: dict[tuple[int, Group | None], frozenset[NodeName]] = {}
        for pod in pods:
            if isinstance(pod.request, Malformed) or (snapshot.blind and pod.request.required):
                continue  # blind, filter would refuse it anyway; afterwards every node is news
            if pod.of_claims is not None:
                continue
            tried = self._tried.get(pod.uid, -1)
            if tried < newest and now >= self._due(pod.uid):
                who = (pod.standing.priority, pod.gang)
                if who not in yielding:
                    yielding[who] = frozenset(each.name for each in places if each.yields_to(*who))
                groups.setdefault((pod.request, tried, yielding[who]), []).append(pod)
        return groups

    def _due(self, uid: PodUid) -> float:
        """When a pod may be woken again. The fewer pods wait, the shorter is the longest pause."""
        if uid not in self._woken:
            return float("-inf")
        at, pause = self._woken[uid]
        fair = len(self._woken) / self.CROWD_RATE
        return at + min(pause, max(fair, self.LONGEST_ALONE))

    def _look(
        self, snapshot: Snapshot, request: GpuRequest, tried: int, budget: _Budget
    ) -> tuple[bool, int]:
        """Whether a node that changed after change ``tried`` would take the request.

        With it comes the last change that has been looked at in vain: where the budget ends, the
        next round goes on behind it.
        """
        at = bisect_right(self._numbers, tried)
        try:
            while at < len(self._names) and not budget.spent:
                names = self._names[at : at + self.SLICE]
                passes, asked = self._ask(snapshot, request, names, budget)
                if passes:
                    return True, tried
                at += asked
                tried = self._numbers[at - 1] if at else tried
        except Exception:
            # A request that cannot be worked out must not cost the others their wake.
            self.failed += 1
            if self._limit.untold(request, time.monotonic()) is not None:
                log.exception("an unschedulable pod's request failed", asks=request.text)
            return False, self._last
        return False, tried

    def _ask(
        self, snapshot: Snapshot, request: GpuRequest, names: list[NodeName], budget: _Budget
    ) -> tuple[bool, int]:
        """Whether one of these nodes takes the request, and how many of them have been asked.

        That is all of them if nothing has to be worked out, and else the first that has to be,
        with those before it.
        """
        budget.looks -= 1
        self.looks += 1
        in_order, _ = states_of(snapshot, request.resource, names)
        states = {name: state for name, state in zip(names, in_order, strict=True) if state}
        decisions, _ = snapshot.remembered.answers(request, set(states.values()), None, counts=True)
        for at, name in enumerate(names, 1):
            state = states.get(name)
            if state is not None and state not in decisions:
                budget.evaluations -= 1
                self._breathe()
                decision = decided(snapshot, request, state, snapshot.facts(name))
                return decision.rejection is None, at
            if state is not None and decisions[state].rejection is None:
                return True, at
        return False, len(names)

    def _wake(self, pod: PodRecord) -> None:
        """Write the annotation. Raises :class:`ApiFailure`."""
        self.woken += 1
        value = f"{self._ours}-{self.woken}"
        body = {"metadata": {"uid": pod.uid, "annotations": {WAKE: value}}}
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        self._api.patch(where, msgspec.json.encode(body), timeout=WRITE_TIMEOUT)


def _without_place(facts: NodeFacts) -> NodeFacts:
    return replace(facts, reserved_for=None)


def _fits(
    snapshot: Snapshot, name: NodeName, pod: PodRecord, request: GpuRequest, deadline: Deadline
) -> bool:
    """Whether a node on which the pod has a place would take it by itself."""
    if pod.of_claims is not None:
        return _claims_fit(snapshot, pod, [name], deadline)
    without = snapshot.facts(name).without(frozenset({pod.uid}))
    return answer(snapshot, without, request).rejection is None


def _claims_fit(
    snapshot: Snapshot, pod: PodRecord, names: list[NodeName], deadline: Deadline
) -> bool:
    """Whether one of these nodes takes a pod with claims of its own, or there was no time to
    tell."""
    claims = pod.of_claims
    assert claims is not None  # noqa: S101 (the caller looked)
    found = ask_by_claims(snapshot, pod.uid, claims, names, deadline)
    late = found.late or any(answers.late for _, answers, _ in found.answered)
    return bool(late) or any(each.rejection is None for _, each in found.each())
