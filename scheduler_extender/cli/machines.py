"""The catalogue of known machines."""

from __future__ import annotations

from functools import partial

import typer
import yaml
from rich.table import Table

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import standard_output
from scheduler_extender.terminal import column, show, table
from topology import codec
from topology.machines import MACHINES, Machine, UnknownMachine, machine


def print_all() -> None:
    """List the machines."""
    known = table(
        MACHINES.values(),
        column("machine", lambda each: each.name, folds=True),
        column("GPUs", lambda each: each.topology("node").summary(), folds=True),
        column("what it is", lambda each: each.description, folds=True),
    )
    show(standard_output(), known)


def print_one(name: str, *, as_matrix: bool) -> None:
    """Print one as a GPUTopology, or the matrix of its links. Raises :class:`BadInputError`."""
    try:
        known = machine(name)
    except UnknownMachine as error:
        raise BadInputError(str(error)) from error
    if as_matrix:
        show(standard_output(), _matrix(known))
    else:
        document = codec.encode(known.topology(known.name))
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
