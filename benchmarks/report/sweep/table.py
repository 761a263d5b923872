"""The table of a sweep: a group for each case, a row for each policy, the best means marked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.figures.simulated import PolicyRow
from benchmarks.report import wording
from benchmarks.report.colours import OURS
from benchmarks.report.parts import Cell, Column, Group, Row, Table
from benchmarks.report.sweep.cases import Case, known, longest
from benchmarks.simulation.rows import spread


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column of figures."""

    column: Column
    name: str
    form: str
    unit: float = 1.0
    # Picks the best mean; None if none is better as such.
    best: Callable[[Iterable[float]], float] | None = None


def table(found: Sequence[Case]) -> Table:
    """The table of all cases."""
    shown = _columns(found)
    unplaced = any(row.never_placed for case in found for row in case.rows)
    last = [Column("never placed", "jobs")] if unplaced else []
    groups = [_group(case, shown, unplaced=unplaced) for case in found]
    columns = [Column("policy", figures=False), *(one.column for one in shown), *last]
    return Table(columns, groups, _note(found))


def _columns(found: Sequence[Case]) -> list[_Shown]:
    wait, wait_unit = wording.unit(longest(found, "wait"))
    completion, completion_unit = wording.unit(longest(found, "completion"))
    shown = [
        _Shown(Column("promises kept", "%"), "kept", ".1f", 0.01, max),
        _Shown(Column("weakest hop", "GB/s"), "hop", ".1f", 1, max),
        _Shown(Column("wait", wait_unit), "wait", ".2f", wait, min),
        _Shown(Column("of those asking", wait_unit), "wait_asking", ".2f", wait, min),
        _Shown(Column("completion", completion_unit), "completion", ".2f", completion, min),
        _Shown(Column("completion", "× ours"), "completion_against_ours", ".3f", 1, min),
        _Shown(Column("several GPUs", "× ours"), "completion_several_against_ours", ".3f", 1, min),
        _Shown(Column("allocated", "%"), "allocated", ".1f"),
        _Shown(Column("fragmented", "%"), "fragmented", ".1f", 1, min),
    ]
    if all(case.ours is None for case in found):
        shown = [one for one in shown if not one.name.endswith("_against_ours")]
    return shown


def _group(case: Case, shown: Sequence[_Shown], *, unplaced: bool) -> Group:
    best = {one.name: _best(case, one) for one in shown}
    rows = []
    for row in case.rows:
        cells = [_cell(row, one, best[one.name]) for one in shown]
        left = [Cell(f"{row.never_placed:,}")] if unplaced else []
        rows.append(Row([Cell(row.policy), *cells, *left], row.policy == OURS))
    return Group(case.name, rows)


def _cell(row: PolicyRow, one: _Shown, best: str | None) -> Cell:
    value = row.interval(one.name)
    mark = value is not None and _written(value.mean, one) == best
    return Cell(spread(value, one.form, one.unit), "best" if mark else "")


def _written(mean: float, one: _Shown) -> str:
    """A mean as the table has it: means that look alike are alike."""
    return f"{mean / one.unit:{one.form}}"


def _best(case: Case, one: _Shown) -> str | None:
    """The best mean as it is written; None where all are written alike."""
    means = [row.mean for row in known(case.rows, one.name)]
    if one.best is None or len({_written(mean, one) for mean in means}) < 2:
        return None
    return _written(one.best(means), one)


def _note(found: Sequence[Case]) -> str:
    several = any(row.seeds > 1 for case in found for row in case.rows)
    spread_ = "Means over seeds ± 95 % (Student’s t). " if several else "One seed, no intervals. "
    return (
        f"{spread_}The best mean of each column is marked; intervals may overlap. Allocation is "
        "not marked: jobs over slow links hold their GPUs longer, and that counts as allocated. "
        "Promises are counted for placed jobs with annotations, the weakest hop for jobs with "
        "several GPUs; “of those asking” is the wait of jobs with annotations. Completion is from "
        "arrival to end, then beside ours seed by seed, of all jobs and of those with several "
        "GPUs. Fragmented are free GPUs that are of no use to the usual requests."
    )
