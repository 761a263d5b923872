"""``python -m benchmarks traces``."""

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError


def traces(
    into: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder that GPU_TOPOLOGY_SHARED is to name."),
    ],
    origin: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Who serves the files, each as URL/REPOSITORY/COMMIT/PATH. Give a mirror of yours "
            "where GitHub cannot be reached.",
        ),
    ] = "https://raw.githubusercontent.com",
) -> None:
    """Fetch the public trace that simulate replays.

    Every file is compared with its known SHA-256. One that is there already is not fetched again.
    docs/method.md says what the traces are and whom to cite.
    """
    if not origin.startswith(("https://", "http://")):
        raise typer.BadParameter(f"--origin: {origin!r} does not begin with https:// or http://")
    from rich.console import Console

    from benchmarks.traces import FILES, FetchError, fetch, is_there

    console = Console(highlight=False)
    folder = into / "traces"
    for file in FILES:
        try:
            if is_there(file, folder):
                console.print(f"{file.place}: is there", soft_wrap=True)
                continue
            fetch(file, folder, origin)
        except FetchError as error:
            raise BadInputError(str(error)) from error
        except OSError as error:
            raise typer.BadParameter(
                f"--into: {error.filename or folder}: {error.strerror}"
            ) from error
        console.print(f"{file.place}: {file.size:,} bytes", soft_wrap=True)
    for source in dict.fromkeys(file.source for file in FILES):
        console.print(f"from {source.repository} at {source.commit[:7]}: {source.cite}")
    console.print(f"now: export GPU_TOPOLOGY_SHARED={into.resolve()}", soft_wrap=True)
