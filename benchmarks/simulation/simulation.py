"""Jobs arrive, wait, run and leave. Virtual time; deciding takes none of it.

A job's pods are placed one after the other at one moment, all of them or none, as a gang plugin
would have it.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import NamedTuple

import numpy as np

from benchmarks.simulation.fleet import Fleet, Ints, Node, SimPod
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.policy import Policy, Wait
from topology.core.devices import Mask, PodUid
from topology.core.placement import satisfies
from topology.core.scoring import best_ring
from topology.core.shape import Shape
from topology.emulation import Refused


class Kind(NamedTuple):
    """What a job asks: so many pods that ask this."""

    ask: Ask
    pods: int


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that has a place: the node's row in the fleet, and the GPUs."""

    pod: SimPod
    row: int
    gpus: Mask


@dataclass(slots=True)
class Outcome:
    """What became of one job. Times in seconds, NaN where it never came to that."""

    number: int  # by arrival
    job: Job
    started: float = float("nan")
    ended: float = float("nan")
    kept: bool | None = None  # whether each pod's GPUs satisfy its annotations, if it has any
    hop: float = 0.0  # the weakest hop in GB/s, 0 for one GPU
    pods: list[PlacedPod] = field(default_factory=list)  # once it runs, and ever after

    @property
    def kind(self) -> Kind:
        """What the job asks."""
        return Kind(self.job.ask, self.job.pods)

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


