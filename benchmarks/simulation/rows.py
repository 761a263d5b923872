"""A row for each policy, over the seeds; the shards of one sweep as one; and tables of them.

All policies meet the same jobs under one seed, so their differences are taken seed by seed. An
interval is Student's t over the seeds, 95 %.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import mean, stdev
from typing import Any

from rich.table import Table
from scipy.stats import t as student

from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import PolicyRow, Run, Simulated
from benchmarks.output import table_of
from benchmarks.ownpolicy import label

OURS = "gpu-topology"
# Figures of a run of which a row has the mean.
MEANS = (
    *("kept", "hop", "hop_least_tenth", "wait", "wait_asking", "completion"),
    *("completion_several", "allocated", "fragmented", "cpu_seconds"),
)


def rows(runs: Sequence[Run]) -> tuple[PolicyRow, ...]:
    """One row per cluster, load and policy, in the order of the runs."""
    groups: dict[tuple[str, float | None, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.cluster, run.load, run.policy), []).append(run)
    return tuple(
        _row(group, groups.get((cluster, load, OURS), []))
        for (cluster, load, _), group in groups.items()
    )


def _row(group: Sequence[Run], ours: Sequence[Run]) -> PolicyRow:
    first = group[0]
    means = {name: interval(_known(group, name)) for name in MEANS}
    ours_by_seed = {run.seed: run for run in ours}

    def against_ours(name: str) -> Interval | None:
        return interval(list(_ratios(group, ours_by_seed, name)))

    return PolicyRow(
        cluster=first.cluster,
        load=first.load,
        policy=first.policy,
        seeds=len(group),
        jobs=sum(run.jobs for run in group),
        placed=sum(run.placed for run in group),
        unplaceable=sum(run.unplaceable for run in group),
        stuck=sum(run.stuck for run in group),
        asking=sum(run.asking for run in group),
        **means,
        completion_against_ours=against_ours("completion"),
        completion_several_against_ours=against_ours("completion_several"),
        wait_against_ours=against_ours("wait"),
        moved=sum(run.moved for run in group),
        unblocked=sum(run.unblocked for run in group),
    )


def _known(group: Sequence[Run], name: str) -> list[float]:
    values: list[float | None] = [getattr(run, name) for run in group]
    return [value for value in values if value is not None]


def _ratios(group: Sequence[Run], ours: Mapping[int, Run], name: str) -> Iterator[float]:
    for run in group:
        mine = ours.get(run.seed)
        value: float | None = getattr(run, name)
        if mine is not None and value is not None and getattr(mine, name):
            yield value / getattr(mine, name)


def interval(values: Sequence[float]) -> Interval | None:
    """Mean and half the width of the 95 % interval; 0 for the width of a single value.

    >>> [round(x, 3) for x in interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    if not values:
        return None
    if len(values) == 1:
        return Interval(values[0], 0.0)
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Interval(mean(values), float(half))


def merge(shards: Sequence[Simulated]) -> Simulated:
    """The shards of one sweep as one. Raises ValueError where they are of several."""
    given = shards[0].parameters
    if any(other.parameters != given for other in shards[1:]):
        raise ValueError("shards of different sweeps: their parameters differ")
    played = {
        (run.cluster, run.load, run.seed, run.policy): run for shard in shards for run in shard.runs
    }
    order = product(given.clusters, given.loads, given.seeds, map(label, given.policies))
    runs = tuple(played[key] for key in order if key in played)
    return Simulated(parameters=given, runs=runs, rows=rows(runs))


_COLUMNS = (
    "promises kept",
    "weakest hop GB/s",
    "wait h",
    "of those asking",
    "completion h",
    "× ours",
    "several GPUs",
    "allocated %",
    "fragmented %",
)
HOUR = 3600.0


def table(found: Simulated) -> Table:
    """The rows for a terminal."""
    lost = any(row.placed < row.jobs for row in found.rows)
    moved = any(row.moved for row in found.rows)
    more = ["never ran"] * lost + ["pods moved"] * moved
    result = table_of(("cluster", "load", "policy"), (*_COLUMNS, *more))
    result.columns[1].justify = "right"
    before: tuple[str, float | None] | None = None
    for row in found.rows:
        group = (row.cluster, row.load)
        if before is not None and group != before:
            result.add_section()
        load = "–" if row.load is None else f"{row.load:g}"
        names = (row.cluster, load) if group != before else ("", "")
        never_ran = [f"{row.jobs - row.placed:,} of {row.jobs:,}"] if lost else []
        moves = [f"{row.moved:,} for {row.unblocked:,} jobs" if row.moved else "–"] * moved
        result.add_row(*names, row.policy, *_cells(row), *never_ran, *moves)
        before = group
    return result


def _cells(row: PolicyRow) -> tuple[str, ...]:
    return (
        spread(row.kept, ".1%"),
        spread(row.hop, ".1f"),
        spread(row.wait, ".2f", HOUR),
        spread(row.wait_asking, ".2f", HOUR),
        spread(row.completion, ".2f", HOUR),
        spread(row.completion_against_ours, ".3f"),
        spread(row.completion_several_against_ours, ".3f"),
        spread(row.allocated, ".1f"),
        spread(row.fragmented, ".1f"),
    )


def spread(value: Interval | None, form: str, unit: float = 1.0) -> str:
    """Mean and half-width as people write them; a dash where there is nothing."""
    if value is None:
        return "–"
    middle, half = value.mean / unit, value.half / unit
    return f"{middle:{form}} ± {half:{form}}" if half else f"{middle:{form}}"


def tsv(found: Simulated) -> str:
    """Every run with every parameter, tab-separated, with a line of names."""
    given = found.parameters
    rules = given.rules.as_json()
    speed, moves = rules.pop("speed"), rules.pop("moves", None) or {}
    fixed = {
        **{f"workload_{k}": v for k, v in given.workload.as_json().items()},
        **rules,
        **{f"speed_{k}": v for k, v in speed.items()},
        **{f"moves_{k}": v for k, v in moves.items()},
        "added": ",".join(given.adds),
    }
    flat = [{**_plain(run.as_json()), **fixed} for run in found.runs]
    lines = ["\t".join(flat[0])] if flat else []
    for one in flat:
        cells = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in one.values())
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """What fits into a cell."""
    return {k: v for k, v in row.items() if not isinstance(v, (dict, list, tuple))}
