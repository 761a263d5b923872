"""``gpu-topology map``: every node's GPUs as cells on the terminal, or the map in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.adminport import open_map
from scheduler_extender.cli.cells import folded, legend, node_cells
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.gpurows import GpuRow, total_of, total_text
from scheduler_extender.cli.looking import answer_from
from scheduler_extender.cli.nodes import told
from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    SelectorOption,
    WatchOption,
    Where,
)
from scheduler_extender.cli.outputs import form_of
from scheduler_extender.web.glance import Filters, Tile, glance, some

NAMES = 28  # columns for a node's name beside its cells; a longer one gets a line of its own


def map_(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Open the map in the browser: forwards the extender's admin port until Ctrl-C.",
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """Draw every node's GPUs: free, held, stranded or sick.

    Each GPU is its index and a letter, with colours on a terminal; a legend stands below. Nodes
    that look alike share a line where there are many; -o wide gives each its own. The command needs
    the rights to list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if
    no node has GPUs.
    """
    form = form_of(output)
    if open_ and where.cluster is not None:
        raise BadInputError("--open and --cluster: allowed is one of them, a file has no extender")
    if open_:
        open_map(where.access, where.system)
    answer_from(
        where,
        lambda look: told(look, selector, draw, gpus=True),
        form,
        watch=watch,
        namespace=namespace,
    )


def draw(console: Console, rows: Sequence[GpuRow], *, wide: bool) -> None:
    """The nodes by kind of machine, then what the letters mean."""
    by_name = {row.name: row for row in rows}
    states = [row.state for row in rows]
    shown = glance(states, lambda state: by_name[state.name].capacity, Filters())
    for section in shown.sections:
        of_kind = [row for row in rows if row.state.kind == section.kind]
        console.print(Text(section.kind, "bold"))
        console.print(_sum(of_kind))
        tiles = _alone(of_kind) if wide else section.tiles
        beside = _beside(console, tiles)
        for tile in tiles:
            _tile(console, tile, by_name, beside)
        if section.unseen and not wide:
            console.print(Text(f"… {section.unseen:,} more nodes (-o wide shows each)", "dim"))
        console.print()
    if shown.kinds_left:
        console.print(f"… {shown.kinds_left} more kinds of machines (nodes lists them)")
    console.print(legend(states))


def _sum(rows: Sequence[GpuRow]) -> str:
    counts, capacity = total_of(rows)
    return total_text(len(rows), counts, capacity)


def _alone(rows: Sequence[GpuRow]) -> list[Tile]:
    return [Tile(row.state, (row.name,)) for row in rows]


def _beside(console: Console, tiles: Sequence[Tile]) -> int:
    """How many columns names take that stand beside their cells."""
    names = [cell_len(tile.nodes[0]) for tile in tiles if tile.many == 1]
    most = min(NAMES, console.width // 2)
    return 2 + max((name for name in names if name <= most), default=0) + 2


def _tile(console: Console, tile: Tile, by_name: dict[str, GpuRow], beside: int) -> None:
    """A node, or several that look the same: name, cells, and what is particular about it."""
    row = by_name[tile.sample.name]
    cells = node_cells(tile.sample)
    if tile.many > 1:
        like = "alike" if tile.exact else "similar"
        console.print(f"  {tile.many:,} nodes {like}: {some(tile.nodes)}")
        indent = 4
    elif cell_len(row.name) + 4 <= beside and cells:
        indent = beside
    else:
        console.print(f"  {row.name}", overflow="fold")
        indent = 4
    lines = folded(cells, max(console.width - indent, 1))
    for number, line in enumerate(lines):
        name = f"  {row.name}" if not number and indent > 4 else ""
        console.print(Text(name.ljust(indent)) + line, soft_wrap=True)
    words = row.words() if tile.many == 1 else [w for w in row.words() if tile.exact]
    for word in (*words, *(tile.sample.trouble if tile.many == 1 else ())):
        console.print(Text(f"    {word}", "yellow"), overflow="fold")
