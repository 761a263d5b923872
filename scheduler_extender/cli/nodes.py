"""The nodes with GPUs, as a table: how they stand, and what each can still promise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.labels import selector_of, selects
from scheduler_extender.cli.nodewords import ago, gpus_text, promises_text, total_text, warnings
from scheduler_extender.cli.outputs import Told
from scheduler_extender.cli.source import Look
from scheduler_extender.terminal import column, fits, show, stacked, table
from scheduler_extender.told.nodes import Nodes, NodeState, has_gpus, tally, totals

NOBODY = "no node with GPUs is known"


class Drawing(Protocol):
    """Draws nodes, of which there is at least one."""

    def __call__(
        self, console: Console, nodes: Sequence[NodeState], today: float, *, wide: bool
    ) -> None:
        """Draw them on a console."""
        ...


def told(look: Look, selector: str | None, drawing: Drawing, *, devices: bool = False) -> Told:
    """The answer about all nodes with GPUs, or those that are selected; with ``devices`` the data
    has each of their GPUs."""
    wanted = selector_of(selector)
    nodes = [node for node in Nodes(look.cluster).all() if has_gpus(node.facts)]
    if wanted and not any(node.facts.node_object.labels for node in nodes):
        raise BadInputError("--selector: no Node object can be read, so no node's labels are known")
    nodes = [node for node in nodes if selects(wanted, node.facts.node_object.labels)]
    return Told(
        {"nodes": [node.as_json(devices=devices) for node in nodes]},
        [f"node/{node.name}" for node in nodes],
        lambda console, wide: (
            drawing(console, nodes, look.today, wide=wide) if nodes else console.print(NOBODY)
        ),
        look.notes,
        bool(nodes),
    )


def draw(console: Console, nodes: Sequence[NodeState], today: float, *, wide: bool) -> None:
    """The nodes as a table, and a line about all of them."""
    table = _table(nodes, today, wide=wide)
    if wide or fits(console, table):
        show(console, table)
    else:
        for node in nodes:
            lines = [gpus_text(node.uses), f"can still promise {promises_text(node.capacity)}"]
            beware = [Text(words, "yellow") for words in warnings(node, counted=True)]
            stacked(console, node.name, [*lines, *beware])
    console.print()
    console.print(total_text(totals(nodes)))


STYLES = {
    "free": "green",
    "stranded": "yellow",
    "in flight": "magenta",
    "reserved": "magenta",
    "held": "",
    "sick": "red",
}
ALWAYS = ("free", "stranded", "held", "sick")
"""Columns that are there though every number in them is 0."""


def _table(nodes: Sequence[NodeState], today: float, *, wide: bool) -> Table:
    all_of_them = tally(totals(nodes).uses)
    beware = any(warnings(node, counted=True) for node in nodes)
    return table(
        nodes,
        column("node", lambda node: node.name),
        column("GPUs", lambda node: str(len(node.gpus) or "–"), figure=True),
        *(
            column(word, partial(_tallied, word), figure=True, when=wide or word in ALWAYS or n > 0)
            for word, n in all_of_them.items()
        ),
        column("pairs", lambda node: _figure(node.capacity.pairs, "green"), figure=True),
        column("quads", lambda node: _figure(node.capacity.quads, "green"), figure=True),
        column("whole", lambda node: _figure(node.capacity.nodes, "green"), figure=True),
        column("machine", lambda node: node.kind, folds=True, when=wide),
        column("reported", lambda node: ago(node.reported(today)), when=wide),
        column(
            "beware",
            lambda node: Text("; ".join(warnings(node, counted=True)), "yellow"),
            folds=True,
            when=beware,
        ),
    )


def _tallied(word: str, node: NodeState) -> Text:
    return _figure(tally(node.uses)[word], STYLES[word])


def _figure(n: int, style: str) -> Text:
    """A number that is worth a look where it is not 0."""
    return Text(str(n), style if n else "dim")
