"""Draw nodes as inline SVG: the GPUs in a circle, the links between them, and each GPU's state.

The drawing has no colours. Its classes name what is drawn, and the style sheet has a colour for
each class in light and in dark. Colour alone tells nothing: free GPUs are hollow, stranded ones
dashed, sick ones crossed out. GPUs that a pod will have are hollow with a thick edge, mismatched
ones have a thick edge, and GPUs of pods that accept any GPU are square. A band lies under the GPUs
of one pod.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from scheduler_extender.explain.gpustates import MEANINGS, GpuState, NodeState, Use
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind, Via
from topology.core.requests import at_most

Spot = tuple[float, float]
MIXED = "in-use-mixed"  # the class of a GPU in use whose state differs from node to node

_SVG = Markup(
    '<svg class="{css}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
    "{parts}</svg>"
)
_LINE = Markup('<path class="{css}" d="{path}" stroke-width="{thick:g}">{tip}</path>')
_DOT = Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" class="{css}"/>')
_SQUARE = Markup(
    '<rect x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" rx="{rx:.1f}" '
    'class="{css}"/>'
)
_TEXT = Markup('<text x="{x:.1f}" y="{y:.1f}" class="{css}">{text}</text>')
_TIP = Markup("<title>{}</title>")
_HUB = Markup(
    '<rect x="{x:.1f}" y="{y:.1f}" width="{size}" height="{size}" rx="3" class="hub">'
    "<title>NVSwitch</title></rect>"
)
_RING = Markup(
    '<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" class="share {use}" '
    'stroke-dasharray="{length:.1f} 99"/>'
)
_CROSS = Markup('<path class="cross" d="M{a:.1f} {b:.1f}l{d:g} {d:g}m0 -{d:g}l-{d:g} {d:g}"/>')


@dataclass(frozen=True, slots=True)
class _Scale:
    """The measures of a drawing, in its own units."""

    width: float
    height: float
    ring: float
    dot: float

    @property
    def centre(self) -> Spot:
        return self.width / 2, self.height / 2


SMALL = _Scale(100, 100, 37, 10)
SMALL_FEW = _Scale(100, 76, 25, 10)  # for at most 4 GPUs
SMALL_MANY = _Scale(100, 100, 41, 5.5)  # for more than 12 GPUs
LARGE = _Scale(560, 460, 165, 24)
SHEET = 100.0  # width of a drawing that only counts GPUs


def tile(node: NodeState, found: Collection[int] = ()) -> Markup:
    """Return a small drawing of a node, labelled with the same content in words.

    The GPUs at the positions ``found`` have a ring around them.
    """
    n = len(node.gpus)
    scale = SMALL_FEW if n <= 4 else SMALL if n <= 12 else SMALL_MANY
    topology = node.topology
    parts = [Markup("")]
    if topology is not None:
        spots = _spots(n, scale, 1.0)
        parts += _wires(topology, node, spots, scale, tips=False)
        parts += _bands(node, spots, scale)
        for p, (spot, gpu, state) in enumerate(zip(spots, topology.gpus, node.gpus, strict=True)):
            parts += _gpu(spot, state, scale.dot)
            if p in found:
                parts.append(_DOT.format(x=spot[0], y=spot[1], r=scale.dot + 3, css="found"))
            if scale is not SMALL_MANY:
                text = str(gpu.index)
                parts.append(
                    _TEXT.format(x=spot[0], y=spot[1] + 3.6, css=_ground(state).value, text=text)
                )
    else:
        x, y = scale.centre
        parts.append(_TEXT.format(x=x, y=y + 9, css="unknown", text="?"))
    return _svg("tile", scale, in_words(node), parts)


def counted(counts: Mapping[str, int], label: str) -> Markup:
    """Return a small drawing that shows only how many GPUs have each state.

    ``counts`` has the class of each state, in the order of the drawing. ``label`` describes it in
    words.
    """
    uses = [css for css, gpus in counts.items() for _ in range(gpus)]
    columns = 4 if len(uses) <= 12 else 8
    step = SHEET / columns
    rows = max(1, -(-len(uses) // columns))
    dot = min(9, step / 2 - 1.2)
    parts = [Markup("")]
    for number, css in enumerate(uses):
        spot = step * (number % columns + 0.5), step * (number // columns + 0.5)
        parts += mark(spot, css, dot)
    return _svg("tile", _Scale(SHEET, rows * step, 0, dot), label, parts)


def whole(node: NodeState) -> Markup:
    """Return a large drawing of a node with its NICs. Every part has a title."""
    topology, scale = node.topology, LARGE
    if topology is None:
        return Markup("")
    spots = _spots(len(node.gpus), scale, 1.18)
    dot = scale.dot if len(node.gpus) <= 16 else 11
    parts = [*_nics(topology, spots, scale)]
    parts += _wires(topology, node, spots, scale, tips=True)
    parts += _bands(node, spots, scale)
    for spot, gpu, state in zip(spots, topology.gpus, node.gpus, strict=True):
        numa = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        tip = _TIP.format(f"GPU {gpu.index}{numa}: {gpu_in_words(state)}")
        mark = _TEXT.format(x=spot[0], y=spot[1] + 6, css=_ground(state).value, text=str(gpu.index))
        inside = Markup("").join([tip, *_gpu(spot, state, dot), mark])
        parts.append(Markup('<g class="gpu">{}</g>').format(inside))
    cx, cy = scale.centre
    for gpu, (x, y) in zip(topology.gpus, spots, strict=True):
        if gpu.numa_node is not None:  # between the GPU and the middle
            dx, dy = cx + (x - cx) * 0.79, cy + (y - cy) * 0.79
            parts.append(_TEXT.format(x=dx, y=dy + 4, css="numa", text=f"N{gpu.numa_node}"))
    return _svg("graph", scale, in_words(node), parts)


def in_words(node: NodeState) -> str:
    """Return the content of a node's drawing as a sentence, for readers who cannot see it."""
    if node.topology is None:
        return f"{node.name}: {', '.join(node.problems)}"
    uses = [f"{n} {use.word}" for use in Use if (n := node.uses[use])]
    more = [flag.value for flag in sorted(node.flags, key=lambda flag: flag.name)]
    return f"{node.name}: {len(node.gpus)} GPUs, {', '.join([*uses, *more])}"


