"""A job from its arrival to its end: what it still lacks, where its pods are, what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.simulation.fleet import SimPod
from benchmarks.simulation.jobs import Ask, Job
from topology.core.devices import Mask


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
    """A job that has come as the ``number``-th, and those of its pods that have a place.

    ``looked_at`` is when evictions for it were looked for last.
    """

    number: int
    outcome: Outcome
    pods: list[PlacedPod] = field(default_factory=list)
    looked_at: float = float("-inf")

    @property
    def lack(self) -> Lack:
        """What it still needs."""
        return Lack(self.outcome.job.ask, self.outcome.job.pods - len(self.pods))
