"""What ``gpu-topology why`` prints: the answer about one pod, for terminals of any width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

SHOWN_HELPS = 8


def show(console: Console, found: Mapping[str, Any], unblock: str) -> None:
    """Print an answer as ``/v1/explain`` has it. ``unblock`` is the command that plans evictions,
    empty where that cannot be asked."""
    console.print(Text(found["pod"], "bold"), soft_wrap=False)
    if found.get("request"):
        _line(console, f"asks for {found['request']}")
    placed = found.get("placed")
    style = "green" if placed or found.get("takes") else "yellow"
    _line(console, found["headline"], "red" if found.get("reason") else style)
    for words in (placed or {}).get("words", [])[1:]:
        _line(console, words, "red" if "lack" in words or "not among" in words else "")
    _section(
        console,
        "nearest",
        [f"{each['node']}: {each['words']}" for each in found.get("nearest", ())],
    )
    _section(console, "what would help", list(_helps(found, unblock)))
    _section(console, "good to know", list(found.get("notes", ())))


def _helps(found: Mapping[str, Any], unblock: str) -> Iterator[str]:
    for each in found.get("helps", ())[:SHOWN_HELPS]:
        yield each["words"]
    if found.get("unblocks") and unblock:
        yield f"a plan of evictions, where there is one: {unblock}"
    if not found.get("whole", True):
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
        console.print(Padding(text, (0, 0, 0, indent)))
