"""Simulations and their figures, played on all cores."""

import gc
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import mean

import numpy as np

from benchmarks.simulation import sources
from benchmarks.simulation.figures import OURS, QUANTILES, Run, Simulated, Sweep
from benchmarks.simulation.fleet import Fleet, cluster
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.policy import Extender, Policy, Stock
from benchmarks.simulation.simulation import Simulation, Speed
from benchmarks.simulation.sources import Workload

# The policies by the names that ``--policy`` takes.
POLICIES: dict[str, Callable[[Fleet, random.Random], Policy]] = {
    OURS: Extender,
    "LeastAllocated": partial(Stock, most=False),
    "MostAllocated": partial(Stock, most=True),
}


@dataclass(frozen=True, slots=True)
class Play:
    """All parameters of one simulation. Another machine gets the same figures from them."""

    cluster: str
    workload: Workload
    load: float | None
    policy: str
    seed: int
    speed: Speed

    def jobs(self) -> list[Job]:
        """Return the jobs that arrive."""
        return sources.jobs(self.workload, self.load, cluster(self.cluster), self.seed)


def plays(sweep: Sweep) -> list[Play]:
    """Return the simulations of a sweep."""
    workload = Workload(sweep.jobs, sweep.count, sweep.demand)
    speed = Speed(sweep.communication, sweep.full_speed, sweep.network)
    every = product(sweep.clusters, sweep.loads, range(1, sweep.seeds + 1), sweep.policies)
    return [
        Play(source, workload, load, policy, seed, speed) for source, load, seed, policy in every
    ]


def check(sweep: Sweep) -> None:
    """Raise the error of an invalid sweep before anything runs."""
    for what in {each.cluster: each for each in plays(sweep)}.values():
        for ask in {job.ask for job in what.jobs()}:
            _ = ask.request


def play(what: Play) -> Run:
    """Play one simulation. Return its parameters and figures."""
    nodes, jobs = cluster(what.cluster), what.jobs()
    gc.collect()
    result = Simulation(nodes, jobs, POLICIES[what.policy], what.seed, what.speed).run()
    gpus = sum(len(node.topology.gpus) for node in nodes)
    placed = [o for o in result.outcomes if o.placed]
    asking = [o for o in placed if o.kept is not None]
    several = [o for o in placed if o.hop]
    waits = [o.waited for o in placed]
    last = jobs[-1].arrives
    held = sum(o.job.gpus * (min(o.ended, last) - o.started) for o in placed if o.started < last)
    return Run(
        cluster=what.cluster,
        load=what.load,
        policy=what.policy,
        seed=what.seed,
        nodes=len(nodes),
        gpus=gpus,
        jobs=len(jobs),
        placed=len(placed),
        unplaceable=result.unplaceable,
        failed=sum(o.failed for o in result.outcomes),
        refused=sum(o.refused for o in result.outcomes),
        asking=len(asking),
        kept=mean(bool(o.kept) for o in asking) if asking else None,
        hop=mean(o.hop for o in several) if several else None,
        wait=mean(waits) if waits else None,
        wait_asking=mean(o.waited for o in asking) if asking else None,
        waits=tuple(round(float(w), 1) for w in np.quantile(waits, QUANTILES)) if waits else (),
        completion=mean(o.completion for o in placed) if placed else None,
        completion_several=mean(o.completion for o in several) if several else None,
        allocated=held / (gpus * last) if last else None,
    )


def run(
    sweep: Sweep, *, workers: int | None = None, done: Callable[[], object] = lambda: None
) -> Simulated:
    """Play all simulations of a sweep. ``done`` is called after each.

    The garbage collector is off in the processes: a play makes no cycles, and the collector takes a
    tenth of its time.
    """
    every = plays(sweep)
    with ProcessPoolExecutor(workers or os.cpu_count(), initializer=gc.disable) as pool:
        futures = [pool.submit(play, what) for what in every]
        try:
            for future in as_completed(futures):
                future.result()
                done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Simulated(parameters=sweep, runs=tuple(future.result() for future in futures))
