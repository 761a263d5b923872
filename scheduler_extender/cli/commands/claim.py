"""``gpu-topology claim``: a pod's constraints as a ResourceClaim, for nodes with DRA."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.inputs import name_of, text_of
from scheduler_extender.cli.options import Source


def claim(
    pod: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    device_class: Annotated[
        str, typer.Option(metavar="NAME", help="The DeviceClass of the GPUs.")
    ] = "gpu.nvidia.com",
    *,
    machines: Source,
) -> None:
    """Write a pod's constraints as a claim, for nodes with DRA.

    FILE is a file with a Pod, or an object that has a pod template, whose annotations require
    something, or - for standard input. It prints a ResourceClaimTemplate and the objects of the
    file, in which the pod has a claim of this template. The claim names up to eight sets of GPUs of
    the cluster's nodes with DRA, or of all nodes where none has DRA yet; any set will do. What is
    left out is said on standard error. Exits with 1 if no set of GPUs can be named.
    """
    text = text_of(pod)
    from scheduler_extender.cli.claim import write_claim

    write_claim(text, name_of(pod), device_class, machines)