def gpu_in_words(state: GpuState) -> str:
    """Return the state of a GPU in words, with its holders."""
    words = MEANINGS[state.use]
    if state.devices > 1:
        words += f", {state.devices - state.in_use} of {state.devices} {state.unit}s free"
    if state.memory_used is not None:
        words += f", {at_most(state.memory_used)} in use"
    if state.holders:
        words += ": " + ", ".join(holder.name for holder in state.holders)
    return f"{words} ({state.problem})" if state.problem else words


def _svg(css: str, scale: _Scale, label: str, parts: list[Markup]) -> Markup:
    return _SVG.format(
        css=css,
        width=f"{scale.width:g}",
        height=f"{scale.height:g}",
        label=label,
        parts=Markup("").join(parts),
    )


def _spots(n: int, scale: _Scale, wide: float) -> list[Spot]:
    """Return the places of the GPUs on an ellipse, the first half on its right side."""
    cx, cy = scale.centre
    angles = [(2 * p + 1) * math.pi / n - math.pi / 2 for p in range(n)]
    return [(cx + wide * scale.ring * math.cos(a), cy + scale.ring * math.sin(a)) for a in angles]


def _ground(state: GpuState) -> Use:
    """Return the state on which a GPU's number stands: a partly used GPU is hollow."""
    return Use.FREE if state.partly and state.use is not Use.SICK else state.use


def _gpu(spot: Spot, state: GpuState, dot: float) -> Iterator[Markup]:
    x, y = spot
    use = state.use
    if state.partly and use is not Use.SICK:
        yield _DOT.format(x=x, y=y, r=dot, css="dot free")
        length = 2 * math.pi * (dot - 2) * state.in_use / state.devices
        yield _RING.format(x=x, y=y, r=dot - 2, use=use.value, length=length)
        return
    yield from mark(spot, use.value, dot)


def mark(spot: Spot, css: str, dot: float) -> Iterator[Markup]:
    """Yield the sign of a state: a disc, or a square where the pod accepts any GPU.

    The style sheet does the rest.
    """
    x, y = spot
    if css == Use.IN_USE.value:
        half = dot * 0.88
        yield _SQUARE.format(x=x - half, y=y - half, side=2 * half, rx=dot / 5, css=f"dot {css}")
        return
    yield _DOT.format(x=x, y=y, r=dot, css=f"dot {css}")
    if css == Use.SICK.value:
        d = round(dot, 1)
        yield _CROSS.format(a=x - d / 2, b=y - d / 2, d=d)
    if css == MIXED:
        yield _DOT.format(x=x, y=y, r=round(dot / 2.2, 1), css="core")


