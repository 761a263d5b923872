"""What a simulation comes to: its outcomes as figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from benchmarks.figures.simulated import QUANTILES, Demand, MapNode, Maps, Run
from benchmarks.ownpolicy import label
from benchmarks.simulation.attempts import Outcome
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.observe import Observer, mapped
from benchmarks.simulation.plays import Play
from benchmarks.simulation.simulation import Result


@dataclass(frozen=True, slots=True)
class Opening:
    """A cluster before the first job: its GPUs, those held all the time, and the nodes to draw."""

    nodes: int
    gpus: float
    held: float
    mapped: tuple[MapNode, ...]

    @classmethod
    def of(cls, fleet: Fleet) -> Opening:
        """The cluster as it is now."""
        return cls(len(fleet), fleet.gpus, fleet.held, mapped(fleet))


def summary(
    played: Play,
    opening: Opening,
    jobs: Sequence[Job],
    result: Result,
    observer: Observer,
    cpu_seconds: float,
) -> Run:
    """The figures of one simulation; a run that is ``noted`` has curves, maps and demands, too."""
    placed = [o for o in result.outcomes if o.placed]
    asking = [o for o in placed if o.kept is not None]
    several = [o for o in placed if o.hop]
    last = result.outcomes[-1].job.arrives
    waits = [o.waited for o in placed]
    held = opening.held * last + _held(placed, last)
    return Run(
        cluster=played.cluster,
        load=played.workload.load,
        policy=label(played.policy),
        seed=played.seed,
        nodes=opening.nodes,
        gpus=round(opening.gpus),
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
        allocated=100 * held / (opening.gpus * last) if last else None,
        fragmented=mean(c.fragmented for c in observer.curve) if observer.curve else None,
        ended=result.ended,
        reasons=dict(result.reasons.most_common(8)),
        refused_by_kubelet=dict(result.refused),
        moved=result.moved,
        unblocked=result.unblocked,
        restarted=result.restarted,
        curve=tuple(observer.curve) if played.noted else None,
        maps=_maps(opening, observer) if played.noted else None,
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


def _maps(opening: Opening, observer: Observer) -> Maps:
    return Maps(nodes=opening.mapped, moments=tuple(observer.moments))


def _held(placed: Sequence[Outcome], last: float) -> float:
    """GPU seconds held until ``last``."""
    return sum(o.gpus * (min(o.ended, last) - o.started) for o in placed if o.started < last)


def _hops(several: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for o in several:
        found[f"{o.job.gpus:g}"][f"{o.hop:g}"] += 1
    return {size: dict(counts) for size, counts in sorted(found.items(), key=lambda i: float(i[0]))}
