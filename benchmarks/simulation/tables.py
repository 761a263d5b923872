"""A sweep's figures for a terminal, and as tab-separated values."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import PolicyRow, Simulated

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
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("cluster")
    result.add_column("load", justify="right")
    result.add_column("policy")
    more = ["never ran"] * lost + ["pods moved"] * moved
    for name in (*_COLUMNS, *more):
        result.add_column(name, justify="right")
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
