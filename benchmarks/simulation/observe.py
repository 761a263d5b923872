"""What is looked at while a simulation runs: curves against arrivals."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.figures.simulated import CurvePoint
from benchmarks.simulation.fleet import Fleet, State
from benchmarks.simulation.jobs import WHOLE_GPU, Job
from topology.core import scoring
from topology.core.scoring import Mix, RequestClass

POINTS = 120
MOST_KINDS = 8


class Observer:
    """Takes notes at evenly spaced arrivals.

    Fragmentation is the share of the free GPUs that the usual requests could not be promised: one
    less worth / free, with the worth of :mod:`topology.core.scoring` and the workload's own mix.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._every = max(1, len(jobs) // POINTS)
        self._mix = mix_of(jobs)
        self._worth: dict[State, float] = {}
        self._arrived = 0.0
        self.curve: list[CurvePoint] = []

    def arrived(self, fleet: Fleet, now: float, waiting: int, number: int, job: Job) -> None:
        """A job has arrived, and whoever could start has."""
        self._arrived += job.gpus
        if number % self._every == self._every - 1:
            self.curve.append(
                CurvePoint(
                    time=now,
                    arrived=100 * self._arrived / fleet.gpus,
                    allocated=100 * fleet.used / fleet.gpus,
                    fragmented=100 * self.fragmentation(fleet),
                    waiting=waiting,
                )
            )

    def fragmentation(self, fleet: Fleet) -> float:
        """The share of free GPUs that are of no use to the usual requests; 0 where none is free."""
        states, counts = np.unique(fleet.state, return_counts=True)
        free = worth = 0.0
        for i, n in zip(states, counts, strict=True):
            state = fleet.states[i]
            free += n * state.free.bit_count()
            if state not in self._worth:
                self._worth[state] = self._worth_of(state)
            worth += n * self._worth[state]
        return max(0.0, 1 - worth / free) if free and self._mix else 0.0

    def _worth_of(self, state: State) -> float:
        """Capped by what is free: on a larger node, kinds that do not divide it add up to less."""
        if state.replicas > 1 or not state.free:
            return float(state.free.bit_count())
        return min(
            scoring.worth(state.kubelet, state.free, self._mix), float(state.free.bit_count())
        )


def mix_of(jobs: Sequence[Job]) -> Mix:
    """The requests that ask for most of a workload's GPU time, weighed by it."""
    asked: defaultdict[RequestClass, float] = defaultdict(float)
    for job in jobs:
        request = job.ask.request(WHOLE_GPU) if job.ask.gpus else None
        if request is not None:
            asked[RequestClass(request.count, request.constraints)] += job.gpus * job.runs
    top = sorted(asked.items(), key=lambda item: -item[1])[:MOST_KINDS]
    whole = sum(n for _, n in top)
    return tuple((kind, n / whole) for kind, n in top)
