"""Which GPUs of some nodes were held, moment after moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup

from benchmarks.figures.simulated import MapNode, Maps
from benchmarks.report.colours import Palette, variables
from benchmarks.report.wording import duration

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


def strip(maps: Maps, policy: str, palette: Palette) -> Markup:
    """A map: a row per node, in it a line per GPU, a column per moment; held GPUs are coloured."""
    nodes, moments = maps.nodes, maps.moments
    bottom = len(nodes) * (NODE + GAP)
    labels = (
        _LABEL.format(x=LABELS - 5, y=row * (NODE + GAP) + 11.5, text=short(name), name=name)
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


def short(name: str) -> str:
    """The end of a long name, where nodes differ."""
    return name if len(name) <= LETTERS else "…" + name[1 - LETTERS :]
