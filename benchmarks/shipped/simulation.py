"""Jobs arrive, wait, run and leave. Virtual time; deciding takes none of it.

How jobs wait is in :mod:`benchmarks.shipped.queues`. A job's pods are placed one after the other at
one moment. ``gang``: all of them or none, as a gang plugin would have it. Without it, those placed
hold their GPUs until the last one is, and only then the job runs: two half-placed jobs can block
each other for ever, as they do in a cluster.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.shipped.attempts import Attempt, Lack, Outcome, PlacedPod
from benchmarks.shipped.clusters import Node
from benchmarks.shipped.fleet import Fleet, Ints, SimPod
from benchmarks.shipped.jobs import Job
from benchmarks.shipped.observe import Observer
from benchmarks.shipped.policy import Choice, Policy, Wait
from benchmarks.shipped.queues import Queue
from benchmarks.shipped.speed import Speed, weakest_hop
from topology.core.devices import PodUid
from topology.core.placement import satisfies
from topology.emulation import Refused

MOST_REFUSALS = 32
"""So many kubelets may refuse a pod before it waits."""
KUBELETS_REFUSE = Wait("every kubelet refuses it")


@dataclass(frozen=True, slots=True)
class Rules:
    """How jobs queue, start and run."""

    queue: str = "backfill"
    gang: bool = True
    speed: Speed = field(default_factory=Speed)


@dataclass(frozen=True, slots=True)
class Result:
    """A simulation's outcomes by arrival, why pods waited (tries), and refusals of kubelets."""

    outcomes: list[Outcome]
    reasons: Counter[str]
    refused: Counter[str]
    unplaceable: int
    stuck: int
    ended: float


