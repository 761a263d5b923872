"""``python -m benchmarks promises``."""

import os
import sys
from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile


def promises(
    placements: Annotated[
        int, typer.Option(metavar="COUNT", help="How many pods to place, at least.", min=100)
    ] = 100_000,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of jobs, delays and ties.")] = 1,
    workers: Annotated[
        int, typer.Option(metavar="COUNT", help="How many plays at a time.", min=1, max=256)
    ] = os.cpu_count() or 1,
    kind: Annotated[
        str, typer.Option(metavar="TEXT", help="Only the kinds whose names have this text.")
    ] = "",
    json_file: JsonFile = None,
) -> None:
    """Count the promises that are kept and broken.

    The extender places pods on whole and shared GPUs, MIG instances, in groups and under DRA: with
    the faults of every day, and then once more with rare faults. The rule "a good set is free"
    places the pods on whole GPUs, too. The figures so far are written after each play. Exit with 1
    where the extender did not keep something that has to hold always.
    """
    from benchmarks.output import show, writable, write_json
    from benchmarks.promises import bykind

    writable(json=json_file)
    found, kinds = None, {name: play for name, play in bykind.KINDS.items() if kind in name}
    if not kinds:
        known = ", ".join(bykind.KINDS)
        raise typer.BadParameter(
            f"no kind has {kind!r} in its name; the kinds are {known}", param_hint="--kind"
        )
    for found in bykind.by_kind(placements, seed, workers, kinds):
        placed = bykind.everything(found["rows"])["placed"]
        print(f"round {found['rounds']}: {placed:,} placed", file=sys.stderr, flush=True)
        if json_file is not None and str(json_file) != "-":
            write_json(json_file, found)
    assert found is not None
    show(bykind.by_kind_table(found))
    if str(json_file) == "-":
        write_json(json_file, found)
    if not bykind.kept(bykind.everything(found["rows"])):
        raise typer.Exit(1)
