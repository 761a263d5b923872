"""Many simulations, on the cores there are, or shard by shard on many Pods."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

from benchmarks.collector import no_collector
from benchmarks.figures.simulated import Run, Simulated
from benchmarks.ownpolicy import UnknownPolicyError
from benchmarks.simulation import policies, sources
from benchmarks.simulation.observe import Observer
from benchmarks.simulation.plays import Play, Sweep, cluster
from benchmarks.simulation.rows import rows
from benchmarks.simulation.simulation import Simulation
from benchmarks.simulation.summary import Opening, summary


def play(what: Play) -> Run:
    """Play one simulation; its parameters and figures."""
    nodes = cluster(what.cluster, what.adds)
    jobs = sources.jobs(what.workload, nodes, what.seed)
    observer = Observer(jobs)
    started = time.process_time()
    simulation = Simulation(
        nodes, jobs, lambda: policies.policy(what.policy), what.seed, what.rules, observer
    )
    opening = Opening.of(simulation.fleet)
    try:
        with no_collector():
            result = simulation.run()
    except Exception as error:
        if what.policy in policies.POLICIES:
            raise
        words = f"{what.policy!r}: {type(error).__name__}: {error}"
        raise UnknownPolicyError(words) from error
    spent = time.process_time() - started
    return summary(what, opening, jobs, result, observer, spent)


def run(
    sweep: Sweep, *, workers: int | None = None, done: Callable[[int, int], None] | None = None
) -> Simulated:
    """Play all of them; parameters, runs and rows. ``done`` hears how many of how many are."""
    plays = sweep.plays()
    found: dict[int, Run] = {}
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        futures = {pool.submit(play, what): i for i, what in enumerate(plays)}
        for future in as_completed(futures):
            try:
                found[futures[future]] = future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            if done is not None:
                done(len(found), len(plays))
    runs = tuple(found[i] for i in range(len(plays)))
    return Simulated(parameters=sweep.parameters(), runs=runs, rows=rows(runs))
