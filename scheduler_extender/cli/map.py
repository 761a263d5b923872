"""Draws every node's GPUs as cells on the terminal, grouped by their links.

A cell is the GPU's index and a letter for its state. A capital means that no other pod can have the
GPU; a small letter means that another pod can. Square brackets enclose GPUs that NVLinks connect,
directly or through other GPUs. On nodes without NVLinks, round brackets enclose GPUs of one PCIe
switch. A bar marks the beginning of another NUMA node.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.cli.nodes import total_text, warnings
from scheduler_extender.explain.gpustates import MEANINGS, NodeState, Use
from scheduler_extender.terminal import paragraph
from scheduler_extender.web.overview import Filters, Tile, overview, some
from topology.core.devices import Mask, positions
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.shape import Shape


class Cell(NamedTuple):
    """The drawing of a GPU in one state."""

    letter: str
    style: str


# The drawing of each state, in the order of the legend.
CELLS = {
    Use.FREE: Cell("f", "bold green"),
    Use.STRANDED: Cell("s", "#000000 on #f5c542"),
    Use.ASSUMED: Cell("W", "#ffffff on #7b3fa0"),  # W: the pod is on its way
    Use.RESERVED: Cell("R", "#ffffff on #00695c"),
    Use.AS_ASKED: Cell("A", "#ffffff on #2166ac"),
    Use.IN_USE: Cell("U", "#ffffff on #5b6770"),
    Use.MISMATCHED: Cell("M", "bold #ffffff on #c62828"),
    Use.TERMINATING: Cell("T", "#000000 on #a8d5e2"),
    Use.SICK: Cell("X", "bold reverse"),
}
PARTLY = "a small letter: some shares of the GPU are free"
# The marks around cells and between them, with their meanings.
MARKS = {
    "[ ]": "connected by NVLinks, directly or through other GPUs",
    "( )": "on one PCIe switch",
    "|": "another NUMA node begins",
}


def groups(topology: NodeTopology) -> Iterator[tuple[list[list[int]], str, str]]:
    """Yield the groups of connected GPUs, with their opening and closing brackets.

    The groups are ordered by their lowest position. A group has a list of positions for each of its
    NUMA nodes.
    """
    shape = topology.shape
    nvlinked = frozenset(link for link in shape.distinct_links if link.nvlinks)
    near = frozenset(link for link in shape.distinct_links if link.kind >= LinkKind.PXB)
    joins, opens, closes = (nvlinked, "[", "]") if nvlinked else (near, "(", ")")
    for mask in _joined(shape, shape.rows(joins)):
        by_numa: dict[int, list[int]] = {}
        for p in positions(mask):
            by_numa.setdefault(_numa(shape, p), []).append(p)
        parts = list(by_numa.values())  # the NUMA node with the lowest position comes first
        yield (parts, "", "") if mask.bit_count() == 1 else (parts, opens, closes)


def _numa(shape: Shape, position: int) -> int:
    numa = shape.numa[position]
    return -1 if numa is None else numa


def _joined(shape: Shape, rows: Sequence[Mask]) -> Iterator[Mask]:
    """Yield the sets of connected positions as masks, ordered by their lowest position."""
    left = shape.all_gpus
    while left:
        mask, grown = 0, left & -left
        while grown != mask:
            mask = grown
            for p in positions(mask):
                grown |= rows[p]
        left &= ~mask
        yield mask


def node_cells(state: NodeState) -> list[Text]:
    """Return the node's GPUs as texts. A line may break between any two of them."""
    topology = state.topology
    if topology is None:
        return []
    width = len(str(topology.gpus[-1].index)) if topology.gpus else 1
    cells: list[Text] = []
    before: int | None = None
    for parts, opens, closes in groups(topology):
        first_numa = _numa(topology.shape, parts[0][0])
        if before is not None and before != first_numa:
            cells.append(Text("|", "dim"))
        for number, part in enumerate(parts):
            if number:
                cells.append(Text("|", "dim"))
            for p in part:
                gpu = state.gpus[p]
                letter, style = CELLS[gpu.use]
                if gpu.partly and gpu.use is not Use.SICK:
                    letter = letter.lower()
                cells.append(Text(f"{topology.gpus[p].index:>{width}}{letter}", style))
        first = -sum(map(len, parts)) - len(parts) + 1
        cells[first] = Text.assemble((opens, "dim"), cells[first])
        cells[-1] = Text.assemble(cells[-1], (closes, "dim"))
        before = _numa(topology.shape, parts[-1][-1])
    return cells


