"""The sources of jobs (a file, a trace, a seeded generator), and the load that is made of them.

A seed draws the part of a trace that is played (a number of consecutive jobs), the whole synthetic
workload, and every tie and choice of a simulation. Arrivals are stretched so that the requested GPU
time is ``load`` times the GPU time of the cluster until the last job arrives. If ``load`` is None,
they stay as they are.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from itertools import combinations, islice
from pathlib import Path

from benchmarks.simulation.fleet import Node
from benchmarks.simulation.jobs import Ask, Job, JobsError, read
from benchmarks.traces import TraceMissingError, trace
from topology.core.budget import MAX_SETS
from topology.core.placement import satisfies
from topology.core.shape import Shape

DEMANDS = ("none", "nvlink", "preferred")


@dataclass(frozen=True, slots=True)
class Workload:
    """The choice of jobs. :func:`jobs` needs it beside the cluster, the load and the seed."""

    source: str = "synthetic"  # or a path, or ``philly``
    count: int = 2000  # jobs at most; 0 is all
    demand: str = "nvlink"  # the annotations for jobs without any (:func:`demanding`)


def jobs(workload: Workload, load: float | None, cluster: Sequence[Node], seed: int) -> list[Job]:
    """Return the jobs by arrival, the first at 0. Raises :class:`.jobs.JobsError`."""
    rng = random.Random(seed)
    source, count = workload.source, workload.count
    if source == "synthetic":
        found = synthetic(count or 2000, rng)
    else:
        known = _known(source)
        size = min(count or len(known), len(known))
        start = rng.randrange(len(known) - size + 1) if size < len(known) else 0
        found = list(known[start : start + size])
    sizes = [len(node.topology.gpus) for node in cluster]
    found = split(found, max(sizes))
    if workload.demand != "none":
        shapes = tuple(dict.fromkeys(node.topology.shape for node in cluster))
        found = [replace(j, ask=demanding(j.ask, shapes, workload.demand)) for j in found]
    return loaded(found, load, sum(sizes))


@lru_cache(maxsize=4)
def _known(source: str) -> tuple[Job, ...]:
    return tuple(_philly() if source == "philly" else read(Path(source)))


def _philly() -> list[Job]:
    """Return Philly's jobs by time (Jeon et al., USENIX ATC 2019; Pollux's condensed copy)."""
    try:
        path = trace("philly/philly.csv")
    except TraceMissingError as error:
        raise JobsError(str(error)) from error
    with path.open(newline="") as file:
        rows = [
            (datetime.fromisoformat(r["timestamp"]), float(r["duration"]), int(r["num_gpus"]))
            for r in csv.DictReader(file)
        ]
    rows.sort()
    first = rows[0][0]
    asks = {count: Ask(count) for _, _, count in rows}
    return [
        Job(f"philly-{i}", (when - first).total_seconds(), runs, asks[count])
        for i, (when, runs, count) in enumerate(rows)
    ]


# The numbers of GPUs of synthetic jobs, and the share of jobs with each.
SIZES = ((1, 0.55), (2, 0.2), (4, 0.15), (8, 0.1))


def synthetic(count: int, rng: random.Random) -> list[Job]:
    """Draw jobs with Poisson arrivals and log-normal durations.

    One job arrives a minute on average. The median duration is 20 minutes, the mean an hour. Sizes
    follow :data:`SIZES`, with 8 CPUs and 60 GiB for each GPU.
    """
    now, found = 0.0, []
    asks = {size: Ask(size, 8000 * size, 60 * 1024 * size) for size, _ in SIZES}
    for i in range(count):
        now += rng.expovariate(1 / 60)
        size = rng.choices([s for s, _ in SIZES], [w for _, w in SIZES])[0]
        runs = rng.lognormvariate(7.09, 1.48)
        found.append(Job(f"synthetic-{i}", now, runs, asks[size]))
    return found


def split(found: Sequence[Job], most: int) -> list[Job]:
    """Return jobs whose pods have at most ``most`` GPUs. Larger pods become several equal pods.

    >>> [(job.pods, job.ask.gpus) for job in split([Job("a", 0, 1, Ask(12))], 8)]
    [(2, 6)]
    """
    result = []
    for job in found:
        if job.ask.gpus > most:
            gpus = job.ask.gpus
            pods = next(n for n in range(2, gpus + 1) if gpus % n == 0 and gpus // n <= most)
            ask = replace(
                job.ask,
                gpus=gpus // pods,
                cpu=-(-job.ask.cpu // pods),
                memory=-(-job.ask.memory // pods),
            )
            job = replace(job, ask=ask, pods=job.pods * pods)
        result.append(job)
    return result


@cache
def demanding(ask: Ask, shapes: tuple[Shape, ...], demand: str = "nvlink") -> Ask:
    """Return the request with the annotations of a team that trains over NVLink.

    Such a team wants NVLink on every hop of a ring over the pod's GPUs. With two GPUs that is
    ``link=nvlink``, with more ``link=nvlink shape=ring``, so that NCCL's ring stays on NVLink. The
    annotations are required if some empty node of the cluster can meet them; of a machine with more
    than 16 GPUs not all sets are tried. Otherwise there are none, because a team without such
    machines would not request it. With ``preferred`` they are never required. Pods with annotations
    or with fewer than two GPUs stay as they are.
    """
    if ask.gpus < 2 or ask.annotations:
        return ask
    keys = [("link", "nvlink")] + ([("shape", "ring")] if ask.gpus > 2 else [])
    wanted = replace(ask, annotations=tuple(sorted(keys)))
    request = wanted.request
    if request is None or not any(
        satisfies(shape, request.constraints, sum(1 << p for p in chosen))
        for shape in shapes
        for chosen in islice(combinations(range(shape.size), ask.gpus), MAX_SETS)
    ):
        return ask
    if demand == "preferred":
        return replace(ask, annotations=tuple(sorted([*keys, ("policy", "preferred")])))
    return wanted


def loaded(found: Sequence[Job], load: float | None, gpus: int) -> list[Job]:
    """Return the jobs with arrivals from 0 on, stretched to the load.

    The load is the requested GPU seconds over the GPU seconds of the cluster.
    """
    first, last = found[0].arrives, found[-1].arrives
    stretch = 1.0
    if load is not None and last > first:
        taken = (job.gpus * job.runs for job in found)
        stretch = sum(taken) / (load * gpus) / (last - first)
    return [replace(job, arrives=(job.arrives - first) * stretch) for job in found]
