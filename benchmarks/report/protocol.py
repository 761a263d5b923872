"""The section of one comparison of ``compare``."""

from collections.abc import Iterator, Sequence

from benchmarks.figures.compared import Compared, ComparisonParameters, ComparisonRow
from benchmarks.papers.comparison import TOLERANCE
from benchmarks.report import plots, wording
from benchmarks.report.colours import BOUND, Palette
from benchmarks.report.parts import Cell, Column, Figure, Group, Panel, Row, Section, Table

MODE = "protocol"


def section(found: Compared, palette: Palette) -> Section:
    """All that there is to say about a comparison."""
    given, rows = found.parameters, found.rows
    workloads = list(dict.fromkeys(row.workload for row in rows))
    which = workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"
    return Section(
        mode=MODE,
        title=f"FGD’s paper again: {which}",
        lead=list(_lead(rows, workloads)),
        played=list(_played(given, rows, workloads)),
        table=_table(rows, workloads),
        keys=(),
        figures=[_figure(rows, workloads, palette)],
        parameters=list(wording.flat(given.as_json())),
        command=wording.compare(given),
    )


def _of(rows: Sequence[ComparisonRow], workload: str) -> list[ComparisonRow]:
    return [row for row in rows if row.workload == workload and row.policy != BOUND]


def _bound(rows: Sequence[ComparisonRow], workload: str) -> float | None:
    found = (r.ours for r in rows if (r.workload, r.policy) == (workload, BOUND))
    return next((float(value) for value in found), None)


def _difference(row: ComparisonRow) -> float | None:
    published = row.published
    return None if published is None else row.ours - published


def _lead(rows: Sequence[ComparisonRow], workloads: Sequence[str]) -> Iterator[str]:
    known = [(abs(d), d, row) for row in rows if (d := _difference(row)) is not None]
    if known:
        within = sum(far <= TOLERANCE for far, _, _ in known)
        _, furthest, row = max(known, key=lambda one: one[0])
        yield (
            f"Published figures met within {TOLERANCE:g} points: {within} of {len(known)}; the "
            f"furthest is {row.policy} on {row.workload}, {wording.signed(furthest)}."
        )
    new = dict.fromkeys(r.policy for r in rows if r.policy != BOUND and _new(rows, r))
    for policy in new:
        margins = [m for w in workloads if (m := _margin(rows, w, policy)) is not None]
        if margins:
            by = wording.ends([wording.signed(margin) for margin in sorted(margins)])
            yield (
                f"{policy}, of which nothing was published, differs from the best published "
                f"policy here by {by} points."
            )
    gaps = [
        bound - max(row.ours for row in _of(rows, w))
        for w in workloads
        if (bound := _bound(rows, w)) is not None and _of(rows, w)
    ]
    if gaps:
        yield f"From the best policy to the upper bound it is {wording.span(gaps, '.2f')} points."


def _new(rows: Sequence[ComparisonRow], row: ComparisonRow) -> bool:
    return all(r.published is None for r in rows if r.policy == row.policy)


def _margin(rows: Sequence[ComparisonRow], workload: str, policy: str) -> float | None:
    here = _of(rows, workload)
    mine = [row.ours for row in here if row.policy == policy]
    theirs = [row.ours for row in here if row.published is not None]
    return mine[0] - max(theirs) if mine and theirs else None


def _played(
    given: ComparisonParameters, rows: Sequence[ComparisonRow], workloads: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    yield "Figure", ["GPUs given out when 130 % of them have been asked for, in % of all"]
    yield (
        "Nodes",
        ["the papers’ model: CPU, memory and shares of GPUs, no links; nothing leaves"],
    )
    yield "Workloads", [", ".join(workloads)]
    counts = [row.seeds for row in rows if row.seeds]
    most = f": {wording.several(max(counts), 'order')} of arrivals" if counts else ""
    yield "Seeds", [f"{wording.seeds(given.seeds)}{most}; published figures are means of ten"]


def _table(rows: Sequence[ComparisonRow], workloads: Sequence[str]) -> Table:
    columns = (
        Column("policy", figures=False),
        Column("published", "%"),
        Column("ours", "%"),
        Column("difference", "points"),
    )
    groups = []
    for workload in workloads:
        here = _of(rows, workload)
        best = max((f"{row.ours:.2f}" for row in here), key=float, default="")
        bounds = [r for r in rows if (r.workload, r.policy) == (workload, BOUND)]
        lines = [_row(row, best) for row in here] + [_row(row, "") for row in bounds]
        groups.append(Group(workload, lines))
    note = (
        "“Ours” is what this code gets for a policy, whoever it is by. Marked "
        f"is the best of a workload; differences above {TOLERANCE:g} points are coloured."
    )
    return Table(columns, groups, note, small=True)


def _row(row: ComparisonRow, best: str) -> Row:
    difference, published, ours = _difference(row), row.published, f"{row.ours:.2f}"
    far = difference is not None and abs(difference) > TOLERANCE
    return Row(
        [
            Cell(row.policy),
            Cell("–" if published is None else f"{published:.2f}"),
            Cell(ours, "best" if ours == best else ""),
            Cell("–" if difference is None else wording.signed(difference), "far" if far else ""),
        ]
    )


def _figure(rows: Sequence[ComparisonRow], workloads: Sequence[str], palette: Palette) -> Figure:
    panels = []
    for workload in workloads:
        here = sorted(_of(rows, workload), key=lambda row: -row.ours)
        given = [plots.Pair(r.policy, r.published, r.ours) for r in here]
        bound = _bound(rows, workload)
        if given:
            drawing = plots.pairs(given, "GPUs given out, %", palette, bound)
            words = "; ".join(f"{pair.policy} {pair.ours:.2f} %" for pair in given)
            panels.append(Panel(workload, drawing, words))
    line = " The dashed line is the upper bound." if any(r.policy == BOUND for r in rows) else ""
    text = f"Rings are published figures, dots are ours.{line}"
    return Figure("Published and ours", text, panels)
