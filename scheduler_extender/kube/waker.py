"""Wake pods that kube-scheduler has found unschedulable, when a node that fits them has changed.

kube-scheduler does not try a rejected pod again when a GPUTopology changes. A small annotation on
the pod makes it try. The waker writes it only after the extender's cache holds the change, and only
if a changed node would take the pod now. It wakes the same pod ever more rarely: kube-scheduler may
reject it for reasons that we do not see, or another pod may be faster.

Changes of nodes wake pods. Pauses and reservations end, and reports grow stale, without an event:
then :meth:`.Cache.expire` announces the node as if it had changed. While a gang is sent to one
domain, its members are evaluated in every round. A member of a group is always evaluated on all
nodes, since the change of one node may open others to it.

A pod whose claim has lost its devices is evaluated on all nodes, too: it may now go to any of them.
kube-scheduler tries it again by itself, but may ask the extender before that knows of the change.

A round does a bounded amount of work however many pods wait and nodes change. Pods with the same
request that have seen the same changes share one evaluation. The next rounds do what a round does
not get to; the pods that have waited longest come first.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from uuid import uuid4

import msgspec
import structlog

from scheduler_extender.annotations import WAKE
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question, alike
from scheduler_extender.kube.draobjects import key_of
from scheduler_extender.ratelimit import LogLimit
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import ApiFailure, ApiServer, ApiUnreachable, path

log = structlog.get_logger(__name__)

WRITE_TIMEOUT = 2.0  # seconds
ANEW = -1  # in place of the number of the last change: the pod is evaluated on all nodes
# Seconds between two log lines about one failing request; lines a second; lines at once.
PAUSE, RATE, BURST = 3600.0, 0.1, 8


class Waker:
    """The waker, as the module describes it. One thread calls :meth:`round`.

    ``clock`` measures the seconds that a round takes. ``woken``, ``failed`` and ``looks`` count
    wakes, requests whose evaluation failed, and evaluations.
    """

    # Seconds between the first two wakes of a pod. Each further pause is twice as long.
    SHORTEST = 2.0
    # The most seconds between two wakes, if few woken pods still wait. kube-scheduler itself lets a
    # pod that it keeps rejecting wait for 10 s between two tries.
    LONGEST_ALONE = 10.0
    LONGEST = 60.0  # the most seconds between two wakes, however many pods wait
    # Wakes a second of all pods in the long run, if a node changes all the time. They cost more
    # only if more than ``CROWD_RATE * LONGEST`` pods wait: then each is woken every :data:`LONGEST`
    # seconds.
    CROWD_RATE = 10.0
    MEMORY = 90.0  # seconds for which a change counts
    AT_ONCE = 50  # wakes in one round; the other pods wait for the next round
    SLICE = 100  # nodes in one evaluation
    # After so many pods in a row about which the API server does not answer, the round is over.
    MOST_UNANSWERED = 2
    SECONDS = 0.15  # seconds after which a round begins no further evaluation

    def __init__(
        self,
        cluster: Cache,
        api: ApiServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._clock = clock
        # Changed nodes, and claims that have lost their devices. The cache's lock guards both.
        self._new: set[NodeName] = set()
        self._deallocated: set[str] = set()
        self._lost: dict[str, float] = {}  # such claims, and when we heard of it
        # Changed nodes in the order of their last change: the change's number, and when we heard of
        # it.
        self._changed: dict[NodeName, tuple[int, float]] = {}
        self._names: list[NodeName] = []
        self._numbers: list[int] = []
        self._last = self._rounds = 0
        # For each unschedulable pod: the number of the last change for which it was evaluated; when
        # it was last woken, and the pause after that if few pods wait.
        self._tried: dict[PodUid, int] = {}
        self._woken: dict[PodUid, tuple[float, float]] = {}
        # The last round in which pods were evaluated, by equal requests.
        self._served: dict[Hashable, int] = {}
        self._limit = LogLimit(PAUSE, RATE, BURST)
        # The pods about which the API server has not answered since it last answered about any pod.
        self._unanswered: set[PodUid] = set()
        self.woken = self.failed = self.looks = 0
        # A value that another extender has written, before us or started with us, would change
        # nothing, and so wake no pod.
        self._ours = uuid4().hex[:12]
        cluster.on_change.append(lambda name: self._new.add(name))
        cluster.on_deallocation.append(lambda keys: self._deallocated.update(keys))

    def round(self, now: float) -> None:
        """Wake the pods that a recently changed node would take. ``now`` is in seconds."""
        snapshot, claims = self._take_changes(now)
        unschedulable = {pod.uid: pod for pod in snapshot.unschedulable}
        self._woken = {uid: last for uid, last in self._woken.items() if uid in unschedulable}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in unschedulable}
        for uid, pod in unschedulable.items() if self._lost else ():
            since = claims if uid in self._tried else self._lost.keys()
            if not since.isdisjoint(key_of(pod.namespace, name) for name in pod.claims):
                self._tried[uid] = ANEW
        if not (self._changed or ANEW in self._tried.values()):
            return
        deadline, left = within(self._clock, self.SECONDS), self.AT_ONCE
        kinds = self._kinds(unschedulable.values(), now)
        here = {kind for kind, _ in kinds}
        self._served = {kind: at for kind, at in self._served.items() if kind in here}
        # Pods whose evaluation is longest ago come first. Among equals, those that have seen the
        # fewest changes come first.
        for key in sorted(kinds, key=lambda key: (self._served.get(key[0], -1), key[1])):
            if left <= 0 or deadline.passed():
                return
            (kind, tried), pods = key, kinds[key]
            self._served[kind] = self._rounds
            fits, tried = self._look(snapshot, pods[0], tried, deadline)
            self._tried |= dict.fromkeys((pod.uid for pod in pods), tried)
            if not fits:
                continue
            # Pods with the shortest pause, which have been woken least often, come first.
            pods.sort(key=lambda pod: self._woken.get(pod.uid, (0.0, 0.0))[1])
            if not self._wake_in_turn(pods[:left], now):
                return  # the next pods would wait in vain, too
            left -= len(pods[:left])

    def _wake_in_turn(self, pods: Iterable[PodRecord], now: float) -> bool:
        """Wake these pods. Return False if the API server does not answer about several in a row.

        It may be slow about one pod alone, for instance because of a webhook. Then the other pods
        do not wait for this one, and this one is tried ever more rarely.
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
                self._tried[pod.uid] = self._last
                self._rest(pod.uid, now, 2 * pause)
                if len(self._unanswered) < self.MOST_UNANSWERED:  # else it answered about no pod
                    for uid in self._unanswered:
                        self._rest(uid, now, 2 * self._woken.get(uid, (now, self.SHORTEST))[1])
                self._unanswered.clear()
        return True

    def _rest(self, uid: PodUid, now: float, pause: float) -> None:
        self._woken[uid] = (now, min(pause, self.LONGEST))

    def _take_changes(self, now: float) -> tuple[Snapshot, set[str]]:
        """Record the nodes that have changed.

        Return the snapshot after these changes, and the claims that have lost their devices.
        """
        self._rounds += 1
        with self._cluster.lock:
            snapshot = self._cluster.snapshot()
            new, self._new = self._new, set()
            claims, self._deallocated = self._deallocated, set()
        changes = {name: at for name, at in self._changed.items() if name not in new}
        changes |= {name: (number, now) for number, name in enumerate(sorted(new), self._last + 1)}
        self._last += len(new)
        self._changed = {
            name: (number, at)
            for name, (number, at) in changes.items()
            if name in snapshot.by_name and now - at < self.MEMORY
        }
        lost = self._lost | dict.fromkeys(claims, now)
        self._lost = {key: at for key, at in lost.items() if now - at < self.MEMORY}
        self._names = list(self._changed)
        self._numbers = [number for number, _ in self._changed.values()]
        return snapshot, claims

    def _kinds(
        self, pods: Iterable[PodRecord], now: float
    ) -> dict[tuple[Hashable, int], list[PodRecord]]:
        """Group the pods that may be woken now and have not seen all changes.

        Pods of one group have equal requests, which all nodes answer alike, and have seen the same
        changes.
        """
        kinds: dict[tuple[Hashable, int], list[PodRecord]] = {}
        latest = self._numbers[-1] if self._numbers else 0
        for pod in pods:
            tried = self._tried.get(pod.uid, 0)
            if tried < latest and now >= self._due(pod.uid):
                kinds.setdefault((alike(pod), tried), []).append(pod)
        return kinds

    def _due(self, uid: PodUid) -> float:
        """Return when a pod may be woken again.

        The fewer pods wait, the shorter is the longest pause.
        """
        if uid not in self._woken:
            return float("-inf")
        at, pause = self._woken[uid]
        fair = len(self._woken) / self.CROWD_RATE
        return at + min(pause, max(fair, self.LONGEST_ALONE))

    def _look(
        self, snapshot: Snapshot, pod: PodRecord, tried: int, deadline: Deadline
    ) -> tuple[bool, int]:
        """Check whether a node that changed after change ``tried`` would take the pod.

        The second value is the last change that was evaluated in vain. If the time is up, the next
        round continues after it.
        """
        question, at = Question(pod, Purpose.WAKE), bisect_right(self._numbers, tried)
        on_all = pod.group_ref is not None or tried == ANEW
        try:
            while (on_all or at < len(self._names)) and not deadline.passed():
                names = None if on_all else self._names[at : at + self.SLICE]
                self.looks += 1
                results = evaluate(snapshot, question, names, deadline)
                late_for_claims = results.late and pod.claim_constraints is not None
                if results.passed or late_for_claims:
                    return True, tried
                if results.late or results.for_now:
                    break
                if names is None:
                    return False, self._last
                at += len(names)
                tried = self._numbers[min(at, len(self._numbers)) - 1]
        except Exception:
            # A pod whose evaluation fails must not cost the other pods their wake.
            self.failed += 1
            if self._limit.untold(pod.request) is not None:
                log.exception("an unschedulable pod could not be evaluated", pod=pod.full_name)
            return False, self._last
        return False, tried

    def _wake(self, pod: PodRecord) -> None:
        """Write the wake annotation. Raises :class:`ApiFailure`."""
        self.woken += 1
        value = f"{self._ours}-{self.woken}"
        body = {"metadata": {"uid": pod.uid, "annotations": {WAKE: value}}}
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        self._api.patch(where, msgspec.json.encode(body), timeout=WRITE_TIMEOUT)
