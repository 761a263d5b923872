"""The cluster as one SVG, with the map's drawing of each node and the map's style sheet."""

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from scheduler_extender.explain.gpustates import MEANINGS, NodeState, tally, totals
from scheduler_extender.web.drawing import mark, tile
from scheduler_extender.web.html import static_file

COLUMNS, CELL, GAP = 12, 110, 8
MARGIN, TITLE, HEAD, LINE = 28, 74, 28, 20
WIDTH = 2 * MARGIN + COLUMNS * (CELL + GAP) - GAP
LINKS = (
    "Lines are NVLinks between two GPUs, as thick as their number, coloured within one pod. A "
    "square in the middle is an NVSwitch. No line: PCIe only. A band: the GPUs of one pod. A ring "
    "in part: a GPU that pods share."
)

_DOCUMENT = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    'viewBox="0 0 {width} {height}" role="img" '
    'font-family="system-ui, Helvetica, Arial, sans-serif">\n'
    "<title>{title}</title>\n"
    '<style>{style}</style>\n<rect width="100%" height="100%" style="fill:var(--page)"/>\n'
    "{parts}\n</svg>\n"
)
_NODE = Markup(
    '<svg x="{x}" y="{y}" width="{size}" height="{height}">'
    '<rect x="1" y="1" width="{inside}" height="{high}" rx="8" '
    'style="fill:var(--card);stroke:var(--edge)"/>'
    '<svg x="3" y="3" width="104" height="104">{tile}</svg>'
    '<text x="8" y="{below}" style="text-anchor:start;fill:var(--quiet)">{name}</text></svg>'
)
_TEXT = Markup(
    '<text x="{x}" y="{y}" style="font-size:{size}px;text-anchor:{anchor};fill:var(--{colour})">'
    "{text}</text>"
)


def picture(nodes: Sequence[NodeState], title: str) -> str:
    """Return an SVG document. Adjacent nodes of one kind share a heading, in the given order."""
    parts = [_text(MARGIN, 42, title, size=22)]
    y, row = TITLE, CELL + LINE
    for kind, group in groupby(nodes, key=lambda node: node.kind):
        members = list(group)
        parts.append(_text(MARGIN, y + 16, kind, size=14))
        uses = totals(members).uses
        used = f"{tally(uses)['in use']} of {uses.total()} GPUs in use"
        parts.append(_text(WIDTH - MARGIN, y + 16, used, anchor="end", colour="quiet"))
        y += HEAD
        for i, node in enumerate(members):
            parts.append(
                _NODE.format(
                    x=MARGIN + i % COLUMNS * (CELL + GAP),
                    y=y + i // COLUMNS * (row + GAP),
                    size=CELL,
                    height=row,
                    inside=CELL - 2,
                    high=row - 2,
                    below=row - 9,
                    tile=tile(node),
                    name=node.name,
                )
            )
        y += -(-len(members) // COLUMNS) * (row + GAP) + 12
    for use, words in MEANINGS.items():
        if any(node.uses[use] for node in nodes):
            y += LINE
            parts += mark((MARGIN + 8, y - 4), use.value, 7)
            parts.append(_text(MARGIN + 24, y, words, colour="quiet"))
    y += LINE + 6
    parts.append(_text(MARGIN, y, LINKS, colour="quiet"))
    style = Markup(static_file("map.css").decode())  # noqa: S704 - our own file
    return _DOCUMENT.format(
        width=WIDTH,
        height=y + MARGIN,
        title=title,
        style=style,
        parts=Markup("\n").join(parts),
    )


def _text(
    x: int, y: int, text: str, *, size: int = 12, anchor: str = "start", colour: str = "ink"
) -> Markup:
    return _TEXT.format(x=x, y=y, text=text, size=size, anchor=anchor, colour=colour)
