"""``gpu-topology nodes``: every node with GPUs, how they stand, and what it can still promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
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
from scheduler_extender.terminal import column, fits, show, stacked, table

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
    lines = [gpus_text(row.counts), f"can still promise {promises_text(row.capacity)}"]
    beware = [Text(words, "yellow") for words in row.words(counted=True)]
    stacked(console, row.name, [*lines, *beware])


def _table(rows: Sequence[GpuRow], *, wide: bool) -> Table:
    reserved = wide or any(row.counts.reserved for row in rows)
    beware = any(row.words(counted=True) for row in rows)
    return table(
        rows,
        column("node", lambda row: row.name),
        column("GPUs", lambda row: str(row.counts.gpus or "–"), figure=True),
        column("free", lambda row: _figure(row.counts.free, "green"), figure=True),
        column("stranded", lambda row: _figure(row.counts.stranded, "yellow"), figure=True),
        column(
            "reserved",
            lambda row: _figure(row.counts.reserved, "magenta"),
            figure=True,
            when=reserved,
        ),
        column("held", lambda row: _figure(row.counts.held, ""), figure=True),
        column("sick", lambda row: _figure(row.counts.sick, "red"), figure=True),
        column("pairs", lambda row: _figure(row.capacity.pairs, "green"), figure=True),
        column("quads", lambda row: _figure(row.capacity.quads, "green"), figure=True),
        column("whole", lambda row: _figure(row.capacity.nodes, "green"), figure=True),
        column("machine", lambda row: row.state.kind, folds=True, when=wide),
        column("reported", lambda row: ago(row.reported), when=wide),
        column(
            "beware",
            lambda row: Text("; ".join(row.words(counted=True)), "yellow"),
            folds=True,
            when=beware,
        ),
    )


def _figure(n: int, style: str) -> Text:
    """A number that is worth a look where it is not 0."""
    return Text(str(n), style if n else "dim")
