"""The simulation of jobs that arrive, wait, run and end.

Time is virtual, and a decision takes none of it. The pods of a job are placed one after the other
at one time, all of them or none, as a gang plugin would do it.

If a kubelet refuses a pod, the Job controller makes another one after a back-off of 10 s, 20 s,
40 s and so on. kube-scheduler knows nothing of the refusal and may choose the same node again.
After more failed pods than the Job's ``backoffLimit`` the Job has failed. Source: Kubernetes'
page on Jobs, https://kubernetes.io/docs/concepts/workloads/controllers/job/, "Pod backoff failure
policy". A job of several pods is then placed as a whole again.
"""

import heapq
import random
from collections import deque
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

BACKOFF_LIMIT = 6  # the default of a Job
FIRST_BACKOFF = 10.0  # seconds; the cap of six minutes is more than the sixth


class Kind(NamedTuple):
    """The request of a job: a number of pods that all have the same request."""

    ask: Ask
    pods: int


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A placed pod, with the row of its node in the fleet and its GPUs."""

    pod: SimPod
    row: int
    gpus: Mask


@dataclass(slots=True)
class Outcome:
    """The result of one job. Times are in seconds, and NaN for an event that never came."""

    job: Job
    turn: int = 0  # in the queue
    started: float = float("nan")
    ended: float = float("nan")
    kept: bool | None = None  # whether each pod's GPUs satisfy its annotations, if it has any
    hop: float = 0.0  # the weakest hop in GB/s, 0 for one GPU
    refused: int = 0  # pods that kubelets refused
    pods: list[PlacedPod] = field(default_factory=list)  # from its start on, also after its end

    @property
    def kind(self) -> Kind:
        """The request of the job."""
        return Kind(self.job.ask, self.job.pods)

    @property
    def placed(self) -> bool:
        """Whether it ever ran."""
        return self.started == self.started

    @property
    def failed(self) -> bool:
        """Whether so many pods were refused that no other one is made."""
        return self.refused > BACKOFF_LIMIT

    @property
    def waited(self) -> float:
        """The seconds until it ran."""
        return self.started - self.job.arrives

    @property
    def completion(self) -> float:
        """The seconds from arrival to end."""
        return self.ended - self.job.arrives


class Queue:
    """The jobs that wait, and the changes of nodes that may let them run.

    A job that does not fit is tried again after a change, oldest first, as in kube-scheduler. Jobs
    with the same request all fit or all do not fit. So they share one queue, and only its oldest
    job is tried.
    """

    def __init__(self) -> None:
        self._queues: dict[Kind, deque[Outcome]] = {}
        self._changes: list[int] = []
        self._refused_at: dict[Kind, int] = {}
        self._turns = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, waiting: Outcome) -> None:
        """Add a job behind all others."""
        waiting.turn = next(self._turns)
        self._queues.setdefault(waiting.kind, deque()).append(waiting)

    def next(self) -> Outcome | None:
        """Return the oldest job for which something has changed since its refusal, or None."""
        now = len(self._changes)
        heads = [queue[0] for queue in self._queues.values() if queue]
        heads = [head for head in heads if self._refused_at.get(head.kind) != now]
        return min(heads, key=lambda head: head.turn, default=None)

    def tried(self, waiting: Outcome, *, waits: bool) -> None:
        """Note that the job was tried, and keeps waiting or leaves the queue."""
        if waits:
            self._refused_at[waiting.kind] = len(self._changes)
        else:
            self._queues[waiting.kind].popleft()

    def changed(self, row: int) -> None:
        """Note a change on a node."""
        self._changes.append(row)

    @property
    def changes(self) -> int:
        """The number of changes so far."""
        return len(self._changes)

    def unchanged_since(self, changes: int) -> None:
        """Forget the changes after ``changes`` had this value, since all of them were undone."""
        del self._changes[changes:]

    def worth_a_look(self, kind: Kind) -> Ints | None:
        """Return the nodes that have changed since all refused a pod with the same request.

        None means all nodes. Jobs of several pods get None, because they may need one node that has
        changed and one that has not.
        """
        refused = self._refused_at.get(kind)
        if refused is None or kind.pods != 1:
            return None
        return np.unique(np.array(self._changes[refused:], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Speed:
    """The cost of slow links for a job, a model with three numbers that are not measured here.

    At full speed a job spends the share ``communication`` of its time sending over its weakest hop.
    At ``full`` GB/s and more nothing is lost. Below, that share grows as the hop narrows:
    slowdown = 1 + c · (max(1, full / hop) - 1). With the defaults a ring whose weakest hop is one
    NVLink of a V100 (50 GB/s both ways) loses nothing. A ring across sockets (5 GB/s) takes 1.45
    times as long.
    """

    communication: float = 0.05  # the share of its time for which a job communicates
    full: float = 50.0  # GB/s, both ways, from which on nothing is lost
    network: float = 25.0  # GB/s between nodes, both ways

    def slowdown(self, hop: float) -> float:
        """Return the factor on a job's duration if its weakest hop has so many GB/s; 0 is no hop.

        >>> round(Speed().slowdown(5.0), 2), Speed().slowdown(100.0), Speed().slowdown(0.0)
        (1.45, 1.0, 1.0)
        """
        if not hop or not self.communication:
            return 1.0
        return 1 + self.communication * (max(1.0, self.full / hop) - 1)


def weakest_hop(shapes: Sequence[Shape], masks: Sequence[Mask], speed: Speed) -> float:
    """Return the GB/s of the weakest hop of the best rings through a job's GPUs; 0 for one GPU.

    Several pods are joined by the network, even on the same node.
    """
    hops = [_ring(s, m) for s, m in zip(shapes, masks, strict=True) if m.bit_count() > 1]
    if len(masks) > 1 and any(masks):
        hops.append(speed.network)
    return min(hops, default=0.0)


@cache
def _ring(shape: Shape, mask: Mask) -> float:
    # An unknown hop counts as the slowest hop that exists.
    return float(best_ring(shape, mask)) or 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a simulation."""

    outcomes: list[Outcome]  # by arrival
    unplaceable: int
    stuck: int


