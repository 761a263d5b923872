"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write figures and parameters there as JSON."),
]


def one_of(flag: str, given: str, known: tuple[str, ...]) -> str:
    """The word, if it is allowed. Raises :class:`typer.BadParameter`."""
    if given not in known:
        raise typer.BadParameter(f"{flag}: allowed are {', '.join(known)}, not {given!r}")
    return given
