"""``gpu-topology machines``: the catalogue of known machines."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler_extender.cli.inputs import one_of


def machines(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MACHINE", hidden=True),  # the text below tells of it
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FORM",
            help="Of one machine: yaml (a GPUTopology object) or matrix (as nvidia-smi shows it).",
        ),
    ] = "yaml",
) -> None:
    """List the machines of the catalogue, or print one.

    MACHINE is a name from the list, which cluster files and `simulate --cluster` take, too.
    """
    matrix = one_of("--output", output, {"yaml": False, "matrix": True})
    from scheduler_extender.cli.machines import print_all, print_one

    if name is None:
        print_all()
    else:
        print_one(name, as_matrix=matrix)
