"""Writes a pod's constraints as a ResourceClaim, for nodes with DRA."""

import json

import typer
import yaml

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import tell
from scheduler_extender.cli.options import Source
from scheduler_extender.cli.queries import look_once
from scheduler_extender.files.claimfile import claiming
from scheduler_extender.files.podfile import PodFileError
from topology.core.alternatives import MOST_GPUS, Alternatives, alternatives, grouped
from topology.core.placement import Verdict
from topology.core.placement.rejections import set_of


def write_claim(
    text: str, file: str, device_class: str, machines: Source, *, as_json: bool
) -> None:
    """Print a file's objects with a claim, and report what the claim leaves out.

    Raises :class:`BadInputError`.
    """
    try:
        found_in = claiming(text)
    except PodFileError as error:
        raise BadInputError(f"{file}: {error}") from error
    look = look_once(machines.cluster, machines.access, None, Verdict.EXPECTED)
    wanted = found_in.wanted
    for note in (*wanted.notes, *(() if machines.cluster else look.notes)):
        tell(f"note: {note}")
    nodes = [each for each in look.cluster.snapshot().nodes if each.topology is not None]
    serving = [each for each in nodes if each.serves_claims]
    if nodes and not serving and not machines.cluster:
        tell("note: no node uses DRA yet, so the claim names GPUs of all nodes")
    known = [at for each in serving or nodes if (at := each.topology)]
    constraints, count = wanted.request.constraints, wanted.request.count
    machines_alike = grouped(known)
    choices = alternatives(machines_alike, count, constraints)
    large = sum(len(node.gpus) > MOST_GPUS for node in known)
    if large:
        tell(
            f"note: {large:,} nodes have more than {MOST_GPUS} GPUs; the claim names none of "
            "their GPUs"
        )
    looked_at = sum(each.nodes for each in machines_alike[: len(choices.machines)])
    if left := len(known) - large - looked_at:
        tell(
            f"note: there are too many kinds of machines to examine all; {left:,} nodes are left "
            "out"
        )
    for name, good, covered in choices.machines:
        if covered < good:
            tell(
                f"note: {name}: the claim names {covered} of the {good} sets of {count} GPUs with "
                f"{constraints.text}; its pods cannot get the other sets"
            )
    if not choices.sets:
        which = f"{len(known):,} {'nodes with DRA' if serving else 'nodes'}" if known else ""
        tell(_nothing(choices, which, f"{set_of(count)} with {constraints.text}"))
        raise typer.Exit(1)
    written = found_in.with_template(choices.sets, device_class)
    if as_json:
        typer.echo(
            json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": [*written]}, indent=2, default=str
            )
        )
    else:
        typer.echo(yaml.safe_dump_all(written, sort_keys=False, width=1000), nl=False)


def _nothing(found: Alternatives, nodes: str, wanted: str) -> str:
    """Return why a claim cannot name any GPUs."""
    if not nodes:
        return "no node has a usable record; gpu-topology node NODE shows why"
    if any(good for _, good, _ in found.machines):
        return (
            f"PCI addresses cannot select a {wanted}: on other nodes the same addresses belong to "
            "unsuitable GPUs"
        )
    return f"none of {nodes} has a {wanted} whose PCI addresses are known"
