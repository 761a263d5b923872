"""The table of `gpu-topology check`: what every node would answer to a pod."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from scheduler_extender.explain import CLOSED
from scheduler_extender.sharing import memory_in_use
from scheduler_extender.why.rows import Row
from scheduler_extender.wording import sets_text, verdict_text

SHOWN_NODES = 200


def table(rows: Sequence[Row]) -> Table:
    """The answers for a terminal: passing nodes first, best score first, at most SHOWN_NODES."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("node", overflow="fold")
    found.add_column("verdict", no_wrap=True)
    found.add_column("score", justify="right", no_wrap=True)
    found.add_column("may hand out", overflow="fold")
    found.add_column("why not, and what to beware of", overflow="fold")

    def order(row: Row) -> tuple[bool, int, str]:
        return (not row.answer.may_come, -(row.answer.score or 0), row.answer.node)

    for row in sorted(rows, key=order)[:SHOWN_NODES]:
        answer = row.answer
        beware = f"beware: {', '.join(row.hazards)}" if row.hazards else ""
        miss = row.miss.words if row.miss is not None and row.miss.holders else ""
        in_use = memory_in_use(row.shared)
        closed = CLOSED if answer.closed else ""
        fields = ", ".join(answer.lacks)
        lacks = f"CPUs and memory count for nothing: the record has no {fields}" if fields else ""
        found.add_row(
            Text(answer.node),
            verdict_text(answer.verdict, passes=answer.passes),
            "–" if answer.score is None else str(answer.score),
            sets_text(row.outcomes),
            Text(
                "; ".join(
                    filter(None, (closed, answer.reason, answer.note, miss, in_use, beware, lacks))
                )
            ),
        )
    if len(rows) > SHOWN_NODES:
        more = f"… {len(rows) - SHOWN_NODES:,} more (--output json lists them all)"
        found.add_row(more, "", "", "", "")
    return found
