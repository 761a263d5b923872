"""Drawings of what happened in time: curves against arrivals, and maps of some nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean

from markupsafe import Markup

from benchmarks.figures.simulated import CurvePoint, MapNode, Maps, Run
from benchmarks.report import plots
from benchmarks.report.colours import Palette, variables
from benchmarks.report.parts import Figure, Panel
from benchmarks.report.sweep.cases import Case, caption
from benchmarks.report.wording import duration


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


LABELS = 78
MAP = 162
NODE = 16
GAP = 3
LETTERS = 14

_STRIP = Markup(
    '<svg class="plot map" viewBox="0 0 {width} {height}" aria-hidden="true">'
    '<path class="free" d="{free}"/><path d="{held}" style="fill:{colour}"/>{labels}{times}</svg>'
)
_LABEL = Markup('<text x="{x}" y="{y:g}" text-anchor="end">{text}<title>{name}</title></text>')
_TIME = Markup('<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>')


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
                _strip(one.maps, one.run.policy, palette),
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


def _strip(maps: Maps, policy: str, palette: Palette) -> Markup:
    """A map: a row per node, in it a line per GPU, a column per moment; held GPUs are coloured."""
    nodes, moments = maps.nodes, maps.moments
    bottom = len(nodes) * (NODE + GAP)
    labels = (
        _LABEL.format(x=LABELS - 5, y=row * (NODE + GAP) + 11.5, text=_short(name), name=name)
        for row, (name, _) in enumerate(nodes)
    )
    free = "".join(
        f"M{LABELS} {row * (NODE + GAP)}h{MAP}v{NODE}h-{MAP}z" for row in range(len(nodes))
    )
    return _STRIP.format(
        width=LABELS + MAP,
        height=bottom + 14,
        free=free,
        held="".join(_held(nodes, [moment.free for moment in moments])),
        colour=variables(palette.paint(policy)),
        labels=Markup("").join(labels),
        times=Markup("").join(_times([moment.time for moment in moments], bottom + 11)),
    )


def _held(nodes: Sequence[MapNode], free: Sequence[Sequence[int]]) -> Iterator[str]:
    """Rectangles, one for each GPU and each while it was held."""
    column = MAP / max(1, len(free))
    for row, (_, gpus) in enumerate(nodes):
        height = NODE / max(1, gpus)
        for gpu in range(gpus):
            y, x = row * (NODE + GAP) + gpu * height, 0
            for held, group in groupby(not masks[row] >> gpu & 1 for masks in free):
                width = len(list(group))
                if held:
                    yield (
                        f"M{_number(LABELS + x * column)} {_number(y)}h{_number(width * column)}"
                        f"v{_number(height)}h-{_number(width * column)}z"
                    )
                x += width


def _times(times: Sequence[float], y: float) -> Iterator[Markup]:
    if times:
        yield _TIME.format(x=LABELS, y=y, anchor="start", text=duration(times[0]))
    if len(times) > 1:
        yield _TIME.format(x=LABELS + MAP, y=y, anchor="end", text=duration(times[-1]))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _short(name: str) -> str:
    """The end of a long name, where nodes differ."""
    return name if len(name) <= LETTERS else "…" + name[1 - LETTERS :]
