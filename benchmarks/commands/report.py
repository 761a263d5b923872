"""``python -m benchmarks report``."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    files: Annotated[
        list[Path],
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

    FILE is what `simulate --json` wrote. The parts of one sharded
    simulation are joined; every other file is a section of its own. The page has figures and plots
    and loads nothing from elsewhere.
    """
    if out.resolve() in {path.resolve() for path in files}:
        raise typer.BadParameter(f"--out: {out} is one of the files to report on")
    from rich.console import Console

    from benchmarks.output import writable, write_text
    from benchmarks.report import ReportError, page
    from benchmarks.report.reading import read

    writable(out=out)
    found = []
    for path in files:
        try:
            found.append(read(path))
        except ReportError as error:
            raise typer.BadParameter(f"{path}: {error}") from error
    try:
        text = page(found)
    except ReportError as error:
        names = ", ".join(str(files[place]) for place in error.files)
        raise typer.BadParameter(f"{names}: {error}") from error
    try:
        write_text(out, text)
    except OSError as error:
        raise typer.BadParameter(f"--out: {out}: {error.strerror}") from error
    Console().print(f"{out}: {len(text) / 1000:,.0f} kB", highlight=False)
