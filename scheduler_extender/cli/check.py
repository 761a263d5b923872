"""``gpu-topology check``: what every node of a cluster would answer to a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Meta, structs
from rich.text import Text

from scheduler_extender.cli import checktable
from scheduler_extender.cli.inputs import one_of, standard_output, tell, weakest
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import ListedNamespaceOption, WeakestOption
from scheduler_extender.cli.podfiles import read_files
from scheduler_extender.cli.source import look_once
from scheduler_extender.cli.suggestions import did_you_mean
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.told.counts import summary
from scheduler_extender.told.rows import NodeAnswer, rows_of
from scheduler_extender.told.struct import Struct
from scheduler_extender.told.together import GroupFit, Together, Wanted, judge
from scheduler_extender.told.words import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """What else is checked, how strictly, and at which API server."""

    files: Annotated[
        list[Path] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="As FILE; may stand several times."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning, too.")] = (
        False
    )
    access: Access = field(default_factory=Access)


def check(
    pods: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", hidden=True),  # the text below tells of it
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster file that describes the nodes. Without it the API server is asked.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORM", help="table or json.")
    ] = "table",
    require: WeakestOption = "expected",
    namespace: ListedNamespaceOption = None,
    *,
    further: Further,
) -> None:
    """Say for every node whether it would take a pod, and why not.

    FILE is a file with Pods or objects that have a pod template, such as Jobs, a folder with YAML
    and JSON files, or - for standard input; there may be several. Each pod is judged by itself, but
    members of one group are judged together. Exits with 1 if there is a pod that no node would
    take, or no room for a whole group, and with 2 if an object cannot be read: the others are
    judged all the same.
    """
    least = weakest(require)
    as_json = one_of("--output", output, {"table": False, "json": True})
    read = read_files([*(pods or ()), *(further.files or ())])
    look = look_once(cluster, further.access, namespace, least)
    for note in look.notes:
        tell(f"note: {note}")
    found = judge(look.cluster, read.wanted)
    snapshot = look.cluster.snapshot()
    warnings = [*_unread_selectors(snapshot, read.wanted), *_unserved(snapshot, read.wanted)]
    for warning in warnings:
        tell(f"warning: {warning}")
    if as_json:
        data = msgspec.to_builtins(_data(found, look.today, alone=len(read.wanted) == 1))
        typer.echo(json.dumps(data, indent=2))
    else:
        _draw(found, look.today)
    for fault in read.faults:
        tell(f"error: {fault}")
    if read.faults:
        raise typer.Exit(2)
    warned = further.strict and (read.warnings or warnings or not found.all_fit)
    raise typer.Exit(0 if found.all_may_come and not warned else 1)


def _unread_selectors(snapshot: Snapshot, wanted: Sequence[Wanted]) -> Iterator[str]:
    """That selectors of pods count for nothing where the labels of nodes are not known."""
    blind = sum(not facts.node_object.exists for facts in snapshot.nodes)
    going = ((pod, pod.standing.destinations) for pod in wanted)
    picky = list(dict.fromkeys(pod.name for pod, at in going if at.selector or at.terms))
    if blind and picky:
        yield (
            f"nodeSelector and node affinity of {listed(picky)} count for nothing on {blind:,} of "
            f"{len(snapshot.nodes):,} nodes: not all of their labels are known"
        )


def _unserved(snapshot: Snapshot, wanted: Sequence[Wanted]) -> Iterator[str]:
    """The resources that no node serves, and those that are."""
    topologies = (facts.topology for facts in snapshot.nodes if facts.topology is not None)
    served = sorted({each.name for topology in topologies for each in topology.resources})
    for name in dict.fromkeys(pod.request.resource for pod in wanted):
        if served and name not in served:
            said = did_you_mean(name, served) or f": served are {', '.join(served[:8])}"
            yield f"no node serves {name}{said}"
    nodes = [facts.node_object for facts in snapshot.nodes]
    if not all(node.allocatable and not node.partial for node in nodes):
        return  # a node of which not all is known may serve it
    given = {name for node in nodes for name, amount in node.allocatable or () if amount}
    for name in dict.fromkeys(name for pod in wanted for name, asked in pod.standing.asks if asked):
        if name not in given:
            yield f"no node serves {name}{did_you_mean(name, sorted(given))}"


class Checked(Struct, frozen=True):
    """What every node answers to one pod; ``group`` if it is the only pod, and has one."""

    pod: str
    asks: str
    file: str
    nodes: list[NodeAnswer]
    copies: Annotated[int, Meta(description="pods that its object makes at one time")] = 1
    fit: Annotated[int | None, Meta(description="how many of them surely fit at once")] = None
    group: GroupFit | None = None


def _data(found: Together, today: float, *, alone: bool) -> Checked | dict[str, Any]:
    """The answer as data: that of one pod is there without a list around it."""
    pods: list[Checked] = []
    for each in found.judged:
        nodes = rows_of(each.pods[0].request, each.answers, today)
        pods += [
            Checked(pod.name, pod.text, pod.file, nodes, pod.copies, each.fit(pod))
            for pod in each.pods
        ]
    if not alone:
        return {"pods": pods, "groups": found.groups, "objects": found.objects}
    return structs.replace(pods[0], group=found.groups[0]) if found.groups else pods[0]


def _draw(found: Together, today: float) -> None:
    """The answer for people: a table for pods that ask the same."""
    console = standard_output()
    for number, each in enumerate(found.judged):
        if number:
            console.print()
        first, names = each.pods[0], list(dict.fromkeys(pod.name for pod in each.pods))
        word = "asks" if len(names) == 1 else "each ask"
        console.print(Text(listed(names), "bold"), Text(f"{word} for {first.text}"))
        checktable.draw(console, rows_of(first.request, each.answers, today))
        console.print(summary(first.request, each.answers), highlight=False)
        for pod in each.pods:
            fit = each.fit(pod)
            if fit:
                told = f"{pod.name}: there is room for {fit:,} of its {pod.copies:,} pods at once"
                console.print(Text(told, "green" if fit == pod.copies else "red"))
    if found.groups:
        console.print()
    for group in found.groups:
        console.print(Text(group.text, "red" if group.refused else "green"))
    for made in found.objects:
        console.print(Text(made.text, "green" if made.fit == made.copies else "red"))
    by_themselves = [pod for each in found.judged for pod in each.pods if pod.membership is None]
    if len(by_themselves) > 1:
        console.print()
        console.print(f"each of the {len(by_themselves)} pods without a group is judged by itself")
