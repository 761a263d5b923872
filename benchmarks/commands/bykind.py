"""``python -m benchmarks promises-by-kind``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile
from benchmarks.output import show, writable, write_json
from benchmarks.promises import bykind


def promises_by_kind(
    placements: Annotated[
        int, typer.Option(metavar="COUNT", help="How many pods to place, at least.", min=100)
    ] = 100_000,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of jobs, delays and ties.")] = 1,
    workers: Annotated[
        int, typer.Option(metavar="COUNT", help="How many plays at a time.", min=1, max=256)
    ] = os.cpu_count() or 1,
    json_file: JsonFile = None,
) -> None:
    """Count promises over shared GPUs, MIG and groups.

    The extender places the same pods as an oracle that knows every node at every moment, and then
    once more with rare faults. The figures so far are written after each play. Exit with 1 where
    something was not kept that has to hold always.
    """
    writable(json=json_file)
    found = None
    for found in bykind.by_kind(placements, seed, workers):
        placed = sum(row.placed for row in found.rows.values())
        print(f"round {found.rounds}: {placed:,} placed", file=sys.stderr, flush=True)
        if json_file is not None and str(json_file) != "-":
            write_json(json_file, found)
    assert found is not None
    show(bykind.table_of(found))
    if str(json_file) == "-":
        write_json(json_file, found)
    if not all(row.kept for row in found.rows.values()):
        raise typer.Exit(1)
