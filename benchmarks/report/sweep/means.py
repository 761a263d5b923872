"""Drawings of what the rows of a sweep say: promises, completion, load, waiting, weakest hop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import QUANTILES, PolicyRow
from benchmarks.report import plots, wording
from benchmarks.report.colours import STEPS, Palette, variables
from benchmarks.report.parts import Figure, Key, Panel
from benchmarks.report.sweep.cases import Case, caption, known, longest
from benchmarks.simulation.rows import spread

HOPS = (10.0, 25.0, 50.0, 100.0, 200.0)  # GB/s that part the steps of hops
# Most GPUs of the jobs that a heading is about.
SIZES = ((2, "2 GPUs"), (4, "3 and 4 GPUs"), (8, "5 to 8 GPUs"), (float("inf"), "more GPUs"))


def figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """The drawings; one without panels has nothing to show."""
    yield _promises(found, palette)
    yield _completions(found, palette)
    yield _loads(found, palette)
    yield _waits(found, palette)
    yield _hops(found)


def _intervals(found: Sequence[Case]) -> str:
    if all(row.seeds < 2 for case in found for row in case.rows):
        return "One seed."
    return "Means over seeds and 95 %; where an arrow is, it goes on."


def _promises(found: Sequence[Case], palette: Palette) -> Figure:
    given = {case.name: _dots(case, "kept", 0.01) for case in found}
    text = f"Of the placed jobs that asked for anything. {_intervals(found)}"
    axis = plots.Axis("promises kept, %", 0, 100)
    return Figure("Promises kept", text, _dotted(given, axis, palette))


def _completions(found: Sequence[Case], palette: Palette) -> Figure:
    if any(case.ours is not None for case in found):
        given = {case.name: _dots(case, "completion_against_ours", 1.0) for case in found}
        axis = plots.Axis("completion, × ours", 0, at=1.0)
    else:
        size, unit = wording.unit(longest(found, "completion"))
        given = {case.name: _dots(case, "completion", size) for case in found}
        axis = plots.Axis(f"completion, {unit}", 0)
    text = f"From arrival to end, left is faster. {_intervals(found)}"
    return Figure("Completion", text, _dotted(given, axis, palette))


def _dots(case: Case, name: str, size: float) -> list[plots.Dot]:
    return [
        plots.Dot(one.row.policy, one.mean / size, one.value.half / size)
        for one in known(case.rows, name)
    ]


def _dotted(given: dict[str, list[plots.Dot]], axis: plots.Axis, palette: Palette) -> list[Panel]:
    """A panel per case, all on one axis."""
    axis = axis.around([dot for dots in given.values() for dot in dots])
    return [
        Panel(
            name if len(given) > 1 else "",
            plots.dots(dots, axis, palette),
            "; ".join(f"{d.policy} {spread(Interval(d.mean, d.half), '.3g')}" for d in dots),
        )
        for name, dots in given.items()
        if dots
    ]


@dataclass(frozen=True, slots=True)
class _AgainstLoad:
    """A figure that is drawn against the load: its name, how large its unit is, and the unit."""

    title: str
    figure: str
    size: float
    unit: str


def _loads(found: Sequence[Case], palette: Palette) -> Figure:
    """Promises, waiting and completion against the load, for each cluster with several loads."""
    wait, wait_unit = wording.unit(longest(found, "wait"))
    completion, completion_unit = wording.unit(longest(found, "completion"))
    drawn = (
        _AgainstLoad("Promises kept", "kept", 0.01, "%"),
        _AgainstLoad("Wait", "wait", wait, wait_unit),
        _AgainstLoad("Completion", "completion", completion, completion_unit),
    )
    panels = []
    clusters = dict.fromkeys(case.cluster for case in found)
    for cluster in clusters:
        rows = [row for case in found for row in case.rows if case.cluster == cluster]
        for one in drawn:
            given = list(_against_load(rows, one.figure, one.size))
            several = len({load for line in given for load in line.x}) > 1
            if several and any(any(line.y) for line in given):
                named = f"{one.title}, {cluster}" if len(clusters) > 1 else one.title
                axis = f"{one.title.lower()}, {one.unit}"
                drawing = plots.against(given, "load", axis, palette)
                panels.append(Panel(named, drawing, "The means stand in the table."))
    text = "Means over seeds. How far they differ from seed to seed stands in the table."
    return Figure("Against load", text, panels, lined=True)


def _against_load(rows: Sequence[PolicyRow], name: str, size: float) -> Iterator[plots.Line]:
    for policy in dict.fromkeys(row.policy for row in rows):
        points = sorted(
            (one.row.load, one.mean / size)
            for one in known(rows, name)
            if one.row.policy == policy and one.row.load is not None
        )
        if points:
            yield plots.Line(policy, [x for x, _ in points], [y for _, y in points])


def _waits(found: Sequence[Case], palette: Palette) -> Figure:
    panels = []
    for case in found:
        given = list(_quantiles(case))
        if any(line.x[-1] >= 1 for line in given):
            drawing = plots.waits(given, palette)
            half = "; ".join(
                f"{line.policy} {wording.duration(line.x[45])} at 90 %" for line in given
            )
            panels.append(Panel(caption(case, found), drawing, half))
    text = "Share of the placed jobs that had started by then. Quantiles, averaged over seeds."
    return Figure("Waiting", text, panels, lined=True)


def _quantiles(case: Case) -> Iterator[plots.Line]:
    for row in case.rows:
        runs = [r.waits for r in case.runs if r.policy == row.policy and r.waits]
        if runs:
            x = [mean(values) for values in zip(*runs, strict=True)]
            yield plots.Line(row.policy, x, [100 * q for q in QUANTILES])


def _hops(found: Sequence[Case]) -> Figure:
    """Bars for jobs of each size, in each case."""
    panels, used = [], [False] * len(STEPS)
    for case in found:
        bars = list(_bars(case))
        for one in bars:
            for _, shares in one.shares:
                used = [old or share > 0 for old, share in zip(used, shares, strict=True)]
        if bars:
            panels.append(Panel(caption(case, found), plots.stacks(bars), _said_of(bars)))
    edges = [f"{edge:g}" for edge in HOPS]
    names = [
        f"below {edges[0]}",
        *(f"{a} to {b}" for a, b in pairwise(edges)),
        f"{edges[-1]} and more",
    ]
    keys = [
        Key(f"{name} GB/s", variables(colour))
        for name, colour, seen in zip(names, STEPS, used, strict=True)
        if seen
    ]
    text = "Of the best ring through a job’s GPUs, by how many it has. All seeds."
    return Figure("Weakest hop", text, panels, keys)


def _bars(case: Case) -> Iterator[plots.Bars]:
    least = 0.0
    for most, heading in SIZES:
        shares = []
        for policy in (row.policy for row in case.rows):
            steps = [0] * len(STEPS)
            for hop, count in _counts(case, policy, least, most):
                steps[_step(hop)] += count
            if whole := sum(steps):
                shares.append((policy, [n / whole for n in steps]))
        if shares:
            yield plots.Bars(heading, shares)
        least = most


def _counts(case: Case, policy: str, least: float, most: float) -> Iterator[tuple[float, int]]:
    """Hops and how many jobs had them, of jobs with more than ``least`` and at most ``most``."""
    for run in case.runs:
        for size, counts in run.hops.items():
            if run.policy == policy and least < float(size) <= most:
                yield from ((float(hop), count) for hop, count in counts.items())


def _step(hop: float) -> int:
    return sum(hop >= edge for edge in HOPS)


def _said_of(given: Sequence[plots.Bars]) -> str:
    wide = _step(50.0)
    return ". ".join(
        f"{bars.heading}, share with 50 GB/s and more: "
        + "; ".join(f"{name} {wording.percent(sum(s[wide:]))}" for name, s in bars.shares)
        for bars in given
    )
