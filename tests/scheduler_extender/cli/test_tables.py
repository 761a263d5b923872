"""Tables of the commands: which columns there are, and words that are no markup."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from scheduler_extender.terminal import column, stacked, table


def _printed(thing: object, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_column_that_is_not_wanted_is_not_there() -> None:
    found = table(
        [1, 22],
        column("n", str, figure=True),
        column("never", lambda n: str(1 // 0), when=False),
        column("twice", lambda n: Text(str(2 * n))),
    )
    assert [line.split() for line in _printed(found).splitlines()] == [
        ["n", "twice"],
        ["1", "2"],
        ["22", "44"],
    ]


def test_words_and_headers_are_no_markup() -> None:
    found = table(["[red]pod[/red]"], column("[bold]", lambda name: name, folds=True))
    assert [line.strip() for line in _printed(found).splitlines()] == ["[bold]", "[red]pod[/red]"]


def test_a_row_without_room_for_a_table_is_a_paragraph() -> None:
    console = Console(file=io.StringIO(), width=60)
    stacked(console, "node-1", ["[red]8 GPUs[/red]", Text("sick", "red")])
    assert isinstance(console.file, io.StringIO)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "node-1",
        "  [red]8 GPUs[/red]",
        "  sick",
    ]
