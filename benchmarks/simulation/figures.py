"""The file that ``simulate --json`` writes and ``report`` reads.

It has the sweep, its simulations, and means. Times are in seconds, and bandwidth is in GB/s, both
ways. Under one seed all policies get the same jobs, so ratios are taken seed by seed. An interval
is the 95 % interval of Student's t over the seeds; fewer than three seeds have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table
from scipy.special import stdtrit

from benchmarks.output import table_of

OURS = "gpu-topology"
QUANTILES = tuple(q / 50 for q in range(51))  # of waiting times, from 0 to 1 in steps of 0.02

Number: TypeAlias = Annotated[float, Field(ge=0, le=1e30)]  # not NaN either
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Figures(BaseModel):
    """An object of the file. Fields that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True)


class Sweep(Figures):
    """The simulations to play, clusters × loads × seeds × policies.

    With a load of None arrivals stay as they are.
    """

    clusters: Annotated[tuple[str, ...], Field(min_length=1)]
    jobs: str
    count: Count
    demand: str
    loads: Annotated[tuple[Number | None, ...], Field(min_length=1)]
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1)]
    communication: Number
    full_speed: Number
    network: Number


class Run(Figures):
    """One simulation."""

    cluster: str
    load: Number | None
    policy: str
    seed: int
    nodes: Count
    gpus: Count
    jobs: Count
    placed: Count
    unplaceable: Count  # jobs that do not fit even on the empty cluster
    failed: Count  # jobs that failed, since kubelets refused too many of their pods
    refused: Count  # pods that a kubelet refused
    asking: Count  # placed jobs with annotations
    kept: Number | None  # the share of these whose GPUs satisfy the annotations
    hop: Number | None  # the mean weakest hop of jobs with more than one GPU
    wait: Number | None
    wait_asking: Number | None
    waits: Annotated[tuple[Number, ...], Field(max_length=len(QUANTILES))]  # by QUANTILES
    completion: Number | None
    completion_several: Number | None  # of jobs with more than one GPU
    allocated: Number | None  # the share of GPU time given out until the last arrival

    @property
    def never_placed(self) -> int:
        """The number of jobs that never ran."""
        return self.jobs - self.placed


class Simulated(Figures):
    """The file without the means, which are computed from the simulations."""

    parameters: Sweep
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]

    def as_json(self) -> dict[str, Any]:
        """Return the whole file, with the means."""
        means = [
            {"cluster": row.cluster, "load": row.load, "policy": row.policy}
            | {name: row.total(name) for name in ("jobs", *(each.name for each in COUNTS))}
            | {column.name: row.interval(column) for column in COLUMNS}
            for row in rows(self.runs)
        ]
        return {"benchmark": "simulate", **self.model_dump(mode="json"), "rows": means}


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % interval; None for fewer than three values."""

    mean: float
    half: float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a policy, as tables show it."""

    name: str
    heading: str
    unit: str
    form: str
    size: float = 1.0  # of the unit
    of: str = ""  # for a ratio the figure of a run that is divided by ours

    def written(self, value: Interval | None) -> str:
        """Return mean and half-width as a text, or a dash for None.

        >>> COLUMNS[0].written(Interval(0.5, 0.25)), COLUMNS[0].written(None)
        ('50.0 ± 25.0', '–')
        >>> COLUMNS[0].written(Interval(0.5, None))
        '50.0 ± n/a'
        """
        if value is None:
            return "–"
        middle = f"{value.mean / self.size:{self.form}}"
        if value.half is None:
            return f"{middle} ± n/a"
        return f"{middle} ± {value.half / self.size:{self.form}}" if value.half else middle


HOUR = 3600.0
LEAST = 1e-6  # seconds; a ratio needs at least this as its divisor
COLUMNS = (
    Column("kept", "promises kept", "%", ".1f", 0.01),
    Column("hop", "weakest hop", "GB/s", ".1f"),
    Column("wait", "wait", "h", ".2f", HOUR),
    Column("wait_asking", "wait, annotated jobs", "h", ".2f", HOUR),
    Column("completion", "completion", "h", ".2f", HOUR),
    Column("completion_against_ours", "completion", "× gpu-topology", ".3f", of="completion"),
    Column(
        "completion_several_against_ours",
        "several GPUs",
        "× gpu-topology",
        ".3f",
        of="completion_several",
    ),
    Column("allocated", "allocated", "%", ".1f", 0.01),
)
# Shown only where some are not 0.
COUNTS = (
    Column("never_placed", "never ran", "jobs", ",.0f"),
    Column("failed", "failed", "jobs", ",.0f"),
    Column("refused", "refused", "pods", ",.0f"),
)


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The runs of one policy on one cluster under one load, over the seeds."""

    cluster: str
    load: float | None
    policy: str
    runs: Sequence[Run]
    ours: Mapping[int, Run]  # the runs under our policy, by seed

    def total(self, name: str) -> int:
        """Return the sum of a figure over the seeds."""
        return sum(getattr(run, name) for run in self.runs)

    def interval(self, column: Column) -> Interval | None:
        """Return a figure over the seeds, or None if no simulation has it."""
        return interval(list(self._values(column)))

    def _values(self, column: Column) -> Iterator[float]:
        name = column.of or column.name
        for run in self.runs:
            value: float | None = getattr(run, name)
            beside: float | None = (
                getattr(self.ours.get(run.seed), name, None) if column.of else 1.0
            )
            if value is not None and beside is not None and beside >= LEAST:
                yield value / beside


def rows(runs: Sequence[Run]) -> list[PolicyRow]:
    """Return one row for each cluster, load and policy, in the order of the runs."""
    groups: dict[tuple[str, float | None, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.cluster, run.load, run.policy), []).append(run)
    return [
        PolicyRow(
            cluster,
            load,
            policy,
            group,
            {run.seed: run for run in groups.get((cluster, load, OURS), ())},
        )
        for (cluster, load, policy), group in groups.items()
    ]


def columns(every: Sequence[PolicyRow]) -> list[Column]:
    """Return the columns in which one of these rows has a figure."""
    counts = [column for column in COUNTS if any(row.total(column.name) for row in every)]
    known = [column for column in COLUMNS if any(row.interval(column) for row in every)]
    return [*counts, *known]


def interval(values: Sequence[float]) -> Interval | None:
    """Return the mean and half the width of the 95 % interval.

    >>> interval([1.0, 2.0])
    Interval(mean=1.5, half=None)
    >>> [round(x, 3) for x in interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    if not values:
        return None
    if len(values) < 3:
        return Interval(mean(values), None)
    half = stdtrit(len(values) - 1, 0.975) * stdev(values) / len(values) ** 0.5
    return Interval(mean(values), float(half))


def table(found: Simulated) -> Table:
    """Return the means as a table for a terminal."""
    all_rows = rows(found.runs)
    found_columns = columns(all_rows)
    headings = [f"{column.heading} {column.unit}" for column in found_columns]
    result = table_of(("cluster", "load", "policy"), headings)
    for (cluster, load), group in groupby(all_rows, lambda row: (row.cluster, row.load)):
        result.add_section()
        names = (cluster, "–" if load is None else f"{load:g}")
        for row in group:
            cells = [column.written(row.interval(column)) for column in found_columns]
            result.add_row(*names, row.policy, *cells)
            names = ("", "")
    return result
