"""Jobs arrive, wait, run and leave. Virtual time; deciding takes none of it.

How jobs wait is in :mod:`~benchmarks.simulation.queues`. A job's pods are placed one after the
other at one moment. ``gang``: all of them or none, as a gang plugin would have it. Without it,
those placed hold their GPUs until the last one is, and only then the job runs: two half-placed jobs
can block each other for ever, as they do in a cluster.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.simulation.clusters import Node
from benchmarks.simulation.fleet import Fleet, Ints, SimPod
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.observe import Observer
from benchmarks.simulation.policy import Base, Choice, Wait
from benchmarks.simulation.queues import Attempt, Lack, Outcome, PlacedPod, Queue
from benchmarks.simulation.speed import Speed, weakest_hop
from topology.core.devices import PodUid
from topology.core.placement import satisfies
from topology.emulation import Refused

MOST_REFUSALS = 32  # so many kubelets may refuse a pod before it waits
KUBELETS_REFUSE = Wait("every kubelet refuses it")


@dataclass(frozen=True, slots=True)
class Moves:
    """When running pods are moved for a job with one pod that waits, where the policy says whom."""

    after: float = 600.0  # seconds that it has waited, and again each time it has waited as long
    cost: float = 600.0  # seconds of work that each moved pod does again


@dataclass(frozen=True, slots=True)
class Rules:
    """How jobs queue, start and run."""

    queue: str = "backfill"
    gang: bool = True
    speed: Speed = field(default_factory=Speed)
    moves: Moves = field(default_factory=Moves)


@dataclass(frozen=True, slots=True)
class Result:
    """What a simulation comes to."""

    outcomes: list[Outcome]  # by arrival
    reasons: Counter[str]  # why pods waited, by tries
    refused: Counter[str]  # by kubelets
    unplaceable: int
    stuck: int
    ended: float
    moved: int = 0  # pods that were moved
    unblocked: int = 0  # jobs that ran for it
    restarted: int = 0  # moved pods that found no place again, and waited


class Simulation:
    """One policy, one cluster, one workload, one seed."""

    def __init__(
        self,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        policy: Callable[[], Base],
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
        self._moved = self._unblocked = self._restarted = 0
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
                self._unblock()
            if self._observer is not None:
                self._observer.arrived(self.fleet, self.now, self.waiting, number, job)
        self._end_until(float("inf"))
        stuck = self.waiting
        moves = (self._moved, self._unblocked, self._restarted)
        return Result(outcomes, self._reasons, self._refused, hopeless, stuck, self.now, *moves)

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
            self._unblock()

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
        resource = self.fleet.resource(ask)
        return SimPod(uid, f"pod-{number}", ask, resource, self._requests[ask], job.pods == 1)

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

    # Moving.

    def _unblock(self) -> None:
        """Move pods for whoever has waited for long, where the policy says whom."""
        after = self._rules.moves.after
        for attempt in self._queue.heads():
            job = attempt.outcome.job
            since = max(job.arrives, attempt.looked_at)
            if job.pods != 1 or not job.ask.gpus or self.now - since < after:
                continue
            attempt.looked_at = self.now
            moves = self._policy.moves(self._new_pod(job))
            by_uid = {p.pod.uid: a for _, _, a in self._running for p in a.pods}
            if moves and all(move.uid in by_uid for move in moves):
                self._migrate(attempt, [(by_uid[move.uid], move.row) for move in moves])

    def _migrate(self, waiting: Attempt, moved: Sequence[tuple[Attempt, int]]) -> None:
        """Take some running jobs off their nodes, start the one that waits, and start them again
        where they go to; one that finds no place there or anywhere begins anew."""
        for attempt, _ in moved:
            self._leave(attempt)
            attempt.pods.clear()
        gone = {attempt.number for attempt, _ in moved}
        self._running = [entry for entry in self._running if entry[1] not in gone]
        heapq.heapify(self._running)
        lack = waiting.lack
        runs = self._try(waiting) is None
        self._queue.tried(waiting, lack, runs=runs)
        self._unblocked += runs
        for attempt, row in moved:
            self._moved += 1
            found = self._place(attempt.outcome.job, np.array([row], dtype=np.int64))
            if isinstance(found, Wait):
                found = self._place(attempt.outcome.job, None)
            if isinstance(found, Wait):
                self._restarted += 1
                self._queue.add(attempt)
            else:
                attempt.pods.append(found)
                self._resume(attempt)

    def _resume(self, attempt: Attempt) -> None:
        """A moved job goes on where it was, but for the work that is done again."""
        outcome, speed = attempt.outcome, self._rules.speed
        kept, left = outcome.kept, outcome.ended - self.now
        left /= speed.slowdown(outcome.hop)
        self._settle(attempt)
        if kept is False:
            outcome.kept = False
        outcome.ended = self.now + (left + self._rules.moves.cost) * speed.slowdown(outcome.hop)
        heapq.heappush(self._running, (outcome.ended, attempt.number, attempt))

    def _start(self, attempt: Attempt) -> None:
        outcome, job = attempt.outcome, attempt.outcome.job
        outcome.started = self.now
        self._settle(attempt)
        outcome.ended = self.now + job.runs * self._rules.speed.slowdown(outcome.hop)
        heapq.heappush(self._running, (outcome.ended, attempt.number, attempt))

    def _settle(self, attempt: Attempt) -> None:
        """Note where a job's pods are, and what they got."""
        outcome, job = attempt.outcome, attempt.outcome.job
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
