"""Puts generated parts between the marks of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
BEGIN = "<!--generated:make-reference-->"
END = "<!--/generated-->"

Parts = Sequence[Callable[[], str]]
"""The functions that return the generated parts of a page, in the order of the page."""


def made(page: str, parts: Parts) -> str:
    """Return the page with its generated parts written anew.

    Raises :class:`ValueError` if a mark is missing.
    """
    first, *found = page.split(BEGIN)
    if len(found) != len(parts):
        raise ValueError(f"the page needs the line {BEGIN} {len(parts)} times")
    whole = first
    for part, text in zip(parts, found, strict=True):
        _, end, after = text.partition(END)
        if not end:
            raise ValueError(f"the page lacks a line {END}")
        whole += f"{BEGIN}\n\n{part()}\n\n{END}{after}"
    return whole


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown. Bars within cells are escaped."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    first, *others = (f"|{'|'.join(cells)}|" for cells in lines)
    return "\n".join([first, f"|{'---|' * len(head)}", *others])
