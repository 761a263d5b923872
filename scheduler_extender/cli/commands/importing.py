"""``gpu-topology import``: what people paste of a machine becomes a GPUTopology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_node_name, name_of, one_of, pasted, same, tell


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", hidden=True),  # the text below tells of it
    ],
    node: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the node that the text is from.")
    ],
    product: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Product of the GPUs, such as 'NVIDIA A100-SXM4-40GB'."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Memory of each GPU: what nvidia-smi shows in MiB, such as 40960Mi.",
        ),
    ] = None,
    allocator: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="How the node's device plugin picks GPUs: best-effort (NVIDIA's plugin over whole "
            "GPUs), distributed or packed (its policies for shared GPUs), or any (nothing is known "
            "of it).  [default: best-effort]",
        ),
    ] = None,
) -> None:
    """Turn what nvidia-smi or NCCL printed into a GPUTopology.

    FILE is the text of `nvidia-smi topo -m`, or NCCL's topology as XML; - reads standard input. The
    object goes to standard output as YAML, ready for a cluster file. What the text leaves open goes
    to standard error.
    """
    check_node_name("--node", node)
    policies = same("best-effort", "distributed", "packed", "any")
    policy = one_of("--allocator", allocator or "best-effort", policies)
    from dataclasses import replace

    import yaml
    from pydantic import ValidationError

    from scheduler_extender.quantities import memory as memory_in
    from topology import codec
    from topology.core.devices import Bytes, NodeName
    from topology.machines.notation import STOCK
    from topology.sources import SourceError, read

    amount = None
    if memory is not None:
        try:
            amount = Bytes(memory_in(memory))
        except ValueError as error:
            raise BadInputError(f"--memory: {error}") from error
        if amount >= 2**63:
            raise BadInputError(f"--memory: allowed are at most 2^63 - 1 bytes, not {memory}")
    try:
        source = read(pasted(file), NodeName(node), product=product, memory=amount)
    except SourceError as error:
        raise BadInputError(f"{name_of(file)}: {error}") from error
    for finding in source.findings:
        tell(f"{name_of(file)}: {finding}")
    if allocator is None:
        tell(
            f"{name_of(file)}: allocator taken as best-effort, NVIDIA's unmodified plugin over "
            "whole GPUs: --allocator distributed if it shares GPUs, any if another plugin hands "
            "them out"
        )
    topology = replace(source.topology, allocator=replace(STOCK, policy=policy))
    try:
        document = codec.encode(topology)
    except ValidationError as error:
        raise BadInputError(f"{name_of(file)}: {codec.first_error(error)}") from error
    typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
