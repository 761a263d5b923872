"""Every node's GPUs as cells on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.cells import folded, legend, node_cells
from scheduler_extender.cli.nodewords import total_text, warnings
from scheduler_extender.told.nodes import NodeState
from scheduler_extender.web.glance import Filters, Tile, glance, some

NAMES = 28  # columns for a node's name beside its cells; a longer one gets a line of its own


def draw(console: Console, nodes: Sequence[NodeState], today: float, *, wide: bool) -> None:
    """The nodes by kind of machine, then what the letters mean."""
    at_a_glance = glance(nodes, Filters())
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
        console.print(f"… {at_a_glance.kinds_left} more kinds of machines (nodes lists them)")
    console.print(legend(nodes))


def _counts(tile: Tile) -> str:
    """What nodes have in common that are only similar."""
    counts = ", ".join(f"{n} {state.replace('-', ' ')}" for state, n in tile.counts.items())
    return f"each has {counts}"


def _beside(console: Console, tiles: Sequence[Tile]) -> int:
    """How many columns names take that stand beside their cells."""
    names = [cell_len(tile.nodes[0]) for tile in tiles if tile.many == 1]
    most = min(NAMES, console.width // 2)
    return 2 + max((name for name in names if name <= most), default=0) + 2


def _tile(console: Console, tile: Tile, beside: int) -> None:
    """A node, or several that look the same: name, cells, and what is particular about it."""
    node, name = tile.sample, tile.sample.name
    cells = node_cells(node) if tile.exact else [Text(_counts(tile))]
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
    for word in (*words, *(node.trouble if tile.many == 1 else ())):
        console.print(Text(f"    {word}", "yellow"), overflow="fold")
