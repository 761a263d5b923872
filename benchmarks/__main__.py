"""``python -m benchmarks``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import latency as latency_

app = typer.Typer(
    help="Measure the service.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _commands() -> None:
    """Measure the service."""


@app.command()
def latency(
    nodes: Annotated[
        list[int] | None, typer.Option(help="Cluster sizes; repeatable.", min=1, max=65_000)
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests per route and size.", min=10)] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the nodes' states.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Filter and prioritize over HTTP, beside a route that decodes and encodes without thinking."""
    parameters = latency_.Parameters(tuple(nodes or (100, 1_000, 5_000)), requests, seed)
    figures = latency_.measure(parameters)
    Console(width=120).print(latency_.table(figures))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    app()
