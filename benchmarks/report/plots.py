"""Drawings with axes, as SVG that takes its colours and its font from the page.

Sizes are in pixels of a panel 360 wide. Titles and legends are the page's.
"""

from __future__ import annotations

import io
import re
import warnings
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
ROW = 22
"""Height of a row of dots."""

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
    """A policy's points, with half-widths of intervals where it has them."""

    policy: str
    x: Sequence[float]
    y: Sequence[float]
    half: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Dot:
    """A policy's mean and half of its interval."""

    policy: str
    mean: float
    half: float = 0.0


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one heading, each a policy and its shares of :data:`~.colours.STEPS`, 0 to 1."""

    heading: str
    shares: Sequence[tuple[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy's published figure, where there is one, and ours."""

    policy: str
    published: float | None
    ours: float


def lines(given: Sequence[Line], x: str, y: str, palette: Palette) -> Markup:
    """Percent, from 0 to 100, against something."""

    def draw(axes: Axes) -> None:
        for line in _ours_last(given):
            _line(axes, line, palette)
        axes.set_ylim(0, 100)
        axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlim(0, max((max(line.x, default=1) for line in given), default=1))
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return _drawn(draw)


def waits(given: Sequence[Line], palette: Palette) -> Markup:
    """Which share of the jobs, in percent, had waited no longer than so many seconds."""

    def draw(axes: Axes) -> None:
        for line in _ours_last(given):
            _line(axes, line, palette)
        most = max(line.x[-1] for line in given)
        axes.set_xscale("symlog", linthresh=60, linscale=0.6)
        axes.set_xlim(0, max(60.0, most))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(most)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _TIMES[round(value)]))
        at_once = min(line.y[max(0, bisect(line.x, 1.0) - 1)] for line in given)
        axes.set_ylim(max(0, 10 * ((at_once - 2) // 10)), 100.5)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
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


def dots(
    given: Sequence[Dot],
    x: str,
    palette: Palette,
    *,
    within: tuple[float, float] = (0, float("inf")),
    at: float | None = None,
) -> Markup:
    """A row per policy: mean and interval. What an interval has beyond the axis ends in an arrow.

    ``within`` are the least and most that there can be, ``at`` is where to draw a line.
    """
    means = [dot.mean for dot in given] + ([] if at is None else [at])
    room = max(max(means) - min(means), 0.02 * abs(max(means)), 1e-9)
    least = max(within[0], min([dot.mean - dot.half for dot in given] + means), min(means) - room)
    most = min(within[1], max([dot.mean + dot.half for dot in given] + means), max(means) + room)
    pad = 0.06 * (most - least) or 0.05 * abs(most) or 1.0

    def draw(axes: Axes) -> None:
        axes.set_xlim(least - pad, most + pad)
        if at is not None:
            axes.axvline(at, color=palette.paint(OURS), linewidth=1)
        for row, dot in enumerate(given):
            colour, ours = palette.paint(dot.policy), dot.policy == OURS
            _interval(axes, row, dot, (least, most), colour)
            axes.plot(
                [dot.mean],
                [row],
                "o",
                color=colour,
                markersize=9 if ours else 7,
                markeredgecolor=SURFACE,
                clip_on=False,
                zorder=3,
            )
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(x)
        _policies(axes, [dot.policy for dot in given])

    return _drawn(draw, 52 + ROW * len(given))


def _interval(axes: Axes, row: int, dot: Dot, within: tuple[float, float], colour: str) -> None:
    least, most = within
    left, right = max(dot.mean - dot.half, least), min(dot.mean + dot.half, most)
    axes.plot([left, right], [row, row], color=colour, linewidth=2.2, alpha=0.55)
    for end, reached, arrow in (
        (left, dot.mean - dot.half, "<"),
        (right, dot.mean + dot.half, ">"),
    ):
        if abs(end - reached) > 1e-9:
            axes.plot([end], [row], arrow, color=colour, markersize=5, clip_on=False)


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


def against(given: Sequence[Line], x: str, y: str, palette: Palette) -> Markup:
    """Means with intervals against a few values; policies stand a little beside one another."""

    def draw(axes: Axes) -> None:
        every = sorted({value for line in given for value in line.x})
        gap = min(b - a for a, b in pairwise(every))
        top = max(max(line.y) for line in given)
        for place, line in enumerate(given):
            beside = gap * 0.05 * (place - (len(given) - 1) / 2)
            moved = Line(line.policy, [value + beside for value in line.x], line.y)
            _line(axes, moved, palette, dot="o")
            axes.errorbar(
                moved.x,
                line.y,
                yerr=line.half,
                fmt="none",
                ecolor=palette.paint(line.policy),
                alpha=0.45,
                elinewidth=1.5,
            )
        axes.set_ylim(0, 1.5 * top or 1)
        axes.xaxis.set_major_locator(FixedLocator(every))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return _drawn(draw)


def pairs(given: Sequence[Pair], x: str, palette: Palette, bound: float | None) -> Markup:
    """A row per policy: a ring where the published figure is and a dot at ours; a line at most."""

    def draw(axes: Axes) -> None:
        if bound is not None:
            axes.axvline(bound, color=INK, linewidth=1.4, linestyle=(0, (5, 2)))
        for row, pair in enumerate(given):
            colour = palette.paint(pair.policy)
            if pair.published is not None:
                axes.plot([pair.published, pair.ours], [row, row], color=colour, linewidth=1.2)
                axes.plot(
                    [pair.published],
                    [row],
                    "o",
                    color="none",
                    markeredgecolor=colour,
                    markersize=11,
                    markeredgewidth=1.6,
                )
            axes.plot([pair.ours], [row], "o", color=colour, markersize=5.5)
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel(x)
        _policies(axes, [pair.policy for pair in given])

    return _drawn(draw, 52 + ROW * len(given))


def _ours_last(given: Sequence[Line]) -> list[Line]:
    """What is drawn last lies on top."""
    return sorted(given, key=lambda line: line.policy == OURS)


def _line(axes: Axes, line: Line, palette: Palette, dot: str = "") -> None:
    ours, dashes = line.policy == OURS, palette.dashes(line.policy)
    axes.plot(
        line.x,
        line.y,
        color=palette.paint(line.policy),
        linewidth=2.4 if ours else 1.4,
        linestyle=(0, dashes) if dashes else "-",
        marker=dot,
        markersize=6 if ours else 4.5,
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
