"""The cluster as one SVG, with the map's drawing of each node and the map's style sheet."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from scheduler_extender.explain.gpustates import MEANINGS, NodeState, Use, tally, totals
from scheduler_extender.web.drawing import mark, tile
from scheduler_extender.web.html import static_file

COLUMNS, CELL, GAP = 12, 110, 8
MARGIN, TITLE, HEAD, LINE = 28, 74, 28, 20
WIDTH = 2 * MARGIN + COLUMNS * (CELL + GAP) - GAP
COMPARED = 4  # nodes of a comparison
LINKS = (
    "A line: NVLinks between two GPUs, thicker for more, coloured within one pod. A square in the "
    "middle: an NVSwitch. No line: PCIe only. A band: the GPUs of one pod. A partial ring: a GPU "
    "shared by pods."
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
        parts += _cards(members, y)
        y += -(-len(members) // COLUMNS) * (row + GAP) + 12
    y = _legend(parts, nodes, y) + LINE + 6
    parts.append(_text(MARGIN, y, LINKS, colour="quiet"))
    return _document(parts, title, WIDTH, y + MARGIN)


def comparison(ours: Sequence[NodeState], stock: Sequence[NodeState], title: str) -> str:
    """Return an SVG document with a few nodes, above as stock used them and below as ours did.

    The two sequences have the same nodes. Of the kind of node with the most mismatches under stock
    the first nodes with one are shown.
    """
    wrong = [i for i, node in enumerate(stock) if node.uses[Use.MISMATCHED]]
    kinds = Counter(stock[i].kind for i in wrong)
    shown = [i for i in wrong if stock[i].kind == max(kinds, key=kinds.__getitem__)][:COMPARED]
    y, parts = MARGIN, list[Markup]()
    for name, nodes in (("kube-scheduler alone", stock), ("with gpu-topology", ours)):
        parts.append(_text(MARGIN, y + 12, name, size=14))
        parts += _cards([nodes[i] for i in shown], y + HEAD)
        y += HEAD + CELL + LINE + GAP + 12
    y = _legend(parts, [nodes[i] for nodes in (stock, ours) for i in shown], y - 12) + 6
    width = 2 * MARGIN + COMPARED * (CELL + GAP) - GAP
    return _document(parts, title, width, y + GAP)


def _cards(nodes: Sequence[NodeState], y: int) -> list[Markup]:
    row = CELL + LINE
    return [
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
        for i, node in enumerate(nodes)
    ]


def _legend(parts: list[Markup], nodes: Sequence[NodeState], y: int) -> int:
    """Add the meaning of each state that a node has. Returns the last line's y."""
    for use, words in MEANINGS.items():
        if any(node.uses[use] for node in nodes):
            y += LINE
            parts += mark((MARGIN + 8, y - 4), use.value, 7)
            parts.append(_text(MARGIN + 24, y, words, colour="quiet"))
    return y


def _document(parts: Sequence[Markup], title: str, width: int, height: int) -> str:
    style = Markup(static_file("map.css").decode())  # noqa: S704 - our own file
    return _DOCUMENT.format(
        width=width, height=height, title=title, style=style, parts=Markup("\n").join(parts)
    )


def _text(
    x: int, y: int, text: str, *, size: int = 12, anchor: str = "start", colour: str = "ink"
) -> Markup:
    return _TEXT.format(x=x, y=y, text=text, size=size, anchor=anchor, colour=colour)