def _bands(node: NodeState, spots: list[Spot], scale: _Scale) -> Iterator[Markup]:
    """Yield a band under the GPUs of each pod that has several.

    It goes along the circle from one GPU to the next.
    """
    n, thick = len(node.gpus), round(scale.dot * 0.95, 1)
    for at in node.together:
        gaps = [(at[i] - at[i - 1]) % n for i in range(len(at))]
        first = gaps.index(max(gaps))  # the circle stays open at the widest gap
        way = (*at[first:], *at[:first])
        path = "L".join(f"{spots[p][0]:.0f} {spots[p][1]:.0f}" for p in way)
        css = f"band {node.gpus[at[0]].use.value}"
        yield _LINE.format(css=css, path=f"M{path}", thick=thick, tip="")


def _wires(
    topology: NodeTopology, node: NodeState, spots: list[Spot], scale: _Scale, *, tips: bool
) -> Iterator[Markup]:
    """Yield one path for each kind of direct NVLinks, and a switch with its spokes.

    A path is as thick as the number of its NVLinks.
    """
    at = topology.position_of_index
    pod_on = [{h.uid for h in state.holders} if not state.partly else set() for state in node.gpus]
    if any(link.nvlinks and link.via is Via.SWITCH for link in topology.links):
        cx, cy = scale.centre
        spokes = "".join(f"M{cx:.0f} {cy:.0f}L{x:.0f} {y:.0f}" for x, y in spots)
        yield _LINE.format(css="wire", path=spokes, thick=2 * min(scale.width / 104, 2), tip="")
        size = 14 if scale.width <= SMALL.width else 40
        yield _HUB.format(x=cx - size / 2, y=cy - size / 2, size=size)
    paths: dict[tuple[str, int, str], list[str]] = {}
    for link in topology.links:
        if not link.nvlinks or link.via is not Via.DIRECT:
            continue
        a, b = at[link.a], at[link.b]
        shared = pod_on[a] & pod_on[b]
        css = f"wire {node.gpus[a].use.value}" if shared else "wire"
        (x1, y1), (x2, y2) = spots[a], spots[b]
        tip = f"{link.a}–{link.b}: {link.nvlinks} NVLinks" if tips else ""
        path = f"M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"
        paths.setdefault((css, link.nvlinks, tip), []).append(path)
    grow = scale.width / SMALL.width
    for (css, nvlinks, tip), found in paths.items():
        thick = round(min(0.7 + 0.6 * nvlinks, 4.5) * min(grow, 1.7), 1)
        title = _TIP.format(tip) if tip else Markup("")
        yield _LINE.format(css=css, path="".join(found), thick=thick, tip=title)


def _nics(topology: NodeTopology, spots: list[Spot], scale: _Scale) -> Iterator[Markup]:
    """Yield each NIC outside the GPUs that are nearest to it, joined to them."""
    cx, cy = scale.centre
    at = topology.position_of_index
    taken: list[float] = []
    for nic in topology.nics[:16]:
        best = max((kind for _, kind in nic.distances), default=LinkKind.UNKNOWN)
        near = [spots[at[index]] for index, kind in nic.distances if kind is best]
        if best <= LinkKind.SYS or not near:
            continue
        mx = sum(x for x, _ in near) / len(near) - cx
        my = sum(y for _, y in near) / len(near) - cy
        angle = math.atan2(my, mx)
        while any(abs(math.remainder(angle - other, math.tau)) < 0.2 for other in taken):
            angle += 0.21
        taken.append(angle)
        x, y = cx + 252 * math.cos(angle), cy + 208 * math.sin(angle)
        lines = "".join(f"M{x:.0f} {y:.0f}L{gx:.0f} {gy:.0f}" for gx, gy in near)
        name = nic.name if len(nic.name) <= 7 else "…" + nic.name[-6:]
        tip = _TIP.format(f"{nic.name}: {best.label} to its nearest GPUs")
        yield _LINE.format(css="near", path=lines, thick=1.5, tip=tip)
        yield Markup(
            '<g><rect x="{x:.1f}" y="{y:.1f}" width="44" height="18" rx="4" class="nic"/>'
            "{mark}{tip}</g>"
        ).format(
            x=x - 22,
            y=y - 9,
            mark=_TEXT.format(x=x, y=y + 4, css="nicname", text=name),
            tip=tip,
        )
