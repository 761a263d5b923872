"""Closed loops that can be played, each a small value, and playing many of them at once."""

import os
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.promises.closed_loop import ClosedLoop
from benchmarks.promises.extender import Extender, GoodSetFree
from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.fleets import FLEETS
from benchmarks.promises.tally import Tally
from benchmarks.promises.workloads import (
    CONTAINERS,
    EVERYTHING,
    SHARES,
    SLICES,
    Habits,
    group_jobs,
    jobs,
)

WORKLOADS = {
    "everything": EVERYTHING,
    "containers": CONTAINERS,
    "slices": SLICES,
    "shares": SHARES,
}


@dataclass(frozen=True, slots=True)
class Play:
    """One closed loop to play."""

    policy: str  # one of those that :func:`play` names
    pods: int
    seed: int
    nodes: str = "mixed"  # a key of FLEETS
    workload: str = "everything"  # one of WORKLOADS, or ``groups``
    rate: float = 0.8  # pods a second
    foreign: float = 0.02  # the share of pods that others bind
    restarts: int = 0  # of the extender
    runs: float = 60.0  # seconds that a pod runs, on average
    faults: Faults = Faults()  # noqa: RUF009 (it is frozen)
    delays: Delays = Delays()  # noqa: RUF009
    dra: float = 0.0  # the share of nodes with DRA


def play(what: Play) -> Tally:
    """Play a closed loop to its end."""
    policies = {"extender": Extender, "good set free": GoodSetFree}
    nodes = FLEETS[what.nodes]()
    if what.workload == "groups":
        work = group_jobs(what.pods, what.seed, rate=what.rate, runs=what.runs)
    else:
        habits = Habits(what.rate, what.runs, what.foreign, what.faults.whole_cpus)
        templates, resource = WORKLOADS[what.workload], nodes[0].resources[0].name
        work = jobs(what.pods, what.seed, habits, templates, resource)
    rng = random.Random(what.seed)
    restarts = tuple(sorted(rng.uniform(0, work[-1].arrives) for _ in range(what.restarts)))
    policy = policies[what.policy](what.seed)
    names = [node.name for node in nodes]
    by_dra = random.Random(what.seed).sample(names, round(what.dra * len(names)))
    loop = ClosedLoop(nodes, work, policy, what.seed, what.delays, what.faults, by_dra)
    tally = loop.run(restarts)
    tally.faults = policy.faults
    tally.surprises = Counter(s.kind for s in policy.surprises if not s.foreign)
    return tally


def play_all(plays: Iterable[Play]) -> list[Tally]:
    """Play several closed loops on the cores there are."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(play, plays))
