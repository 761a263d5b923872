"""``gpu-topology claim``: a pod's constraints as a ResourceClaim, for nodes with DRA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml

from scheduler_extender.claims import DRIVER
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import name_of, tell, text_of
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import ClusterOption
from scheduler_extender.cli.source import look_once
from scheduler_extender.files.claimfile import claiming
from scheduler_extender.files.podfile import PodFileError
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.alternatives import MOST_GPUS, alternatives, grouped
from topology.core.graph import NodeTopology
from topology.core.placement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Whose machines the claim is written for."""

    cluster: ClusterOption = None
    access: Access = field(default_factory=Access)


def claim(
    pod: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    device_class: Annotated[
        str, typer.Option(metavar="NAME", help="The DeviceClass of the GPUs.")
    ] = DRIVER,
    *,
    machines: Machines,
) -> None:
    """Write a pod's constraints as a claim, for nodes with DRA.

    FILE is a file with a Pod, or an object that has a pod template, whose annotations require
    something, or - for standard input. It prints a ResourceClaimTemplate and the objects of the
    file, in which the pod has a claim of this template. The claim names up to eight sets of GPUs of
    the cluster's nodes with DRA, or of all nodes where none has DRA yet; any set will do. What is
    left out is said on standard error. Exits with 1 if no set of GPUs can be named.
    """
    try:
        found_in = claiming(text_of(pod))
    except PodFileError as error:
        raise BadInputError(f"{name_of(pod)}: {error}") from error
    look = look_once(machines.cluster, machines.access, None, Verdict.EXPECTED)
    wanted = found_in.wanted
    for note in (*wanted.notes, *(() if machines.cluster else look.notes)):
        tell(f"note: {note}")
    known = _topologies(look.cluster.snapshot().nodes)
    constraints, count = wanted.request.constraints, wanted.request.count
    machines_alike = grouped(known)
    found = alternatives(machines_alike, count, constraints)
    large = sum(len(node.gpus) > MOST_GPUS for node in known)
    if large:
        tell(f"note: {large:,} nodes have more than {MOST_GPUS} GPUs: none of their GPUs is named")
    looked_at = sum(each.nodes for each in machines_alike[: len(found.machines)])
    if left := len(known) - large - looked_at:
        tell(f"note: there are too many kinds of machines to look at all: {left:,} nodes are left")
    for name, good, covered in found.machines:
        if covered < good:
            tell(
                f"note: {name}: {covered} of {good} sets of {count} GPUs with {constraints.text} "
                "are named, and no pod gets the others"
            )
    if not found.sets:
        tell(f"no set of {count} GPUs with {constraints.text} can be named by PCI addresses")
        raise typer.Exit(1)
    written = found_in.with_template(found.sets, device_class)
    typer.echo(yaml.safe_dump_all(written, sort_keys=False, width=1000), nl=False)


def _topologies(nodes: Iterable[NodeFacts]) -> list[NodeTopology]:
    """The machines that claims can have GPUs of: those with DRA, or all where none has it yet."""
    there = [(facts.by_dra, facts.topology) for facts in nodes if facts.topology is not None]
    return [each for by_dra, each in there if by_dra] or [each for _, each in there]
