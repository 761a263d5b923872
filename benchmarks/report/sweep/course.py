"""Drawings of what happened in time: curves against arrivals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.figures.simulated import CurvePoint
from benchmarks.report import plots
from benchmarks.report.colours import OURS, Palette
from benchmarks.report.parts import Figure, Panel
from benchmarks.report.sweep.cases import Case


@dataclass(frozen=True, slots=True)
class _Curve:
    """A figure of :class:`~benchmarks.figures.simulated.CurvePoint` that is drawn."""

    title: str
    figure: str
    text: str


_CURVES = (
    _Curve("Allocation", "allocated", "GPUs held, in % of all."),
    _Curve(
        "Fragmentation",
        "fragmented",
        "Free GPUs that the usual requests could not be promised, in % of the free ones. No line "
        "where none is free.",
    ),
)


def figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """A figure for each kind of curve and each case, with a panel for each policy."""
    for curve in _CURVES:
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
                panels = list(_panels(given, palette))
                thin = any(line.policy == OURS for line in given) and len(given) > 1
                yield Figure(
                    curve.title + (f": {case.name}" if len(found) > 1 else ""),
                    f"{curve.text} Beside each name is the average. To the right: GPUs asked for "
                    "so far, as a multiple of the cluster’s."
                    f"{f' The thin line is {OURS}.' if thin else ''} "
                    f"At arrivals under seed {case.noted[0].seed}.",
                    panels,
                    small=True,
                    folded=_is_folded(case, found),
                )


def _panels(given: Sequence[plots.Line], palette: Palette) -> Iterator[Panel]:
    ours = next((line for line in given if line.policy == OURS), None)
    for line in given:
        drawing = plots.in_time(line, ours, palette)
        yield Panel(f"{line.policy}: {_mean_of(line.y)}", drawing, "That is the average")


def _is_folded(case: Case, found: Sequence[Case]) -> bool:
    """Whether another case has the cluster under a higher load: that one is shown."""
    load = case.load or 0.0
    return any(one.cluster == case.cluster and (one.load or 0.0) > load for one in found)


def _at(point: CurvePoint, name: str) -> float:
    """A point of a curve; ``fragmented`` is not known where no GPU is free."""
    nothing_free = name == "fragmented" and point.allocated >= 100
    return float("nan") if nothing_free else float(getattr(point, name))


def _mean_of(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    return f"{mean(known):.0f} %" if known else "–"