def legend(states: Iterable[NodeState]) -> Table:
    """Return the meanings of the letters, brackets and bars that occur."""
    shown = list(states)
    there = {gpu.use for state in shown for gpu in state.gpus}
    drawn = "".join(text.plain for state in shown for text in node_cells(state))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for use, (letter, style) in CELLS.items():
        if use in there:
            grid.add_row(Text(f" {letter} ", style), f"{use.word}: {MEANINGS[use]}")
    if any(gpu.partly for state in shown for gpu in state.gpus):
        grid.add_row(" a ", PARTLY)
    for mark, meaning in MARKS.items():
        if mark[0] in drawn:
            grid.add_row(Text(f"{mark:^3}", "dim"), meaning)
    return grid


def folded(cells: Sequence[Text], width: int) -> list[Text]:
    """Return the cells on lines of at most ``width`` columns; a wider cell gets its own line."""
    lines: list[Text] = []
    for cell in cells:
        if lines and cell_len(lines[-1].plain) + 1 + cell_len(cell.plain) <= width:
            lines[-1] = Text.assemble(lines[-1], " ", cell)
        else:
            lines.append(Text.assemble(cell))
    return lines


NAMES = 28  # columns for a node's name beside its cells; a longer one gets a line of its own


def draw(console: Console, nodes: Sequence[NodeState], today: float, wide: bool) -> None:
    """Print the nodes by kind of machine, then the legend."""
    at_a_glance = overview(nodes, Filters())
    for section in at_a_glance.sections:
        console.print(Text(section.kind, "bold"))
        console.print(total_text(section.totals))
        of_kind = (node for node in nodes if node.kind == section.kind)
        tiles = [Tile(node, (node.name,)) for node in of_kind] if wide else section.tiles
        beside = _beside(console, tiles)
        for tile in tiles:
            _tile(console, tile, beside)
        if section.unseen and not wide:
            console.print(Text(f"… {section.unseen:,} more nodes (-o wide shows each)", "dim"))
        console.print()
    if at_a_glance.kinds_left:
        console.print(
            f"… {at_a_glance.kinds_left} more kinds of machines (gpu-topology nodes lists them)"
        )
    console.print(legend(nodes))


def _beside(console: Console, tiles: Sequence[Tile]) -> int:
    """Return the number of columns for the names that stand beside their cells."""
    names = [cell_len(tile.nodes[0]) for tile in tiles if tile.many == 1]
    most = min(NAMES, console.width // 2)
    return 2 + max((name for name in names if name <= most), default=0) + 2


def _tile(console: Console, tile: Tile, beside: int) -> None:
    """Print one node, or several that look the same, with name, cells and warnings."""
    node, name = tile.sample, tile.sample.name
    cells = node_cells(node) if tile.exact else [Text(f"each has {tile.counts_text}")]
    indent = 4
    if tile.many > 1:
        console.print(f"  {tile.many:,} nodes {tile.likeness.word}: {some(tile.nodes)}")
    elif cell_len(name) + 4 <= beside and cells:
        indent = beside
    else:
        console.print(f"  {name}", overflow="fold")
    for number, line in enumerate(folded(cells, max(console.width - indent, 1))):
        left = f"  {name}" if not number and indent > 4 else ""
        console.print(Text(left.ljust(indent)) + line, soft_wrap=True)
    words = warnings(node) if tile.exact else []
    for word in (*words, *(node.problems if tile.many == 1 else ())):
        paragraph(console, word, "yellow", 4)
