"""Drawings with axes, as SVG that takes its colours and its font from the page.

Sizes are in pixels of a panel 360 wide. Titles and legends are the page's.
"""

import io
import re
import warnings
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from benchmarks.report.colours import (
    FAINT,
    INK,
    OURS,
    SOFT,
    STEPS,
    SURFACE,
    Palette,
    variables,
)

WIDTH = 360
HEIGHT = 230
ROW = 22  # height of a row of dots
STEP = (1, 2, 2.5, 5, 10)  # steps of ticks, times a power of ten

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 1,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A policy's points; NaN is a gap."""

    policy: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A policy's mean and half of its interval."""

    policy: str
    mean: float
    half: float = 0.0


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis, and what it shows."""

    name: str
    floor: float = -inf  # it never goes beyond these two
    ceiling: float = inf
    at: float | None = None  # where to draw a line
    least: float = 0.0
    most: float = 1.0

    def around(self, dots: Sequence[Dot]) -> Self:
        """The axis that shows all of these, but of wide intervals only a part.

        An interval is shown as far from the means as these are from one another.
        """
        if not dots:
            return self
        means = [dot.mean for dot in dots] + ([] if self.at is None else [self.at])
        room = max(max(means) - min(means), 0.02 * max(map(abs, means)), 0.02)
        low = min([*means, *(dot.mean - dot.half for dot in dots)])
        high = max([*means, *(dot.mean + dot.half for dot in dots)])
        least = max(self.floor, low, min(means) - room)
        most = min(self.ceiling, high, max(means) + room)
        if most - least < room:
            least, most = max(self.floor, least - room), min(self.ceiling, most + room)
        return replace(self, least=least, most=most)


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one heading, each a policy and its shares of :data:`~.colours.STEPS`, 0 to 1."""

    heading: str
    shares: Sequence[tuple[str, Sequence[float]]]


def waits(given: Sequence[Line], palette: Palette) -> Markup:
    """Which share of the jobs, in percent, had waited no longer than so many seconds."""

    def draw(axes: Axes) -> None:
        most = max(line.x[-1] for line in given)
        for line in _ours_last(given):
            to_the_end = Line(line.policy, [*line.x, max(60.0, most)], [*line.y, line.y[-1]])
            _line(axes, to_the_end, palette)
        axes.set_xscale("symlog", linthresh=60, linscale=0.6)
        axes.set_xlim(0, max(60.0, most))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(most)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _TIMES[round(value)]))
        least = min(line.y[max(0, bisect(line.x, 1.0) - 1)] for line in given) - 1
        step = 20 if least < 50 else 10 if least < 80 else 5
        bottom = max(0, int(least // step * step))
        axes.set_ylim(bottom, 100.5)
        axes.yaxis.set_major_locator(FixedLocator(range(bottom, 101, step)))
        axes.set_xlabel("waited no longer than")
        axes.set_ylabel("jobs, %")

    return _drawn(draw)


_TIMES = {
    0: "0",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    6 * 3600: "6 h",
    86400: "1 d",
    7 * 86400: "1 w",
    30 * 86400: "30 d",
    365 * 86400: "1 y",
}


def _ticks(most: float) -> list[int]:
    chosen = [t for t in _TIMES if t <= max(most, 60)]
    # Beyond a week there is no room for all of them.
    return [t for t in chosen if most < 7 * 86400 or t not in (600, 6 * 3600)]


def dots(given: Sequence[Dot], axis: Axis, palette: Palette) -> Markup:
    """A row per policy: mean and interval; an arrow where the interval goes on beyond the axis."""
    pad = 0.06 * (axis.most - axis.least)

    def draw(axes: Axes) -> None:
        axes.set_xlim(axis.least - pad, axis.most + pad)
        if axis.at is not None:
            axes.axvline(axis.at, color=palette.paint(OURS), linewidth=1)
        for row, dot in enumerate(given):
            colour = palette.paint(dot.policy)
            _interval(axes, row, dot, axis, colour)
            axes.plot(
                [dot.mean],
                [row],
                "o",
                color=colour,
                markersize=11 if dot.policy == OURS else 9,
                markeredgecolor=SURFACE,
                clip_on=False,
                zorder=3,
            )
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=STEP))
        axes.set_xlabel(axis.name)
        _policies(axes, [dot.policy for dot in given])

    return _drawn(draw, 52 + ROW * len(given))


