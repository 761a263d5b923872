"""A sweep taken apart: each cluster under each load, with its runs and rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import PolicyRow, Run, Simulated
from benchmarks.report import wording
from benchmarks.report.colours import OURS


@dataclass(frozen=True, slots=True)
class Case:
    """One cluster under one load: its runs, and a row per policy."""

    cluster: str
    load: float | None
    runs: Sequence[Run]
    rows: Sequence[PolicyRow]

    @property
    def name(self) -> str:
        """For captions."""
        return f"{self.cluster}, {wording.load(self.load)}"

    @property
    def ours(self) -> PolicyRow | None:
        """Our row."""
        return next((row for row in self.rows if row.policy == OURS), None)

    @property
    def others(self) -> list[PolicyRow]:
        """The rows of the others."""
        return [row for row in self.rows if row.policy != OURS]

    @property
    def noted(self) -> list[Run]:
        """The runs with curves."""
        return [run for run in self.runs if run.curve]


def cases(found: Simulated) -> list[Case]:
    """The clusters and loads of a sweep, as they come."""
    keys = dict.fromkeys((row.cluster, row.load) for row in found.rows)
    return [
        Case(
            cluster,
            load,
            [run for run in found.runs if (run.cluster, run.load) == (cluster, load)],
            [row for row in found.rows if (row.cluster, row.load) == (cluster, load)],
        )
        for cluster, load in keys
    ]


@dataclass(frozen=True, slots=True)
class Known:
    """A row that has a certain figure, and the figure."""

    row: PolicyRow
    value: Interval

    @property
    def mean(self) -> float:
        """The figure's mean."""
        return self.value.mean


def known(rows: Iterable[PolicyRow], figure: str) -> list[Known]:
    """The rows that have a figure of this name."""
    found = ((row, row.interval(figure)) for row in rows)
    return [Known(row, value) for row, value in found if value is not None]


def longest(found: Sequence[Case], figure: str) -> float:
    """The longest mean of a time in seconds; 0 where none is known."""
    rows = (row for case in found for row in case.rows)
    return max((one.mean for one in known(rows, figure)), default=0.0)


def caption(case: Case, found: Sequence[Case]) -> str:
    """What stands over the panel of a case: nothing where it is the only one."""
    return case.name if len(found) > 1 else ""
