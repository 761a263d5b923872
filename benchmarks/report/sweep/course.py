"""Drawings of what happened in time: curves against arrivals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.figures.simulated import CurvePoint
from benchmarks.report import plots
from benchmarks.report.colours import Palette
from benchmarks.report.parts import Figure, Panel
from benchmarks.report.sweep.cases import Case, caption


@dataclass(frozen=True, slots=True)
class _Curve:
    """A figure of :class:`~benchmarks.figures.simulated.CurvePoint` that is drawn."""

    title: str
    figure: str
    axis: str
    text: str


_CURVES = (
    _Curve("Allocation", "allocated", "GPUs held, %", "GPUs held, of all."),
    _Curve(
        "Fragmentation",
        "fragmented",
        "of free GPUs, %",
        "Free GPUs that the usual requests could not be promised. No line where none is free.",
    ),
)


def figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """A figure for each kind of curve."""
    for curve in _CURVES:
        panels = []
        for case in found:
            given = [
                plots.Line(
                    run.policy,
                    [point.arrived / 100 for point in run.curve or ()],
                    [_at(point, curve.figure) for point in run.curve or ()],
                )
                for run in case.noted
            ]
            if given:
                x = "GPUs asked for so far / GPUs of the cluster"
                drawing = plots.lines(given, x, curve.axis, palette)
                means = "; ".join(f"{line.policy} {_mean_of(line.y)}" for line in given)
                panels.append(Panel(caption(case, found), drawing, f"On average {means}"))
        seed = next((run.seed for case in found for run in case.noted), None)
        if panels:
            text = f"{curve.text} At arrivals under seed {seed}."
            yield Figure(curve.title, text, panels, lined=True)


def _at(point: CurvePoint, name: str) -> float:
    """A point of a curve; ``fragmented`` is not known where no GPU is free."""
    nothing_free = name == "fragmented" and point.allocated >= 100
    return float("nan") if nothing_free else float(getattr(point, name))


def _mean_of(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    return f"{mean(known):.0f} %" if known else "–"
