"""The common parts of commands: options, and measuring, showing and writing figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write figures and parameters there as JSON."),
]


def one_of(flag: str, given: str, known: tuple[str, ...]) -> str:
    """Return the word if it is allowed. Raises :class:`typer.BadParameter` otherwise."""
    if given not in known:
        raise typer.BadParameter(f"{flag}: allowed are {', '.join(known)}, not {given!r}")
    return given


def measured(
    json_file: Path | None,
    measure: Callable[[Callable[[str], None]], dict[str, Any]],
    *tables: Callable[[dict[str, Any]], Table],
    keys: int = 1,
) -> None:
    """Measure while a line shows the progress. Then print the tables and write the file."""
    from rich.console import Console

    from benchmarks.output import show, writable, write_json
    from benchmarks.speed.processes import SourceTreeMissingError

    writable(json=json_file)
    try:
        with Console(stderr=True).status("") as status:
            found = measure(status.update)
    except SourceTreeMissingError as error:
        raise typer.BadParameter(str(error)) from error
    for number, table in enumerate(tables):
        if number:
            print()
        show(table(found), keys)
    write_json(json_file, found)
