"""Output of figures as tables and files."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from scheduler_extender import terminal

STDOUT = Path("-")
UNBOUND = 190  # columns of a line if standard output is no terminal


def console() -> Console:
    """Return a console for standard output, as wide as its terminal."""
    return Console(width=None if sys.stdout.isatty() else UNBOUND)


def table_of(names: Sequence[str], figures: Sequence[str], title: str | None = None) -> Table:
    """Return an empty table with columns of names, then right-aligned columns of figures."""
    columns = [Column(name) for name in names] + [Column(name, justify="right") for name in figures]
    return Table(
        *columns,
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )


def preamble(benchmark: str, **parameters: Any) -> dict[str, Any]:
    """Return the head of a file of measurements: the command, its parameters and the machine."""
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    return {"benchmark": benchmark, "parameters": parameters, "machine": machine}


def shown(header: str, field: str, form: str = "") -> list[terminal.Shown[Mapping[str, Any]]]:
    """Return a column with a field of each row. With a format it is a right-aligned figure."""
    return terminal.column(header, lambda row: f"{row[field]:{form}}", figure=bool(form))


def show(table: Table, keys: int = 1) -> None:
    """Print a table to standard output; see :func:`scheduler_extender.terminal.show`."""
    terminal.show(console(), table, keys)


def writable(**files: Path | None) -> None:
    """Check that files can be written, before hours are spent on their content.

    Each file is named by its option without the dashes. Raises :class:`typer.BadParameter`.
    """
    for option, path in files.items():
        if path is None or path == STDOUT:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"--{option}: {path}: {error.strerror}") from error
        if path.is_dir():
            raise typer.BadParameter(f"--{option}: {path}: Is a directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise typer.BadParameter(f"--{option}: {path}: Permission denied")


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures as JSON, unless the path is None."""
    write_text(path, json.dumps(figures, indent=2, allow_nan=False) + "\n")


def write_text(path: Path | None, text: str) -> None:
    """Write a text unless the path is None. Missing folders are made; ``-`` is standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    elif path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())  # a text that cannot be encoded leaves the file as it was
