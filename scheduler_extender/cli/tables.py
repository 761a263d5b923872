"""Tables of rows, and paragraphs in their place where a terminal has no room for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

R = TypeVar("R")
Shown = tuple[Column, Callable[[R], Text | str]]  # A column, and what it shows of a row


def column(
    header: str,
    cell: Callable[[R], Text | str],
    *,
    figure: bool = False,
    folds: bool = False,
    when: bool = True,
) -> list[Shown[R]]:
    """One column, or none unless ``when``; what ``folds`` may take several lines in a row."""
    how = Column(
        Text(header),
        justify="right" if figure else "left",
        overflow="fold" if folds else "ellipsis",
    )
    return [(how, cell)] if when else []


def table(rows: Iterable[R], *columns: list[Shown[R]]) -> Table:
    """The rows, for :func:`scheduler_extender.terminal.show`; words in them are no markup."""
    shown = [each for some in columns for each in some]
    found = Table(
        *(how for how, _ in shown),
        box=None,
        pad_edge=False,
        header_style="bold",
        title_justify="left",
    )
    for row in rows:
        cells = [cell(row) for _, cell in shown]
        found.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return found


def stacked(console: Console, heading: str, lines: Iterable[Text | str]) -> None:
    """A row where there is no room for a table."""
    console.print(Text(heading, "bold", overflow="fold"))
    for line in lines:
        text = Text(line) if isinstance(line, str) else line
        console.print(Padding(text, (0, 0, 0, 2)))
