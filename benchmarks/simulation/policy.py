"""Who chooses a node for a pod: what every policy does, and kube-scheduler alone."""

import random
from dataclasses import dataclass

from benchmarks.simulation.fleet import Fleet, Ints, SimPod
from benchmarks.simulation.scheduler import DEFAULT, WITH_GPUS, InTree


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a pod gets no node now."""

    reason: str
    for_good: bool = False  # nothing changes about it when other pods come or go


NO_ROOM = Wait("no node has room", for_good=True)


class Policy:
    """Places one pod at a time, behind kube-scheduler's filters; one object for one simulation."""

    placing_may_help = False  # whether a pod that is refused may pass after another has been placed

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self.fleet = fleet
        self.in_tree = InTree(fleet, rng)

    def choose(self, pod: SimPod, only: Ints | None = None) -> int | Wait:
        """The row of the node to which the pod goes, or why it waits.

        Pods without GPUs are kube-scheduler's. ``only`` are the nodes that have changed since a pod
        that asks the same was refused by all.
        """
        wait = NO_ROOM
        for rows in self.in_tree.samples(pod, only):
            if not pod.ask.gpus:
                scores = self.in_tree.scores(pod, rows, DEFAULT, most=False)
                return self.in_tree.best(rows, scores)
            found = self.among(pod, rows)
            if not isinstance(found, Wait):
                return found
            if wait.for_good:  # where one sample may change its mind, the pod waits
                wait = found
        return wait

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """The choice among nodes on which the pod fits by count."""
        raise NotImplementedError

    def admitted(self, pod: SimPod, row: int) -> None:
        """The kubelet has admitted the pod, and the agent has reported it."""

    def left(self, pod: SimPod, row: int) -> None:
        """The pod has ended, was refused by the kubelet, or was taken back with its gang."""


class Stock(Policy):
    """kube-scheduler as it comes: LeastAllocated or MostAllocated."""

    def __init__(self, fleet: Fleet, rng: random.Random, *, most: bool) -> None:
        super().__init__(fleet, rng)
        self._most = most

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """By NodeResourcesFit over CPU, memory and GPUs, and NodeResourcesBalancedAllocation."""
        scores = self.in_tree.scores(pod, rows, WITH_GPUS, most=self._most)
        return self.in_tree.best(rows, scores)
