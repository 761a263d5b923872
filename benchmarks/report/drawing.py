"""The coordinates in the drawings of a page, in pixels of a drawing that is 360 wide."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log1p, log10

LEFT, RIGHT = 112.0, 348.0  # begin and end of axes
BEGIN, TOP, BOTTOM = 46.0, 8.0, 168.0  # of curves
ROW = 24.0  # height of a row of dots

# Ticks of waiting times in seconds.
TIMES = {
    0: "0",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    6 * 3600: "6 h",
    86400: "1 d",
    7 * 86400: "1 w",
    365 * 86400: "1 y",
}


@dataclass(frozen=True, slots=True)
class Tick:
    """A line across a drawing, and the text at its end."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A policy's mean, and the ends of its interval."""

    name: str
    y: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Dots:
    """The rows of all policies, one below the other, and their common axis."""

    rows: Sequence[Dot]
    ticks: Sequence[Tick]
    bottom: float


def dots(means: Sequence[tuple[str, float, float]], ceiling: float) -> Dots:
    """Draw policies with means and half intervals. No axis goes below 0 or above the ceiling.

    >>> drawn = dots([("a", 40, 0), ("b", 80, 10)], 100)
    >>> [(tick.text, round(tick.at)) for tick in drawn.ticks]
    [('40', 112), ('60', 191), ('80', 269), ('100', 348)]
    """
    least = max(0.0, min(mean - half for _, mean, half in means))
    most = min(ceiling, max(mean + half for _, mean, half in means))
    step = _step(max(most - least, 0.01) / 4)
    first, last = floor(least / step + 1e-9), ceil(most / step - 1e-9)
    last = max(last, first + 1)
    if last * step > ceiling:  # all is at the ceiling
        first, last = first - 1, last - 1

    def at(value: float) -> float:
        share = (value / step - first) / (last - first)
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share))

    rows = [
        Dot(name, ROW * (number + 0.5), at(mean), at(mean - half), at(mean + half))
        for number, (name, mean, half) in enumerate(means)
    ]
    ticks = [Tick(at(n * step), f"{n * step:.6g}") for n in range(first, last + 1)]
    return Dots(rows, ticks, ROW * len(rows))


def _step(least: float) -> float:
    """Return the smallest step of 1, 2 or 5 times a power of ten that is at least ``least``.

    >>> _step(12.5), _step(0.9), _step(5)
    (20.0, 1.0, 5.0)
    """
    power = 10.0 ** floor(log10(least))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= least * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Curves:
    """A curve for each policy, and both axes."""

    lines: Sequence[tuple[str, str]]  # names, and the points in SVG's format
    across: Sequence[Tick]
    up: Sequence[Tick]


def waits(given: Sequence[tuple[str, Sequence[float]]]) -> Curves:
    """Draw for each policy the share of jobs that waited no longer than each time.

    Each policy has the quantiles of its waiting times, in seconds, ascending, at equal distances
    from 0 to 1.
    """
    longest = max(60.0, *(times[-1] for _, times in given))

    def across(seconds: float) -> float:
        return BEGIN + (RIGHT - BEGIN) * log1p(seconds / 60) / log1p(longest / 60)

    def up(share: float) -> float:
        return BOTTOM + (TOP - BOTTOM) * share

    lines = [
        (
            name,
            " ".join(
                f"{across(max(0.0, time)):.1f},{up(n / max(1, len(times) - 1)):.1f}"
                for n, time in enumerate(times)
            )
            + f" {RIGHT:.1f},{TOP:.1f}",
        )
        for name, times in given
    ]
    return Curves(
        lines,
        [Tick(across(time), text) for time, text in TIMES.items() if time <= longest],
        [Tick(up(share / 4), f"{25 * share}") for share in range(5)],
    )
