"""What a policy is: who chooses a node for a pod, and GPUs where it brings its own plugin."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.simulation.fleet import Fleet, Ints, SimPod, State
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.scheduler import DEFAULT, InTree
from topology.core.devices import Mask, PodUid


@dataclass(frozen=True, slots=True)
class Choice:
    """A node, and the GPUs where the policy brings its own plugin; None leaves them to NVIDIA's."""

    row: int
    gpus: Mask | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A running pod that is evicted, and the node to which it goes."""

    uid: PodUid
    row: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a pod gets no node now."""

    reason: str
    for_good: bool = False  # without other pods, whoever comes or goes changes nothing about it


NO_ROOM = Wait("no node has room", for_good=True)


class Base:
    """Places one pod at a time, behind kube-scheduler's filters; one object for one simulation."""

    placing_may_help = False  # whether a pod that is refused may pass after another has been placed

    def begin(self, fleet: Fleet, jobs: Sequence[Job], rng: random.Random) -> None:
        """The simulation starts; the jobs are there for what a policy would know of the past."""
        self.fleet = fleet
        self.rng = rng
        self.in_tree = InTree(fleet, rng)

    def choose(self, pod: SimPod, only: Ints | None = None) -> Choice | Wait:
        """Where the pod goes, or why it waits; pods without GPUs are kube-scheduler's.

        ``only`` are the nodes that have changed since a pod that asks the same was refused by all.
        """
        wait = NO_ROOM
        for rows in self.in_tree.samples(pod, only):
            if not pod.ask.gpus:
                scores = self.in_tree.scores(pod, rows, DEFAULT, most=False)
                return Choice(self.in_tree.best(rows, scores))
            found = self.among(pod, rows)
            if isinstance(found, Choice):
                return found
            if wait.for_good:  # where one sample may change its mind, the pod waits
                wait = found
        return wait

    def among(self, pod: SimPod, rows: Ints) -> Choice | Wait:
        """The choice among nodes on which the pod fits by count."""
        raise NotImplementedError

    def moves(self, pod: SimPod) -> tuple[Move, ...]:
        """Whom to move so that a pod that waits gets a place: nobody."""
        return ()

    def admitted(self, pod: SimPod, row: int) -> None:
        """The kubelet has admitted the pod, and the agent has reported it."""

    def refused(self, pod: SimPod, row: int) -> None:
        """The kubelet has refused the pod."""

    def left(self, pod: SimPod, row: int) -> None:
        """The pod has ended, or was taken back with its gang."""


class ByState(Base):
    """A policy that looks at each state of a node's GPUs once; ties fall to any node.

    Override :meth:`score`, and :meth:`gpus` for a plugin of its own.
    """

    def score(self, pod: SimPod, state: State) -> Any:
        """What can be compared, larger is better; None where the pod must not go."""
        raise NotImplementedError

    def gpus(self, pod: SimPod, state: State) -> Mask | None:
        """The GPUs that the pod gets; None leaves them to NVIDIA's plugin."""
        return None

    def begin(self, fleet: Fleet, jobs: Sequence[Job], rng: random.Random) -> None:
        """Forget what was seen."""
        super().begin(fleet, jobs, rng)
        self._seen: dict[tuple[object, int], Any] = {}

    def among(self, pod: SimPod, rows: Ints) -> Choice | Wait:
        """The best state; any node in it."""
        states = self.fleet.state[rows]
        best: Any = None
        chosen: list[int] = []
        for i in np.unique(states):
            key = (pod.ask, int(i))
            if key not in self._seen:
                self._seen[key] = self.score(pod, self.fleet.states[i])
            score = self._seen[key]
            if score is None or (best is not None and score < best):
                continue
            if best is None or score > best:
                best, chosen = score, []
            chosen.append(int(i))
        if not chosen:
            return Wait(f"{type(self).__name__} refuses every node")
        row = int(self.rng.choice(rows[np.isin(states, chosen)]))
        return Choice(row, self.gpus(pod, self.fleet.states[self.fleet.state[row]]))
