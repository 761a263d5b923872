"""``gpu-topology machines``: the catalogue of known machines."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
import yaml
from rich.table import Table

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import one_of, standard_output
from scheduler_extender.terminal import column, show, table
from topology import codec
from topology.machines import MACHINES, Machine, UnknownMachine, machine


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
    if name is None:
        known = table(
            MACHINES.values(),
            column("machine", lambda each: each.name, folds=True),
            column("GPUs", lambda each: each.topology("node").summary(), folds=True),
            column("what it is", lambda each: each.description, folds=True),
        )
        show(standard_output(), known)
        return
    matrix = one_of("--output", output, {"yaml": False, "matrix": True})
    try:
        known_machine = machine(name)
    except UnknownMachine as error:
        raise BadInputError(str(error)) from error
    if matrix:
        show(standard_output(), _matrix(known_machine))
    else:
        document = codec.encode(known_machine.topology(known_machine.name))
        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


def _matrix(shown: Machine) -> Table:
    topology = shown.topology("node")

    def link(q: int, p: int) -> str:
        joined = topology.shape.links[p][q]
        if joined is None:
            return "X"
        return f"NV{joined.nvlinks} {joined.pcie.label}" if joined.nvlinks else joined.pcie.label

    gpus = topology.gpus
    return table(
        range(len(gpus)),
        column("", lambda p: f"GPU{gpus[p].index}"),
        *(column(f"GPU{gpu.index}", partial(link, q)) for q, gpu in enumerate(gpus)),
        column("NUMA", lambda p: str(gpus[p].numa_node)),
    )
