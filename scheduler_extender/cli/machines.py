"""``gpu-topology machines``: the catalogue of known machines."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml
from rich.table import Table

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import one_of, standard_output
from scheduler_extender.terminal import show
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
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("machine", "GPUs", "what it is"):
            table.add_column(column, overflow="fold")
        for known in MACHINES.values():
            table.add_row(known.name, known.topology("node").summary(), known.description)
        show(standard_output(), table)
        return
    matrix = one_of("--output", output, {"yaml": False, "matrix": True})
    try:
        found = machine(name)
    except UnknownMachine as error:
        raise BadInputError(str(error)) from error
    if matrix:
        show(standard_output(), _matrix(found))
    else:
        document = codec.encode(found.topology(found.name))
        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


def _matrix(found: Machine) -> Table:
    topology = found.topology("node")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for gpu in topology.gpus:
        table.add_column(f"GPU{gpu.index}", no_wrap=True)
    table.add_column("NUMA")
    for p, gpu in enumerate(topology.gpus):
        cells = [
            "X"
            if link is None
            else f"NV{link.nvlinks} {link.pcie.label}"
            if link.nvlinks
            else link.pcie.label
            for link in topology.shape.links[p]
        ]
        table.add_row(f"GPU{gpu.index}", *cells, str(gpu.numa_node))
    return table
