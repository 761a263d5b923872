"""Simulations and their figures, on the cores there are, or shard by shard on many Pods."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import mean

import numpy as np

from benchmarks.collector import no_collector
from benchmarks.figures.simulated import QUANTILES, Demand, Run, Simulated
from benchmarks.ownpolicy import UnknownPolicyError, label
from benchmarks.simulation import policies, sources
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.observe import Observer
from benchmarks.simulation.plays import Play, Sweep, cluster
from benchmarks.simulation.queues import Outcome
from benchmarks.simulation.rows import rows
from benchmarks.simulation.simulation import Result, Simulation


def play(what: Play) -> Run:
    """Play one simulation; its parameters and figures."""
    nodes = cluster(what.cluster, what.adds)
    jobs = sources.jobs(what.workload, nodes, what.seed)
    observer = Observer(jobs)
    started = time.process_time()
    simulation = Simulation(
        nodes, jobs, lambda: policies.policy(what.policy), what.seed, what.rules, observer
    )
    try:
        with no_collector():
            result = simulation.run()
    except Exception as error:
        if what.policy in policies.POLICIES:
            raise
        words = f"{what.policy!r}: {type(error).__name__}: {error}"
        raise UnknownPolicyError(words) from error
    spent = time.process_time() - started
    return _summary(what, simulation.fleet, jobs, result, observer, spent)


def _summary(
    played: Play,
    fleet: Fleet,
    jobs: Sequence[Job],
    result: Result,
    observer: Observer,
    cpu_seconds: float,
) -> Run:
    """The figures of one simulation; a run that is ``noted`` has curves and demands, too."""
    placed = [o for o in result.outcomes if o.placed]
    asking = [o for o in placed if o.kept is not None]
    several = [o for o in placed if o.hop]
    last = result.outcomes[-1].job.arrives
    waits = [o.waited for o in placed]
    held = fleet.held * last + _held(placed, last)
    return Run(
        cluster=played.cluster,
        load=played.workload.load,
        policy=label(played.policy),
        seed=played.seed,
        nodes=len(fleet),
        gpus=round(fleet.gpus),
        cpu_seconds=cpu_seconds,
        jobs=len(result.outcomes),
        placed=len(placed),
        unplaceable=result.unplaceable,
        stuck=result.stuck,
        asking=len(asking),
        kept=mean(bool(o.kept) for o in asking) if asking else None,
        hop=mean(o.hop for o in several) if several else None,
        hop_least_tenth=float(np.quantile([o.hop for o in several], 0.1)) if several else None,
        hops=_hops(several),
        wait=mean(waits) if waits else None,
        wait_asking=mean(o.waited for o in asking) if asking else None,
        waits=tuple(round(float(w), 1) for w in np.quantile(waits, QUANTILES)) if waits else (),
        completion=mean(o.completion for o in placed) if placed else None,
        completion_several=mean(o.completion for o in several) if several else None,
        allocated=100 * held / (fleet.gpus * last) if last else None,
        fragmented=mean(c.fragmented for c in observer.curve) if observer.curve else None,
        ended=result.ended,
        reasons=dict(result.reasons.most_common(8)),
        refused_by_kubelet=dict(result.refused),
        moved=result.moved,
        unblocked=result.unblocked,
        restarted=result.restarted,
        curve=tuple(observer.curve) if played.noted else None,
        asks=demands(jobs) if played.noted else None,
    )


def demands(jobs: Sequence[Job]) -> tuple[Demand, ...]:
    """What was asked as it was played, by how much GPU time, the most first."""
    count: Counter[str] = Counter()
    hours: defaultdict[str, float] = defaultdict(float)
    for job in jobs:
        text = job.ask.text if job.pods == 1 else f"{job.pods} × {job.ask.text}"
        count[text] += 1
        hours[text] += job.gpus * job.runs / 3600
    found = [Demand(ask=text, jobs=count[text], gpu_hours=hours[text]) for text in count]
    return tuple(sorted(found, key=lambda demand: -demand.gpu_hours))


def _held(placed: Sequence[Outcome], last: float) -> float:
    """GPU seconds held until ``last``."""
    return sum(o.gpus * (min(o.ended, last) - o.started) for o in placed if o.started < last)


def _hops(several: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for o in several:
        found[f"{o.job.gpus:g}"][f"{o.hop:g}"] += 1
    return {size: dict(counts) for size, counts in sorted(found.items(), key=lambda i: float(i[0]))}


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