def _interval(axes: Axes, row: int, dot: Dot, axis: Axis, colour: str) -> None:
    low, high = dot.mean - dot.half, dot.mean + dot.half
    ends = [max(low, axis.least), min(high, axis.most)]
    axes.plot(ends, [row, row], color=colour, linewidth=2.2, alpha=0.55)
    if low < axis.least != axis.floor:
        axes.plot(ends[:1], [row], "<", color=colour, markersize=6)
    if high > axis.most != axis.ceiling:
        axes.plot(ends[1:], [row], ">", color=colour, markersize=6)


def stacks(given: Sequence[Bars]) -> Markup:
    """Bars of shares, the narrow hops on the left."""
    rows = sum(len(bars.shares) + 1.2 for bars in given)

    def draw(axes: Axes) -> None:
        y, names, places = 0.0, [], []
        for bars in given:
            axes.text(0, y, bars.heading, va="center", fontweight="bold", fontsize=10.5)
            y += 0.95
            for policy, shares in bars.shares:
                left = 0.0
                for share, colour in zip(shares, STEPS, strict=True):
                    if share:
                        axes.barh(
                            y,
                            100 * share,
                            left=left,
                            color=colour,
                            height=0.84,
                            edgecolor=SURFACE,
                            linewidth=0.6,
                        )
                        left += 100 * share
                names.append(policy)
                places.append(y)
                y += 1
            y += 0.25
        axes.set_xlim(0, 100)
        axes.set_xlabel("jobs, %")
        _policies(axes, names, places)
        axes.set_ylim(y - 0.6, -0.7)
        axes.grid(visible=False)

    return _drawn(draw, 48 + 15 * rows)


def _ours_last(given: Sequence[Line]) -> list[Line]:
    """What is drawn last lies on top."""
    return sorted(given, key=lambda line: line.policy == OURS)


def _line(axes: Axes, line: Line, palette: Palette) -> None:
    ours, dashes = line.policy == OURS, palette.dashes(line.policy)
    axes.plot(
        line.x,
        line.y,
        color=palette.paint(line.policy),
        linewidth=2.4 if ours else 1.4,
        linestyle=(0, dashes) if dashes else "-",
    )


def _policies(axes: Axes, names: Sequence[str], places: Sequence[float] | None = None) -> None:
    """Rows from the top with names on the left, ours in bold."""
    at = list(places or range(len(names)))
    axes.set_yticks(at, [_short(name) for name in names])
    for name, label in zip(names, axes.get_yticklabels(), strict=True):
        label.set_color(INK)
        if name == OURS:
            label.set_fontweight("bold")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _short(name: str, most: int = 18) -> str:
    """The end of a long name, where the name in a path stands."""
    return name if len(name) <= most else "…" + name[-most + 1 :]


def _drawn(draw: Callable[[Axes], None], height: float = HEIGHT) -> Markup:
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Names are set in the reader's font; that ours has not all of their letters is no matter.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        axes.grid(visible=True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg")
    return Markup(_inline(file.getvalue()))  # noqa: S704 - matplotlib escapes what it is given


def _inline(text: str) -> str:
    """An SVG file as a part of a page: no header, no style sheet, no names of its own fonts."""
    text = text[text.index("<svg") :].strip()
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    text = re.sub(r"<svg[^>]*>", f'<svg class="plot" {view[0]} aria-hidden="true">', text, count=1)
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = text.replace("xlink:href", "href").replace("<g id=", "<g data-part=")
    text = re.sub(r' data-part="[^"]*"| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r'\b(?:d|x|y|width|height|transform)="[^"]*"', _rounded, text)
    return variables(re.sub(r"\n\s*", "\n", text))


def _rounded(found: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d{2,}", lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), found[0])
