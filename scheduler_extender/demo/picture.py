"""The cluster as one SVG: every node with its GPUs, what joins them, and who holds what.

A colour says how a pod that holds a GPU stands: it has what it needs, it needs nothing but a GPU,
or it needs other ones. Free GPUs are white. On a node with NVLinks a free GPU without an NVLink to
another free one is *stranded*: nobody can have a pair with it now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from itertools import chain, groupby
from xml.sax.saxutils import escape

from scheduler_extender.state.answers.capacity import stranded
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.links import Via

COLUMNS = 12
CELL, RING, DOT = 118, 36, 9.5
HEAD, MARGIN, TITLE = 34, 28, 74
FREE, STRANDED = "#ffffff", "#fde8b3"
# By pod, the position of the GPU of each device that it has on a node.
Held = Mapping[str, tuple[int, ...]]
INK, QUIET, WIRE = "#1f2933", "#616e7c", "#b8c2cc"


class Standing(Enum):
    """How a pod stands; the value is its colour."""

    # It has the GPUs that it needs.
    KEPT = "#2166ac"
    # Any GPU will do.
    PLAIN = "#8d99a6"
    # It needs other GPUs.
    WRONG = "#c62828"


def standing(*, plain: bool, required: bool, met: bool) -> Standing:
    """How a pod stands that asks for nothing but GPUs (``plain``), or whose constraints are
    ``required`` or only preferred, and got what it asks (``met``). The map judges alike."""
    if plain:
        return Standing.PLAIN
    if met:
        return Standing.KEPT
    return Standing.WRONG if required else Standing.PLAIN


def picture(
    nodes: list[NodeTopology],
    holders: Mapping[NodeName, Held],
    standings: Mapping[str, Standing],
    title: str,
) -> str:
    """An SVG document. Nodes of one kind stand together, in the order given; ``standings`` are by
    pod."""
    colours = {pod: each.value for pod, each in standings.items()}
    parts: list[str] = []
    y = float(TITLE)
    for kind, group in groupby(nodes, key=_kind):
        members = list(group)
        parts.append(_text((MARGIN, y + 16), kind, size=14, weight=600))
        used = sum(len(set(chain(*holders.get(n.name, {}).values()))) for n in members)
        total = sum(len(n.gpus) for n in members)
        use = f"{used} of {total} GPUs in use"
        parts.append(_text((_width() - MARGIN, y + 16), use, end=True, fill=QUIET))
        y += HEAD
        for i, node in enumerate(members):
            x = MARGIN + i % COLUMNS * CELL
            row = y + i // COLUMNS * (CELL + 6)
            parts.append(_node(node, holders.get(node.name, {}), colours, x, row))
        y += -(-len(members) // COLUMNS) * (CELL + 6) + 12
    height = y + 64
    legend = _legend(MARGIN, height - 22)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_width()}" height="{height:.0f}" '
        f'viewBox="0 0 {_width()} {height:.0f}" '
        'font-family="Inter, Helvetica, Arial, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#f7f9fb"/>\n'
        + _text((MARGIN, 42), title, size=22, weight=700)
        + "\n".join(parts)
        + legend
        + "\n</svg>\n"
    )


def _kind(node: NodeTopology) -> str:
    replicas = node.resources[0].replicas if node.resources else 1
    return f"{node.summary()}, {replicas} shares of each" if replicas > 1 else node.summary()


def _width() -> int:
    return 2 * MARGIN + COLUMNS * CELL


def _node(
    node: NodeTopology,
    held: Held,
    colours: Mapping[str, str],
    x: float,
    y: float,
) -> str:
    n = len(node.gpus)
    cx, cy = x + CELL / 2 - 4, y + CELL / 2 - 7
    turn = math.pi / n
    spots = [
        (
            cx + RING * math.cos(2 * math.pi * p / n - math.pi / 2 - turn),
            cy + RING * math.sin(2 * math.pi * p / n - math.pi / 2 - turn),
        )
        for p in range(n)
    ]
    replicas = node.resources[0].replicas if node.resources else 1
    on = [{pod: n for pod, at in held.items() if (n := at.count(p))} for p in range(n)]
    owner = {p: next(iter(pods)) for p, pods in enumerate(on) if len(pods) == 1}
    lonely = stranded(node.shape, sum(1 << p for p, pods in enumerate(on) if not pods))
    parts = [
        f'<rect x="{x}" y="{y}" width="{CELL - 8}" height="{CELL - 2}" rx="8" '
        'fill="#ffffff" stroke="#e4e7eb"/>'
    ]
    parts += _wires(node, spots, owner, colours, (cx, cy))
    for p, (sx, sy) in enumerate(spots):
        pods, whole = on[p], replicas == 1
        bare = STRANDED if lonely >> p & 1 else FREE
        fill = colours[owner[p]] if pods and whole else bare
        ink = ("#ffffff" if whole else INK) if pods else QUIET
        tip = f"GPU {node.gpus[p].index}: {_who(pods, replicas)}"
        if lonely >> p & 1:
            tip += ", stranded: no NVLink to another free GPU"
        parts.append(
            f"<g><title>{escape(tip)}</title>"
            f'<circle cx="{sx:.1f}" cy="{sy:.1f}" r="{DOT}" fill="{fill}" '
            f'stroke="{INK if pods else WIRE}" stroke-width="{0.8 if pods else 1.2}"/>'
            f"{'' if whole else _slices((sx, sy), pods, replicas, colours)}</g>"
        )
        parts.append(
            f'<text x="{sx:.1f}" y="{sy + 3.2:.1f}" font-size="9" text-anchor="middle" '
            f'fill="{ink}">{node.gpus[p].index}</text>'
        )
    parts.append(_text((x + 8, y + CELL - 8), node.name, size=9.5, fill=QUIET))
    return "\n".join(parts)


def _who(pods: Mapping[str, int], replicas: int) -> str:
    """Who is on a GPU, and how many of its shares are free."""
    names = ", ".join(pods) or "free"
    if replicas == 1:
        return names
    return f"{names} ({replicas - sum(pods.values())} of {replicas} shares free)"


def _slices(
    centre: tuple[float, float], pods: Mapping[str, int], replicas: int, colours: Mapping[str, str]
) -> str:
    """The shares of a GPU that are held, as slices of a ring around its number."""
    rings, share, begin = [], 2 * math.pi * DOT / replicas, 0.0
    cx, cy = centre
    for pod, shares in pods.items():
        length = shares * share
        rings.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{DOT}" fill="none" stroke="{colours[pod]}" '
            f'stroke-width="4" stroke-dasharray="{length - 1:.2f} {2 * math.pi * DOT:.2f}" '
            f'stroke-dashoffset="{-begin:.2f}"/>'
        )
        begin += length
    return "".join(rings)


def _wires(
    node: NodeTopology,
    spots: list[tuple[float, float]],
    owner: Mapping[int, str],
    colours: Mapping[str, str],
    centre: tuple[float, float],
) -> list[str]:
    """Direct NVLinks as lines as thick as their count; a switch as a hub with spokes."""
    at = node.position_of_index
    parts: list[str] = []
    if any(link.nvlinks and link.via is Via.SWITCH for link in node.links):
        cx, cy = centre
        for p, (sx, sy) in enumerate(spots):
            colour = colours.get(owner.get(p, ""), WIRE)
            parts.append(_line(cx, cy, sx, sy, colour, 2.0))
        parts.append(
            f'<rect x="{cx - 8:.1f}" y="{cy - 8:.1f}" width="16" height="16" rx="3" '
            f'fill="#52606d"><title>NVSwitch</title></rect>'
        )
    for link in node.links:
        if link.nvlinks and link.via is Via.DIRECT:
            a, b = at[link.a], at[link.b]
            same = a in owner and owner.get(a) == owner.get(b)
            colour = colours[owner[a]] if same else WIRE
            thick = min(0.7 + 0.6 * link.nvlinks, 4.5) + (0.8 if same else 0)
            parts.append(_line(*spots[a], *spots[b], colour, thick))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, thick: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{thick:.1f}"/>'
    )


def _text(
    at: tuple[float, float],
    text: str,
    *,
    size: float = 12,
    weight: int = 400,
    fill: str = INK,
    end: bool = False,
) -> str:
    x, y = at
    anchor = ' text-anchor="end"' if end else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}"{anchor}>{escape(text)}</text>'
    )


def _legend(x: float, y: float) -> str:
    dots = (
        (Standing.KEPT.value, "held by a pod that has what it needs"),
        (Standing.PLAIN.value, "held by a pod to which any GPU will do"),
        (Standing.WRONG.value, "held by a pod that needs other GPUs"),
        (FREE, "free"),
        (STRANDED, "free, no NVLink to another free one"),
    )
    parts, at = [], x
    for colour, words in dots:
        edge = WIRE if colour in (FREE, STRANDED) else INK
        parts.append(f'<circle cx="{at + 8}" cy="{y - 28}" r="7" fill="{colour}" stroke="{edge}"/>')
        parts.append(_text((at + 22, y - 24), words, fill=QUIET))
        at += 50 + 6.3 * len(words)
    parts += [
        _line(x, y - 4, x + 30, y - 4, WIRE, 3),
        _text((x + 38, y), "NVLink, as thick as its count; coloured within one pod", fill=QUIET),
        f'<rect x="{x + 420}" y="{y - 12}" width="15" height="15" rx="3" fill="#52606d"/>',
        _text((x + 443, y), "NVSwitch", fill=QUIET),
        _text((x + 530, y), "no line: PCIe only", fill=QUIET),
        _text((x + 670, y), "a ring in slices: a GPU that pods share", fill=QUIET),
    ]
    return "\n".join(parts)
