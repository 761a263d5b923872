"""``python -m benchmarks report``."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            hidden=True,  # the text below tells of it
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page there.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page of what simulate found.

    FILE is what `simulate --json` wrote. The page has figures and drawings and loads nothing from
    elsewhere.
    """
    if out.resolve() == file.resolve():
        raise typer.BadParameter(f"--out: {out} is the file to report on")
    from rich.console import Console

    from benchmarks.output import writable, write_text
    from benchmarks.report.page import page
    from benchmarks.report.reading import ReportError, read

    writable(out=out)
    try:
        found = read(file)
    except ReportError as error:
        raise typer.BadParameter(f"{file}: {error}") from error
    text = page(found)
    try:
        write_text(out, text)
    except OSError as error:
        raise typer.BadParameter(f"--out: {out}: {error.strerror}") from error
    Console().print(f"{out}: {len(text) / 1000:,.0f} kB", highlight=False)
