"""Jobs arrive, wait, run and leave. Virtual time; deciding takes none of it.

Queues: ``fifo`` (nobody passes the job in front), ``backfill`` (kube-scheduler's own: whoever does
not fit steps aside and is tried again whenever something has changed, oldest first) and ``none``
(each job is tried once, on arrival).

A job's pods are placed one after the other at one moment. ``gang``: all of them or none, as a gang
plugin would have it. Without it, those placed hold their GPUs until the last one is, and only then
the job runs: two half-placed jobs can block each other for ever, as they do in a cluster.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.shipped.clusters import Node
from benchmarks.shipped.fleet import Fleet, Ints, SimPod
from benchmarks.shipped.jobs import Ask, Job
from benchmarks.shipped.observe import Observer
from benchmarks.shipped.policy import ForGood, Policy
from benchmarks.shipped.speed import Speed, weakest_hop
from topology.core.devices import Mask, PodUid
from topology.core.placement import satisfies
from topology.emulation import Refused

QUEUES = ("backfill", "fifo", "none")
MOST_REFUSALS = 32
"""So many kubelets may refuse a pod before it waits."""

Kind = tuple[Ask, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """How jobs queue, start and run."""

    queue: str = "backfill"
    gang: bool = True
    speed: Speed = field(default_factory=Speed)


@dataclass(slots=True)
class Outcome:
    """What became of one job. Times in seconds, NaN where it never came to that.

    ``kept``: whether the GPUs of every pod satisfy its annotations, None where it has none.
    ``hop`` is the weakest hop in GB/s, 0 for one GPU; ``gpus`` are those it takes, a device that is
    part of one as that part; ``places`` are nodes and GPUs.
    """

    job: Job
    started: float = float("nan")
    ended: float = float("nan")
    kept: bool | None = None
    hop: float = 0.0
    gpus: float = 0.0
    places: list[tuple[int, Mask]] = field(default_factory=list)

    @property
    def placed(self) -> bool:
        """Whether it ever ran."""
        return self.started == self.started

    @property
    def waited(self) -> float:
        """Seconds until it ran."""
        return self.started - self.job.arrives

    @property
    def completion(self) -> float:
        """Seconds from arrival to end."""
        return self.ended - self.job.arrives


@dataclass(slots=True)
class _Attempt:
    """A job in the queue, and its pods that have a place."""

    number: int
    outcome: Outcome
    pods: list[tuple[SimPod, int, Mask]] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """Attempts of one kind fit or do not fit together."""
        return self.outcome.job.ask, self.outcome.job.pods - len(self.pods)


@dataclass(slots=True)
class Result:
    """A simulation's outcomes by arrival, why pods waited (tries), and refusals of kubelets."""

    outcomes: list[Outcome]
    reasons: Counter[str]
    refused: Counter[str]
    impossible: int
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
        self._queues: dict[Kind, list[tuple[int, _Attempt]]] = {}
        self._waiting = 0
        self._changes: list[int] = []
        self._refused_at: dict[Kind, int] = {}
        self._running: list[tuple[float, int, _Attempt]] = []
        self._names = count(1)
        self._reasons: Counter[str] = Counter()
        self._why = ""
        self._refused: Counter[str] = Counter()
        self.now = 0.0

    def run(self) -> Result:
        """Play until nothing is left to happen."""
        outcomes = [Outcome(job) for job in self._jobs]
        impossible = self._impossible()
        hopeless = 0
        for number, outcome in enumerate(outcomes):
            job = outcome.job
            self._end_until(job.arrives)
            self.now = job.arrives
            attempt = _Attempt(number, outcome)
            if attempt.kind in impossible:
                hopeless += 1
            elif self._rules.queue == "none":
                self._try(attempt)
            else:
                self._wait(attempt)
                self._pass()
            if self._observer is not None:
                self._observer.arrived(self, number, job)
        self._end_until(float("inf"))
        stuck = self._waiting
        return Result(outcomes, self._reasons, self._refused, hopeless, stuck, self.now)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._waiting

    # Time.

    def _end_until(self, when: float) -> None:
        while self._running and self._running[0][0] <= when:
            self.now = self._running[0][0]
            while self._running and self._running[0][0] == self.now:
                self._leave(heapq.heappop(self._running)[2])
            self._pass()

    def _leave(self, attempt: _Attempt) -> None:
        for pod, row, _ in attempt.pods:
            self.fleet.end(row, pod)
            self._policy.left(pod, row)
            self._changes.append(row)

    # The queue.

    def _pass(self) -> None:
        """Try who waits, oldest first, until nobody fits."""
        while self._waiting:
            heads = [queue[0] for queue in self._queues.values() if queue]
            if self._rules.queue == "fifo":
                heads = [min(heads)]
            now = len(self._changes)
            heads = [head for head in heads if self._refused_at.get(head[1].kind) != now]
            if not heads:
                return
            _, attempt = min(heads)
            kind = attempt.kind
            placed = self._try(attempt)
            if placed or attempt.kind != kind:
                heapq.heappop(self._queues[kind])
                self._waiting -= 1
            if not placed:
                self._refused_at[attempt.kind] = len(self._changes)
                if attempt.kind != kind:  # some of its pods have a place now
                    self._wait(attempt)

    def _wait(self, attempt: _Attempt) -> None:
        heapq.heappush(self._queues.setdefault(attempt.kind, []), (attempt.number, attempt))
        self._waiting += 1

    def _try(self, attempt: _Attempt) -> bool:
        """Place what has no place yet; whether the job runs now."""
        job = attempt.outcome.job
        before, changes = len(attempt.pods), len(self._changes)
        only = self._worth_a_look(attempt)
        while len(attempt.pods) < job.pods:
            found = self._place(job, only)
            if found is None:
                if self._rules.gang or self._rules.queue == "none":
                    for pod, row, _ in reversed(attempt.pods[before:]):
                        self.fleet.end(row, pod)
                        self._policy.left(pod, row)
                    del attempt.pods[before:], self._changes[changes:]  # all is as it was
                return False
            attempt.pods.append(found)
            only = None
        self._start(attempt)
        return True

    def _worth_a_look(self, attempt: _Attempt) -> Ints | None:
        """The nodes that have changed since all refused a last pod that asks the same.

        None is all of them. Two pods may need one node that has changed and one that has not.
        """
        refused = self._refused_at.get(attempt.kind)
        if refused is None or attempt.kind[1] != 1:
            return None
        return np.unique(np.array(self._changes[refused:], dtype=np.int64))

    def _place(self, job: Job, only: Ints | None) -> tuple[SimPod, int, Mask] | None:
        """A place for one pod. A kubelet that refuses it is left out of the next tries."""
        ask = job.ask
        refused_by: list[int] = []
        for _ in range(MOST_REFUSALS):
            number = next(self._names)
            name, uid = f"pod-{number}", PodUid(f"{number:032x}")
            pod = SimPod(uid, name, ask, self.fleet.resource(ask), self._requests[ask])
            if refused_by:
                rows = np.arange(len(self.fleet)) if only is None else only
                only = np.setdiff1d(rows, refused_by)
            choice = self._policy.choose(pod, only)
            if isinstance(choice, str):
                self._reasons[choice] += 1
                self._why = choice
                return None
            try:
                mask = self.fleet.admit(choice.row, pod, choice.gpus)
            except Refused as refusal:
                self._refused[str(refusal)] += 1
                self._policy.refused(pod, choice.row)
                refused_by.append(choice.row)
                continue
            self._policy.admitted(pod, choice.row)
            if self._policy.placing_may_help:
                self._changes.append(choice.row)
            return pod, choice.row, mask
        self._why = "every kubelet refuses it"
        return None

    def _start(self, attempt: _Attempt) -> None:
        outcome, job = attempt.outcome, attempt.outcome.job
        outcome.started = self.now
        outcome.places = [(row, mask) for _, row, mask in attempt.pods]
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

    def _impossible(self) -> set[Kind]:
        """Kinds of jobs that do not fit on the cluster as it was at the start, each tried alone.

        Where placing others may help, only those whose count or hardware is not there.
        """
        trial = Simulation(self._nodes, self._jobs, self._make, 0)
        found: set[Kind] = set()
        kinds = {(job.ask, job.pods): job for job in self._jobs}
        for number, (kind, job) in enumerate(kinds.items()):
            attempt = _Attempt(number, Outcome(job))
            if trial._try(attempt):
                trial._leave(attempt)
            elif not self._policy.placing_may_help or isinstance(trial._why, ForGood):
                found.add(kind)
        return found
