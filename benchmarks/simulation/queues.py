"""A job from its arrival to its end; who waits for GPUs, and who is worth another try.

Jobs that lack the same fit or do not fit together, so they stand in one queue, of which only the
oldest job is tried. What was refused is tried again when something has changed since.
"""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.simulation.fleet import Ints, SimPod
from benchmarks.simulation.jobs import Ask, Job
from topology.core.devices import Mask

QUEUES = ("backfill", "fifo", "none")
"""``fifo``: nobody passes the oldest job. ``backfill``: whoever does not fit steps aside, as in
kube-scheduler. ``none``: each job is tried once, on arrival."""


@dataclass(slots=True)
class Outcome:
    """What became of one job. Times in seconds, NaN where it never came to that."""

    job: Job
    started: float = float("nan")
    ended: float = float("nan")
    kept: bool | None = None  # whether each pod's GPUs satisfy its annotations, if it has any
    hop: float = 0.0  # the weakest hop in GB/s, 0 for one GPU
    gpus: float = 0.0  # those it takes, a device that is part of one as that part
    places: list[tuple[int, Mask]] = field(default_factory=list)  # nodes and GPUs

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


class Lack(NamedTuple):
    """What a job still needs before it runs: so many pods that ask this."""

    ask: Ask
    pods: int


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that has a place: the node's row in the fleet, and the GPUs."""

    pod: SimPod
    row: int
    gpus: Mask


@dataclass(slots=True)
class Attempt:
    """A job that has come, and those of its pods that have a place."""

    number: int  # the how-manieth it is
    outcome: Outcome
    pods: list[PlacedPod] = field(default_factory=list)
    looked_at: float = float("-inf")  # when evictions for it were looked for last

    @property
    def lack(self) -> Lack:
        """What it still needs."""
        return Lack(self.outcome.job.ask, self.outcome.job.pods - len(self.pods))


class Queue:
    """The jobs that wait, and the changes of nodes that may let them run."""

    def __init__(self, discipline: str) -> None:
        self._fifo = discipline == "fifo"
        self._queues: dict[Lack, list[tuple[int, Attempt]]] = {}
        self._size = 0
        self._changes: list[int] = []
        self._refused_at: dict[Lack, int] = {}

    def __len__(self) -> int:
        return self._size

    def add(self, attempt: Attempt) -> None:
        """The job waits from now on."""
        queue = self._queues.setdefault(attempt.lack, [])
        heapq.heappush(queue, (attempt.number, attempt))
        self._size += 1

    def next(self) -> Attempt | None:
        """The oldest job that something has changed for since it was refused, if there is one.

        With ``fifo`` that is the oldest of all or none.
        """
        if not self._size:
            return None
        heads = [queue[0] for queue in self._queues.values() if queue]
        if self._fifo:
            heads = [min(heads)]
        now = len(self._changes)
        heads = [head for head in heads if self._refused_at.get(head[1].lack) != now]
        return min(heads)[1] if heads else None

    def heads(self) -> list[Attempt]:
        """The oldest job of each kind that waits, the oldest of all first."""
        return [head for _, head in sorted(queue[0] for queue in self._queues.values() if queue)]

    def tried(self, attempt: Attempt, before: Lack, *, runs: bool) -> None:
        """The job was tried when it lacked ``before``: it ``runs``, or lacks as much or less."""
        moved = attempt.lack != before
        if runs or moved:
            heapq.heappop(self._queues[before])
            self._size -= 1
        if not runs:
            self._refused_at[attempt.lack] = len(self._changes)
            if moved:  # some of its pods have a place now
                self.add(attempt)

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

    def worth_a_look(self, attempt: Attempt) -> Ints | None:
        """The nodes that have changed since all refused a last pod that asks the same.

        None is all of them. Two pods may need one node that has changed and one that has not.
        """
        refused = self._refused_at.get(attempt.lack)
        if refused is None or attempt.lack.pods != 1:
            return None
        return np.unique(np.array(self._changes[refused:], dtype=np.int64))
