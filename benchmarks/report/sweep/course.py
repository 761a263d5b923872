"""Drawings of what happened in time: curves against arrivals, and maps of some nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.figures.simulated import CurvePoint, Maps, Run
from benchmarks.report import maps, plots
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
    """Curves, then maps."""
    yield from _curves(found, palette)
    yield from _maps(found, palette)


def _curves(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
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


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A run and its maps."""

    run: Run
    maps: Maps


def _maps(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """One figure per case; all but the highest load of a cluster are folded."""
    highest: dict[str, float] = {}
    for case in found:
        highest[case.cluster] = max(case.load or 0.0, highest.get(case.cluster, 0.0))
    for case in found:
        noted = [_Mapped(run, run.maps) for run in case.noted if run.maps is not None]
        if not noted:
            continue
        first = noted[0]
        nodes, of = len(first.maps.nodes), first.run.nodes
        which = "All nodes" if nodes == of else f"{nodes} of {of:,} nodes"
        panels = [
            Panel(
                one.run.policy,
                maps.strip(one.maps, one.run.policy, palette),
                f"{nodes} nodes at {len(one.maps.moments)} moments",
            )
            for one in noted
        ]
        yield Figure(
            "GPUs held" + (f": {case.name}" if len(found) > 1 else ""),
            f"{which}; a line per GPU, coloured while it is held, time to the right. "
            f"Under seed {first.run.seed}.",
            panels,
            small=True,
            folded=(case.load or 0.0) < highest[case.cluster],
        )