class Queue:
    """The jobs that wait, and the changes of nodes that may let them run.

    A job that does not fit steps aside and is tried again when something has changed since, oldest
    first, as in kube-scheduler. Jobs that ask the same fit or do not fit together, so they stand in
    one queue, of which only the oldest job is tried.
    """

    def __init__(self) -> None:
        self._queues: dict[Kind, deque[Outcome]] = {}
        self._changes: list[int] = []
        self._refused_at: dict[Kind, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, waiting: Outcome) -> None:
        """The job waits from now on; jobs are added by arrival."""
        self._queues.setdefault(waiting.kind, deque()).append(waiting)

    def next(self) -> Outcome | None:
        """The oldest job that something has changed for since it was refused, if there is one."""
        now = len(self._changes)
        heads = [queue[0] for queue in self._queues.values() if queue]
        heads = [head for head in heads if self._refused_at.get(head.kind) != now]
        return min(heads, key=lambda head: head.number, default=None)

    def tried(self, waiting: Outcome) -> None:
        """The job was tried, and runs or goes on waiting."""
        if waiting.placed:
            self._queues[waiting.kind].popleft()
        else:
            self._refused_at[waiting.kind] = len(self._changes)

    def changed(self, row: int) -> None:
        """Something has changed on a node."""
        self._changes.append(row)

    @property
    def changes(self) -> int:
        """How often something has changed."""
        return len(self._changes)

    def unchanged_since(self, changes: int) -> None:
        """Everything is again as it was when ``changes`` had this value."""
        del self._changes[changes:]

    def worth_a_look(self, kind: Kind) -> Ints | None:
        """The nodes that have changed since all refused a pod that asks the same.

        None is all of them. Two pods may need one node that has changed and one that has not.
        """
        refused = self._refused_at.get(kind)
        if refused is None or kind.pods != 1:
            return None
        return np.unique(np.array(self._changes[refused:], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Speed:
    """What bad links cost a job: a model with three numbers, none of them measured here.

    A job that runs at full speed spends a share ``communication`` of its time sending over its
    weakest hop. At ``full`` GB/s and more nothing is lost; below, that share grows as the hop
    narrows: slowdown = 1 + c · (max(1, full / hop) - 1). With the numbers below a ring whose
    weakest hop is one NVLink of a V100 (50 GB/s both ways) loses nothing, one across sockets (5)
    takes 1.45 times as long.
    """

    communication: float = 0.05  # the share of its time for which a job communicates
    full: float = 50.0  # GB/s from which on nothing is lost, both ways
    network: float = 25.0  # GB/s between nodes, both ways

    def slowdown(self, hop: float) -> float:
        """How many times as long a job takes whose weakest hop has so many GB/s; 0 is no hop.

        >>> round(Speed().slowdown(5.0), 2), Speed().slowdown(100.0), Speed().slowdown(0.0)
        (1.45, 1.0, 1.0)
        """
        if not hop or not self.communication:
            return 1.0
        return 1 + self.communication * (max(1.0, self.full / hop) - 1)


def weakest_hop(shapes: Sequence[Shape], masks: Sequence[Mask], speed: Speed) -> float:
    """GB/s of the weakest hop of the best rings through a job's GPUs; 0 where it has one GPU.

    Several pods are joined by the network, whichever node they are on.
    """
    hops = [_ring(s, m) for s, m in zip(shapes, masks, strict=True) if m.bit_count() > 1]
    if len(masks) > 1 and any(masks):
        hops.append(speed.network)
    return min(hops, default=0.0)


@cache
def _ring(shape: Shape, mask: Mask) -> float:
    # A hop of which nothing is known is at least the slowest there is.
    return float(best_ring(shape, mask)) or 1.0


MOST_REFUSALS = 32  # so many kubelets may refuse a pod before it waits
KUBELETS_REFUSE = Wait("every kubelet refuses it")


@dataclass(frozen=True, slots=True)
class Result:
    """What a simulation comes to."""

    outcomes: list[Outcome]  # by arrival
    refused: Counter[str]  # by kubelets
    unplaceable: int
    stuck: int


class Simulation:
    """One policy, one cluster, one workload, one seed."""

    def __init__(
        self,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        policy: Callable[[Fleet, random.Random], Policy],
        seed: int,
        speed: Speed,
    ) -> None:
        self._nodes, self._jobs, self._make, self._speed = nodes, jobs, policy, speed
        rng = random.Random(seed)
        self.fleet = Fleet(nodes, rng)
        self._policy = policy(self.fleet, rng)
        self._requests = {job.ask: job.ask.request for job in jobs}
        self._queue = Queue()
        self._running: list[tuple[float, int, Outcome]] = []
        self._names = count(1)
        self._refused: Counter[str] = Counter()
        self.now = 0.0

    def run(self) -> Result:
        """Play until nothing is left to happen."""
        outcomes = [Outcome(number, job) for number, job in enumerate(self._jobs)]
        unplaceable = self._unplaceable()
        waiting = [outcome for outcome in outcomes if outcome.kind not in unplaceable]
        for outcome in waiting:
            self._end_until(outcome.job.arrives)
            self.now = outcome.job.arrives
            self._queue.add(outcome)
            self._try_waiting()
        self._end_until(float("inf"))
        return Result(outcomes, self._refused, len(outcomes) - len(waiting), len(self._queue))

    def _end_until(self, when: float) -> None:
        """Let jobs end up to this time, and those that wait for their GPUs start."""
        while self._running and self._running[0][0] <= when:
            self.now = self._running[0][0]
            while self._running and self._running[0][0] == self.now:
                self._leave(heapq.heappop(self._running)[2].pods)
            self._try_waiting()

    def _leave(self, pods: Sequence[PlacedPod]) -> None:
        for placed in pods:
            self._take_back(placed)
            self._queue.changed(placed.row)

    def _take_back(self, placed: PlacedPod) -> None:
        self.fleet.end(placed.row, placed.pod)
        self._policy.left(placed.pod, placed.row)

    def _try_waiting(self) -> None:
        """Try jobs that wait, oldest first, until none fits."""
        while (waiting := self._queue.next()) is not None:
            found = self._places(waiting.job)
            if not isinstance(found, Wait):
                self._start(waiting, found)
            self._queue.tried(waiting)

    def _places(self, job: Job) -> list[PlacedPod] | Wait:
        """Places for all of a job's pods, which are admitted there; or why one of them has none."""
        pods: list[PlacedPod] = []
        changes, only = self._queue.changes, self._queue.worth_a_look(Kind(job.ask, job.pods))
        while len(pods) < job.pods:
            found = self._place(job, only)
            if isinstance(found, Wait):
                for placed in reversed(pods):
                    self._take_back(placed)
                self._queue.unchanged_since(changes)
                return found
            pods.append(found)
            only = None
        return pods

    def _place(self, job: Job, only: Ints | None) -> PlacedPod | Wait:
        """A place for one pod. A kubelet that refuses it is left out of the next tries."""
        refused_by: list[int] = []
        for _ in range(MOST_REFUSALS):
            number = next(self._names)
            request = self._requests[job.ask]
            pod = SimPod(PodUid(f"{number:032x}"), f"pod-{number}", job.ask, request)
            if refused_by:
                rows = np.arange(len(self.fleet)) if only is None else only
                only = np.setdiff1d(rows, refused_by)
            row = self._policy.choose(pod, only)
            if isinstance(row, Wait):
                return row
            try:
                gpus = self.fleet.admit(row, pod)
            except Refused as refusal:
                self._refused[str(refusal)] += 1
                self._policy.left(pod, row)
                refused_by.append(row)
                continue
            self._policy.admitted(pod, row)
            if self._policy.placing_may_help:
                self._queue.changed(row)
            return PlacedPod(pod, row, gpus)
        return KUBELETS_REFUSE

    def _start(self, outcome: Outcome, pods: list[PlacedPod]) -> None:
        """The job runs from now on, as fast as its GPUs let it."""
        outcome.pods, outcome.started = pods, self.now
        request = self._requests[outcome.job.ask]
        shapes = [self.fleet.nodes[placed.row].topology.shape for placed in pods]
        masks = [placed.gpus for placed in pods]
        if request is not None and not request.plain:
            outcome.kept = all(
                satisfies(shape, request.constraints, mask)
                for shape, mask in zip(shapes, masks, strict=True)
            )
        outcome.hop = weakest_hop(shapes, masks, self._speed)
        outcome.ended = self.now + outcome.job.runs * self._speed.slowdown(outcome.hop)
        heapq.heappush(self._running, (outcome.ended, outcome.number, outcome))

    def _unplaceable(self) -> set[Kind]:
        """What does not fit on the empty cluster, each kind tried alone.

        Where placing others may help, only what no change of other pods would make fit.
        """
        trial = Simulation(self._nodes, self._jobs, self._make, 0, self._speed)
        different = {Kind(job.ask, job.pods): job for job in self._jobs}
        found: set[Kind] = set()
        for kind, job in different.items():
            places = trial._places(job)
            if not isinstance(places, Wait):
                trial._leave(places)
            elif places.for_good or not self._policy.placing_may_help:
                found.add(kind)
        return found