class Simulation:
    """One policy, one cluster, one workload, one seed."""

    def __init__(
        self,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        policy: Callable[[], Policy],
        seed: int,
        rules: Rules = Rules(),
        observer: Observer | None = None,
    ) -> None:
        self._nodes, self._jobs, self._make = nodes, jobs, policy
        self._rules, self._observer = rules, observer
        self.rng = random.Random(seed)
        self.fleet = Fleet(nodes, self.rng)
        self._policy = policy()
        self._policy.begin(self.fleet, jobs, self.rng)
        self._requests = {
            job.ask: job.ask.request(self.fleet.resource(job.ask)) if job.ask.gpus else None
            for job in jobs
        }
        self._queue = Queue(rules.queue)
        self._running: list[tuple[float, int, Attempt]] = []
        self._names = count(1)
        self._reasons: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.now = 0.0

    def run(self) -> Result:
        """Play until nothing is left to happen."""
        outcomes = [Outcome(job) for job in self._jobs]
        unplaceable = self._unplaceable()
        hopeless = 0
        for number, outcome in enumerate(outcomes):
            job = outcome.job
            self._end_until(job.arrives)
            self.now = job.arrives
            attempt = Attempt(number, outcome)
            if attempt.lack in unplaceable:
                hopeless += 1
            elif self._rules.queue == "none":
                self._try(attempt)
            else:
                self._queue.add(attempt)
                self._try_waiting()
            if self._observer is not None:
                self._observer.arrived(self, number, job)
        self._end_until(float("inf"))
        stuck = self.waiting
        return Result(outcomes, self._reasons, self._refused, hopeless, stuck, self.now)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    # Time.

    def _end_until(self, when: float) -> None:
        """Let jobs end up to this time, and whoever waits for their GPUs start."""
        while self._running and self._running[0][0] <= when:
            self.now = self._running[0][0]
            while self._running and self._running[0][0] == self.now:
                self._leave(heapq.heappop(self._running)[2])
            self._try_waiting()

    def _leave(self, attempt: Attempt) -> None:
        for placed in attempt.pods:
            self._take_back(placed)
            self._queue.changed(placed.row)

    # Starting.

    def _try_waiting(self) -> None:
        """Try who waits, oldest first, until nobody fits."""
        while (attempt := self._queue.next()) is not None:
            before = attempt.lack
            self._queue.tried(attempt, before, runs=self._try(attempt) is None)

    def _try(self, attempt: Attempt) -> Wait | None:
        """Place what has no place yet; why the job does not run, or None where it runs now."""
        job = attempt.outcome.job
        before, changes = len(attempt.pods), self._queue.changes
        only = self._queue.worth_a_look(attempt)
        while len(attempt.pods) < job.pods:
            found = self._place(job, only)
            if isinstance(found, Wait):
                if self._rules.gang or self._rules.queue == "none":
                    for placed in reversed(attempt.pods[before:]):
                        self._take_back(placed)
                    del attempt.pods[before:]
                    self._queue.unchanged_since(changes)
                return found
            attempt.pods.append(found)
            only = None
        self._start(attempt)
        return None

    def _take_back(self, placed: PlacedPod) -> None:
        self.fleet.end(placed.row, placed.pod)
        self._policy.left(placed.pod, placed.row)

    def _place(self, job: Job, only: Ints | None) -> PlacedPod | Wait:
        """A place for one pod. A kubelet that refuses it is left out of the next tries."""
        refused_by: list[int] = []
        for _ in range(MOST_REFUSALS):
            pod = self._new_pod(job)
            if refused_by:
                rows = np.arange(len(self.fleet)) if only is None else only
                only = np.setdiff1d(rows, refused_by)
            choice = self._policy.choose(pod, only)
            if isinstance(choice, Wait):
                self._reasons[choice.reason] += 1
                return choice
            placed = self._admit(pod, choice)
            if placed is not None:
                return placed
            refused_by.append(choice.row)
        return KUBELETS_REFUSE

    def _new_pod(self, job: Job) -> SimPod:
        ask, number = job.ask, next(self._names)
        uid = PodUid(f"{number:032x}")
        return SimPod(uid, f"pod-{number}", ask, self.fleet.resource(ask), self._requests[ask])

    def _admit(self, pod: SimPod, choice: Choice) -> PlacedPod | None:
        """Start the pod on the node; None where the kubelet refuses it."""
        try:
            mask = self.fleet.admit(choice.row, pod, choice.gpus)
        except Refused as refusal:
            self._refused[str(refusal)] += 1
            self._policy.refused(pod, choice.row)
            return None
        self._policy.admitted(pod, choice.row)
        if self._policy.placing_may_help:
            self._queue.changed(choice.row)
        return PlacedPod(pod, choice.row, mask)

    def _start(self, attempt: Attempt) -> None:
        outcome, job = attempt.outcome, attempt.outcome.job
        outcome.started = self.now
        outcome.places = [(placed.row, placed.gpus) for placed in attempt.pods]
        outcome.gpus = sum(job.ask.gpus / self.fleet.replicas(row) for row, _ in outcome.places)
        request = self._requests[job.ask]
        shapes = [self.fleet.nodes[row].topology.shape for row, _ in outcome.places]
        masks = [mask for _, mask in outcome.places]
        if request is not None and not request.plain:
            outcome.kept = all(
                satisfies(shape, request.constraints, mask)
                for shape, mask in zip(shapes, masks, strict=True)
            )
        outcome.hop = weakest_hop(shapes, masks, self._rules.speed)
        runs = job.runs * self._rules.speed.slowdown(outcome.hop)
        outcome.ended = self.now + runs
        heapq.heappush(self._running, (outcome.ended, attempt.number, attempt))

    def _unplaceable(self) -> set[Lack]:
        """What does not fit on the cluster as it was at the start, each tried alone.

        Where placing others may help, only what no change of other pods would make fit.
        """
        trial = Simulation(self._nodes, self._jobs, self._make, 0)
        found: set[Lack] = set()
        different = {Lack(job.ask, job.pods): job for job in self._jobs}
        for number, (lack, job) in enumerate(different.items()):
            attempt = Attempt(number, Outcome(job))
            wait = trial._try(attempt)
            if wait is None:
                trial._leave(attempt)
            elif not self._policy.placing_may_help or wait.for_good:
                found.add(lack)
        return found
