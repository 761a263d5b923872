"""Many simulations: clusters × loads × policies × seeds, on the cores there are, or on many Pods.

All policies meet the same jobs under one seed, so their differences are taken seed by seed. An
interval is Student's t over the seeds, 95 %.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from statistics import mean, stdev
from typing import Any

from rich.table import Table
from scipy.stats import t as student

from benchmarks.collector import no_collector
from benchmarks.ownpolicy import UnknownPolicyError, label
from benchmarks.shipped import clusters, policies, sources
from benchmarks.shipped.fleet import Fleet
from benchmarks.shipped.jobs import WHOLE_GPU, Job
from benchmarks.shipped.observe import Observer, mapped
from benchmarks.shipped.simulation import Rules, Simulation
from benchmarks.shipped.sources import Workload
from benchmarks.shipped.summary import figures

OURS = "gpu-topology"
MODE = "as shipped"


@dataclass(frozen=True, slots=True)
class Play:
    """One simulation, whole: another machine gets the same figures from it."""

    cluster: str
    workload: Workload
    policy: str
    seed: int
    rules: Rules = field(default_factory=Rules)
    adds: tuple[str, ...] = ()
    noted: bool = False
    """Whether curves and maps go into the figures."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that is asked for."""

    clusters: tuple[str, ...]
    workload: Workload
    loads: tuple[float | None, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rules: Rules = field(default_factory=Rules)
    adds: tuple[str, ...] = ()
    shard: tuple[int, int] = (0, 1)
    """Which part of how many is played: 0 of 8 plays simulations 0, 8, 16 …."""

    def plays(self) -> list[Play]:
        """The simulations of this shard."""
        every = [
            Play(
                cluster,
                replace(self.workload, load=load),
                policy,
                seed,
                self.rules,
                self.adds,
                noted=seed == self.seeds[0],
            )
            for cluster, load, seed, policy in product(
                self.clusters, self.loads, self.seeds, self.policies
            )
        ]
        part, parts = self.shard
        return every[part::parts]

    def check(self) -> None:
        """Raise what is wrong with it before anything runs."""
        for name in self.policies:
            policies.policy(name)
        labels = [label(name) for name in self.policies]
        for name in labels:
            if labels.count(name) > 1:
                raise UnknownPolicyError(f"two policies are called {name}")
        for cluster in self.clusters:
            nodes = _cluster(cluster, self.adds)
            Fleet(nodes, random.Random(0))
            jobs = sources.jobs(replace(self.workload, load=self.loads[0]), nodes, self.seeds[0])
            for job in {job.ask: job for job in jobs}.values():
                job.ask.request(WHOLE_GPU)


@lru_cache(maxsize=4)
def _cluster(source: str, adds: tuple[str, ...]) -> tuple[clusters.Node, ...]:
    return clusters.cluster(source, adds)


def play(what: Play) -> dict[str, Any]:
    """Play one simulation; its parameters and figures."""
    nodes = _cluster(what.cluster, what.adds)
    jobs = sources.jobs(what.workload, nodes, what.seed)
    observer = Observer(jobs)
    started = time.process_time()
    simulation = Simulation(
        nodes, jobs, lambda: policies.policy(what.policy), what.seed, what.rules, observer
    )
    gpus, held = simulation.fleet.gpus, simulation.fleet.held
    maps = mapped(simulation.fleet)
    try:
        with no_collector():
            result = simulation.run()
    except Exception as error:
        if what.policy in policies.POLICIES:
            raise
        words = f"{what.policy!r}: {type(error).__name__}: {error}"
        raise UnknownPolicyError(words) from error
    found = figures(result, observer, gpus, held)
    row: dict[str, Any] = {
        "cluster": what.cluster,
        "load": what.workload.load,
        "policy": label(what.policy),
        "seed": what.seed,
        "nodes": len(nodes),
        "gpus": round(gpus),
        "cpu_seconds": time.process_time() - started,
        **found,
    }
    if what.noted:
        row["curve"] = observer.curve
        row["maps"] = {"nodes": maps, "moments": observer.strip}
        row["asks"] = asks(jobs)
    return row


def asks(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What was asked, by how much GPU time: the demands as they were played."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        text = job.ask.text if job.pods == 1 else f"{job.pods} × {job.ask.text}"
        row = found.setdefault(text, {"ask": text, "jobs": 0, "gpu_hours": 0.0})
        row["jobs"] += 1
        row["gpu_hours"] += job.gpus * job.runs / 3600
    return sorted(found.values(), key=lambda row: -row["gpu_hours"])


def run(
    sweep: Sweep, *, workers: int | None = None, done: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Play all of them; parameters, runs and rows. ``done`` hears how many of how many are."""
    plays = sweep.plays()
    found: dict[int, dict[str, Any]] = {}
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
    runs = [found[i] for i in range(len(plays))]
    return {
        "benchmark": "simulate",
        "mode": MODE,
        "parameters": parameters(sweep),
        "runs": runs,
        "rows": rows(runs),
    }


def parameters(sweep: Sweep) -> dict[str, Any]:
    """Every parameter of a sweep, its shard aside: shards of one sweep have equal ones."""
    found = asdict(sweep)
    del found["shard"]
    del found["workload"]["load"]
    return found


ROWS = (
    *("kept", "hop", "hop_least_tenth", "wait", "wait_asking", "completion"),
    *("completion_several", "allocated", "fragmented", "cpu_seconds"),
)
"""Figures of which rows hold mean and half of the interval."""
AGAINST_OURS = ("completion", "completion_several", "wait")


def rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per cluster, load and policy, over the seeds."""
    groups: dict[tuple[str, float | None, str], list[dict[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["cluster"], one["load"], one["policy"]), []).append(one)
    found = []
    for (cluster, load, policy), group in groups.items():
        row: dict[str, Any] = {
            "cluster": cluster,
            "load": load,
            "policy": policy,
            "seeds": len(group),
            "jobs": sum(one["jobs"] for one in group),
            "placed": sum(one["placed"] for one in group),
            "impossible": sum(one["impossible"] for one in group),
            "stuck": sum(one["stuck"] for one in group),
            "asking": sum(one["asking"] for one in group),
        }
        for name in ROWS:
            row[name] = interval([one[name] for one in group if one[name] is not None])
        ours = {one["seed"]: one for one in groups.get((cluster, load, OURS), [])}
        for name in AGAINST_OURS:
            row[f"{name}_against_ours"] = interval(list(_ratios(group, ours, name)))
        found.append(row)
    return found


def _ratios(
    group: Sequence[dict[str, Any]], ours: dict[int, dict[str, Any]], name: str
) -> Iterator[float]:
    for one in group:
        mine = ours.get(one["seed"])
        if mine is not None and one[name] is not None and mine[name]:
            yield one[name] / mine[name]


def interval(values: Sequence[float]) -> list[float] | None:
    """Mean and half the width of the 95 % interval; 0 for the width of a single value.

    >>> [round(x, 3) for x in interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    if not values:
        return None
    if len(values) == 1:
        return [values[0], 0.0]
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return [mean(values), float(half)]


def merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The shards of one sweep as one. Raises ValueError where they are of several."""
    first = parts[0]
    for other in parts[1:]:
        if other["parameters"] != first["parameters"]:
            raise ValueError("shards of different sweeps: their parameters differ")
    order = [
        (p.cluster, p.workload.load, p.seed, label(p.policy)) for p in _whole(first["parameters"])
    ]
    runs = {(r["cluster"], r["load"], r["seed"], r["policy"]): r for p in parts for r in p["runs"]}
    ordered = [runs[key] for key in order if key in runs]
    return {**first, "runs": ordered, "rows": rows(ordered)}


def _whole(given: dict[str, Any]) -> list[Play]:
    return Sweep(
        tuple(given["clusters"]),
        Workload(**given["workload"]),
        tuple(given["loads"]),
        tuple(given["policies"]),
        tuple(given["seeds"]),
    ).plays()


def table(found: dict[str, Any]) -> Table:
    """The rows for a terminal."""
    columns: tuple[tuple[str, str], ...] = (
        ("cluster", "left"),
        ("load", "right"),
        ("policy", "left"),
        ("promises kept", "right"),
        ("weakest hop GB/s", "right"),
        ("wait h", "right"),
        ("of those asking", "right"),
        ("completion h", "right"),
        ("× ours", "right"),
        ("several GPUs", "right"),
        ("allocated %", "right"),
        ("fragmented %", "right"),
    )
    lost = any(row["placed"] < row["jobs"] for row in found["rows"])
    columns += (("never ran", "right"),) if lost else ()
    result = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in columns:
        result.add_column(name, justify="right" if side == "right" else "left")
    before: tuple[object, object] | None = None
    for row in found["rows"]:
        group = (row["cluster"], row["load"])
        if before is not None and group != before:
            result.add_section()
        result.add_row(
            row["cluster"] if group != before else "",
            "" if group == before else ("–" if row["load"] is None else f"{row['load']:g}"),
            row["policy"],
            spread(row["kept"], ".1%"),
            spread(row["hop"], ".1f"),
            spread(row["wait"], ".2f", 3600),
            spread(row["wait_asking"], ".2f", 3600),
            spread(row["completion"], ".2f", 3600),
            spread(row["completion_against_ours"], ".3f"),
            spread(row["completion_several_against_ours"], ".3f"),
            spread(row["allocated"], ".1f"),
            spread(row["fragmented"], ".1f"),
            *([f"{row['jobs'] - row['placed']:,} of {row['jobs']:,}"] if lost else []),
        )
        before = group
    return result


def spread(value: list[float] | None, form: str, unit: float = 1.0) -> str:
    """Mean and half-width as people write them; a dash where there is nothing."""
    if value is None:
        return "–"
    middle, half = value[0] / unit, value[1] / unit
    return f"{middle:{form}} ± {half:{form}}" if half else f"{middle:{form}}"


def tsv(found: dict[str, Any]) -> str:
    """Every run with every parameter, tab-separated, with a line of names."""
    given = found["parameters"]
    fixed = {
        **{f"workload_{k}": v for k, v in given["workload"].items()},
        **{k: v for k, v in given["rules"].items() if k != "speed"},
        **{f"speed_{k}": v for k, v in given["rules"]["speed"].items()},
        "added": ",".join(given["adds"]),
    }
    flat = [
        {**{k: v for k, v in one.items() if not isinstance(v, (dict, list))}, **fixed}
        for one in found["runs"]
    ]
    lines = ["\t".join(flat[0])] if flat else []
    for one in flat:
        cells = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in one.values())
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"
