"""What `gpu-topology check` prints: what every node would answer to a pod."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.terminal import GAP, ROOMY, column, fits, show, stacked, table
from scheduler_extender.told.rows import NodeAnswer
from scheduler_extender.told.sharing import memory_in_use
from scheduler_extender.told.words import sets_text, verdict_text

SHOWN_NODES = 200
KEYS = 3
"""Columns that every part of a table would have to repeat: node, verdict and score."""

REMARKS = 30
"""Terminal columns that the remarks get before sets of GPUs are kept whole."""


def draw(console: Console, rows: Sequence[NodeAnswer]) -> None:
    """The answers for a terminal: passing nodes first, best score first, at most SHOWN_NODES. A
    table, or a paragraph for each node where there is no room for one."""
    shown = sorted(rows, key=_order)[:SHOWN_NODES]
    table = _table(shown, console.width)
    if console.width >= ROOMY and fits(console, table, KEYS):
        show(console, table, KEYS)
    else:
        for row in shown:
            _stacked(console, row)
    if len(rows) > SHOWN_NODES:
        console.print(f"… {len(rows) - SHOWN_NODES:,} more (--output json lists them all)")


def _order(row: NodeAnswer) -> tuple[bool, int, str]:
    return (not row.may_come, -(row.score or 0), row.node)


def _table(rows: Sequence[NodeAnswer], width: int) -> Table:
    """``width`` is the terminal's: where it has room, sets of GPUs are not wrapped."""
    keys = [(row.node, _verdict(row).plain, "score") for row in rows]
    sets = max((len(sets_text(row.outcomes)) for row in rows), default=0)
    taken = sum(max(map(len, column)) + GAP for column in zip(*keys, strict=True)) + sets + GAP
    return table(
        rows,
        column("node", lambda row: row.node, folds=True),
        column("verdict", _verdict),
        column("score", _score, figure=True),
        column("may hand out", lambda row: sets_text(row.outcomes), folds=width - taken < REMARKS),
        column("why not, and what to beware of", _remarks, folds=True),
    )


def _stacked(console: Console, row: NodeAnswer) -> None:
    sets = [f"may hand out {sets_text(row.outcomes)}"] if row.outcomes else []
    remarks = [words for words in [_remarks(row)] if words]
    first = Text.assemble(_verdict(row), f", score {_score(row)}")
    stacked(console, row.node, [first, *sets, *remarks])


def _verdict(row: NodeAnswer) -> Text:
    if row.passes and row.closed:
        return Text("closed", "red")
    return verdict_text(row.verdict, passes=row.passes)


def _score(row: NodeAnswer) -> str:
    """A dash on a node that would not take the pod."""
    return "–" if row.score is None else str(row.score)


def _remarks(row: NodeAnswer) -> str:
    """Why the node does not take the pod, and what to beware of where it does."""
    fields = ", ".join(row.lacks)
    remarks = (
        f"closed to it by {row.bar}" if row.closed else "",
        row.reason,
        row.note,
        row.miss.words if row.miss is not None and row.miss.holders else "",
        memory_in_use(row.shared_gpus),
        f"beware: {', '.join(row.hazards)}" if row.hazards else "",
        f"CPUs and memory count for nothing: the record has no {fields}" if fields else "",
    )
    return "; ".join(filter(None, remarks))
