"""A job from its arrival to its end; which jobs wait for GPUs, and which are worth another try.

A job that does not fit steps aside and is tried again when something has changed since, oldest
first, as in kube-scheduler. Jobs that ask the same fit or do not fit together, so they stand in one
queue, of which only the oldest job is tried.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.simulation.fleet import Ints, SimPod
from benchmarks.simulation.jobs import Ask, Job
from topology.core.devices import Mask


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
    """The jobs that wait, and the changes of nodes that may let them run."""

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
