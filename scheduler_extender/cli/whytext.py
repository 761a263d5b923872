"""What ``gpu-topology why`` prints: the answer about one pod, for terminals of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scheduler_extender.told.explanation import Explanation, Unreadable
from scheduler_extender.told.words import listed

SHOWN_HELPS = 8


def show(console: Console, told: Explanation | Unreadable, unblock: str) -> None:
    """Print an answer. ``unblock`` is the command that plans evictions, empty if that cannot be
    asked."""
    console.print(Text(told.pod, "bold"), soft_wrap=False)
    if isinstance(told, Unreadable):
        _line(console, told.headline, "red")
    else:
        _line(console, f"asks for {told.request}")
        _line(
            console, told.headline, "green" if told.placed or told.takes > told.closed else "yellow"
        )
        there = sorted(
            (row for row in told.nodes if row.may_come), key=lambda row: -(row.score or 0)
        )
        if there and told.placed is None:
            _line(console, f"it may go to {listed([row.node for row in there])}")
        for words in told.placed.words[1:] if told.placed else ():
            _line(console, words, "red" if "lack" in words or "not among" in words else "")
        _section(console, "nearest", [f"{near.node}: {near.words}" for near in told.nearest])
        _section(console, "what would help", list(_helps(told, unblock)))
    _section(console, "good to know", told.notes)


def _helps(told: Explanation, unblock: str) -> Iterator[str]:
    for each in told.helps[:SHOWN_HELPS]:
        yield each.words
    if told.unblocks and unblock:
        yield f"a plan of evictions, where there is one: {unblock}"
    if not told.whole:
        yield "there was no time to try out more"


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, "bold"))
    for line in lines:
        _line(console, line, indent=2)


def _line(console: Console, words: str, style: str = "", indent: int = 0) -> None:
    """A paragraph that folds between words; a pipe gets it on one line."""
    text = Text(words, style)
    if not console.is_terminal:
        console.print(Text(" " * indent) + text, soft_wrap=True)
    else:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
