"""``gpu-topology nodes``: every node with GPUs, how they stand, and what it can still promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scheduler_extender.cli.gpurows import (
    GpuRow,
    ago,
    gpu_rows,
    gpus_text,
    promises_text,
    total_of,
    total_text,
)
from scheduler_extender.cli.looking import Look, answer_from, selected_nodes
from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    SelectorOption,
    WatchOption,
    Where,
)
from scheduler_extender.cli.outputs import Told, form_of
from scheduler_extender.terminal import fits, show

NOBODY = "no node with GPUs is known"


def nodes(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """List the nodes with GPUs, and what they can still promise.

    Stranded is a free GPU without an NVLink to another free one. Pairs, quads and whole say how
    many more pods the node can promise GPUs: pods that ask for two or four GPUs joined by NVLink,
    or for all GPUs of the node. Each number is for that kind alone. The command needs the rights to
    list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if no node has
    GPUs.
    """
    form = form_of(output)
    answer_from(
        where, lambda look: told(look, selector, draw), form, watch=watch, namespace=namespace
    )


class Drawing(Protocol):
    """Draws nodes, of which there is at least one."""

    def __call__(self, console: Console, rows: Sequence[GpuRow], *, wide: bool) -> None:
        """Draw them on a console."""
        ...


def told(look: Look, selector: str | None, drawing: Drawing, *, gpus: bool = False) -> Told:
    """The answer about all nodes with GPUs, or those that are selected; with ``gpus`` the data has
    each of them."""
    rows = gpu_rows(look, selected_nodes(look, selector))
    return Told(
        {"nodes": [row.as_json(gpus=gpus) for row in rows]},
        [f"node/{row.name}" for row in rows],
        lambda console, wide: drawing(console, rows, wide=wide) if rows else console.print(NOBODY),
        look.notes,
        bool(rows),
    )


def draw(console: Console, rows: Sequence[GpuRow], *, wide: bool) -> None:
    """The nodes as a table, and a line about all of them."""
    table = _table(rows, wide=wide)
    if wide or fits(console, table):
        show(console, table)
    else:
        for row in rows:
            _stacked(console, row)
    counts, capacity = total_of(rows)
    console.print()
    console.print(total_text(len(rows), counts, capacity))


def _stacked(console: Console, row: GpuRow) -> None:
    """A node where there is no room for a table."""
    console.print(Text(row.name, "bold", overflow="fold"))
    promised = f"can still promise {promises_text(row.capacity)}"
    for words in (gpus_text(row.counts), promised):
        console.print(Padding(Text(words), (0, 0, 0, 2)))
    for words in row.words(counted=True):
        console.print(Padding(Text(words, "yellow"), (0, 0, 0, 2)))


def _table(rows: Sequence[GpuRow], *, wide: bool) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("node", overflow="fold", no_wrap=True)
    reserved = wide or any(row.counts.reserved for row in rows)
    numbers = ["GPUs", "free", "stranded", *(["reserved"] if reserved else []), "held", "sick"]
    for header in numbers:
        found.add_column(header, justify="right", no_wrap=True)
    for header in ("pairs", "quads", "whole"):
        found.add_column(header, justify="right", no_wrap=True)
    if wide:
        found.add_column("machine", overflow="fold")
        found.add_column("reported", no_wrap=True)
    beware = any(row.words(counted=True) for row in rows)
    if beware:
        found.add_column("beware", overflow="fold")
    for row in rows:
        counts, can = row.counts, row.capacity
        cells = [
            Text(str(counts.gpus or "–")),
            Text(str(counts.free), "green" if counts.free else "dim"),
            _figure(counts.stranded, "yellow"),
            *([_figure(counts.reserved, "magenta")] if reserved else []),
            Text(str(counts.held), "" if counts.held else "dim"),
            _figure(counts.sick, "red"),
            *(_figure(n, "green") for n in (can.pairs, can.quads, can.nodes)),
        ]
        if wide:
            cells += [Text(row.state.kind), Text(ago(row.reported))]
        if beware:
            cells.append(Text("; ".join(row.words(counted=True)), "yellow"))
        found.add_row(Text(row.name), *cells)
    return found


def _figure(n: int, style: str) -> Text:
    """A number that is worth a look where it is not 0."""
    return Text(str(n), style if n else "dim")