class Simulation:
    """A simulation of one policy, one cluster, one workload and one seed."""

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
        self._events: list[tuple[float, int, Outcome]] = []  # ends, and ends of back-offs
        self._names = count(1)
        self.now = 0.0

    def run(self) -> Result:
        """Play until no event is left."""
        outcomes = [Outcome(job) for job in self._jobs]
        unplaceable = self._unplaceable()
        waiting = [outcome for outcome in outcomes if outcome.kind not in unplaceable]
        for outcome in waiting:
            self._play_until(outcome.job.arrives)
            self.now = outcome.job.arrives
            self._queue.add(outcome)
            self._try_waiting()
        self._play_until(float("inf"))
        return Result(outcomes, len(outcomes) - len(waiting), len(self._queue))

    def _play_until(self, when: float) -> None:
        """Let jobs and back-offs end up to this time, and let waiting jobs start."""
        while self._events and self._events[0][0] <= when:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                outcome = heapq.heappop(self._events)[2]
                if outcome.placed:
                    self._leave(outcome.pods)
                else:
                    self._queue.add(outcome)
            self._try_waiting()

    def _leave(self, pods: Sequence[PlacedPod]) -> None:
        for placed in pods:
            self.fleet.end(placed.row, placed.pod)
            self._policy.left(placed.pod, placed.row)
            self._queue.changed(placed.row)

    def _try_waiting(self) -> None:
        """Try waiting jobs, oldest first, until none fits."""
        while (waiting := self._queue.next()) is not None:
            found = self._places(waiting.job)
            self._queue.tried(waiting, waits=isinstance(found, Wait))
            if isinstance(found, Refused):
                self._back_off(waiting)
            elif not isinstance(found, Wait):
                self._start(waiting, found)

    def _places(self, job: Job) -> list[PlacedPod] | Wait | Refused:
        """Place and admit all pods of a job, or return what happened to one of them instead."""
        pods: list[PlacedPod] = []
        changes, only = self._queue.changes, self._queue.worth_a_look(Kind(job.ask, job.pods))
        while len(pods) < job.pods:
            found = self._place(job, only)
            if not isinstance(found, PlacedPod):
                self._leave(pods[::-1])
                self._queue.unchanged_since(changes)
                return found
            pods.append(found)
            only = None
        return pods

    def _place(self, job: Job, only: Ints | None) -> PlacedPod | Wait | Refused:
        """Place and admit one pod."""
        number = next(self._names)
        request = self._requests[job.ask]
        pod = SimPod(PodUid(f"{number:032x}"), f"pod-{number}", job.ask, request)
        row = self._policy.choose(pod, only)
        if isinstance(row, Wait):
            return row
        try:
            gpus = self.fleet.admit(row, pod)
        except Refused as refusal:
            self._policy.left(pod, row)
            return refusal
        self._policy.admitted(pod, row)
        if self._policy.placing_may_help:
            self._queue.changed(row)
        return PlacedPod(pod, row, gpus)

    def _back_off(self, outcome: Outcome) -> None:
        """Count a refused pod. The next one comes after the back-off, unless the Job has failed."""
        outcome.refused += 1
        if not outcome.failed:
            due = self.now + FIRST_BACKOFF * 2 ** (outcome.refused - 1)
            heapq.heappush(self._events, (due, outcome.turn, outcome))

    def _start(self, outcome: Outcome, pods: list[PlacedPod]) -> None:
        """Start the job, at the speed that its GPUs allow."""
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
        heapq.heappush(self._events, (outcome.ended, outcome.turn, outcome))

    def _unplaceable(self) -> set[Kind]:
        """Return the kinds of jobs that do not fit on the empty cluster, each tried alone.

        If placing other pods may help, only those that no change of other pods would make fit.
        """
        trial = Simulation(self._nodes, self._jobs, self._make, 0, self._speed)
        different = {Kind(job.ask, job.pods): job for job in self._jobs}
        found: set[Kind] = set()
        for kind, job in different.items():
            places = trial._places(job)
            if isinstance(places, list):
                trial._leave(places)
            elif isinstance(places, Wait) and (
                places.for_good or not self._policy.placing_may_help
            ):
                found.add(kind)
        return found
