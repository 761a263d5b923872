"""Prints machines of the catalogue, and machines from the pasted output of a program."""

from dataclasses import replace
from pathlib import Path

import typer
import yaml
from pydantic import ValidationError

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import name_of, standard_output, tell, text_of
from scheduler_extender.quantities import memory as memory_in
from scheduler_extender.terminal import column, show, table
from topology import codec
from topology.core.devices import Bytes, NodeName
from topology.machines import MACHINES, UnknownMachine, machine
from topology.machines.notation import STOCK
from topology.sources import MAX_TEXT, SourceError, read


def print_all() -> None:
    """Print a table of all machines."""
    show(
        standard_output(),
        table(
            MACHINES.values(),
            column("machine", lambda each: each.name, folds=True),
            column("GPUs", lambda each: each.topology("node").summary(), folds=True),
            column("description", lambda each: each.description, folds=True),
        ),
    )


def print_one(name: str) -> None:
    """Print a machine as a GPUTopology that any policy of the kubelet can be written into.

    Raises :class:`BadInputError`.
    """
    try:
        known = machine(name)
    except UnknownMachine as error:
        raise BadInputError(str(error)) from error
    document = codec.encode(known.topology(known.name, allocator=known.kubelet()))
    typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


def print_pasted(
    file: Path, node: str, product: str | None, memory: str | None, allocator: str | None
) -> None:
    """Print a GPUTopology from a program's output about a machine.

    ``memory`` is a quantity. Without ``allocator`` the policy of NVIDIA's plugin is used. Raises
    :class:`BadInputError`.
    """
    amount = None
    if memory is not None:
        try:
            amount = Bytes(memory_in(memory))
        except ValueError as error:
            raise BadInputError(f"--memory: {error}") from error
        if amount >= 2**63:
            raise BadInputError(f"--memory: allowed are at most 2^63 - 1 bytes, not {memory}")
    # The limit below counts characters, and a character has up to 4 bytes in the encodings of
    # shells and editors: PowerShell's ">" writes UTF-16.
    text = text_of(file, 4 * MAX_TEXT, utf16=True)
    try:
        source = read(text, NodeName(node), product=product, memory=amount)
    except SourceError as error:
        raise BadInputError(f"{name_of(file)}: {error}") from error
    for finding in source.findings:
        tell(f"{name_of(file)}: {finding}")
    if allocator is None:
        tell(
            f"{name_of(file)}: allocator: best-effort is assumed, NVIDIA's unmodified plugin for "
            "whole GPUs; give --allocator distributed if it shares GPUs, or any for another "
            "plugin"
        )
    stock = replace(STOCK, policy=allocator or "best-effort")
    try:
        document = codec.encode(replace(source.topology, allocator=stock))
    except ValidationError as error:
        raise BadInputError(f"{name_of(file)}: {codec.first_error(error)}") from error
    typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
