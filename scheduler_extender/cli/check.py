"""``gpu-topology check``: what every node of a cluster would answer to a pod."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import structs
from rich.text import Text

from scheduler_extender.cli import checktable
from scheduler_extender.cli.inputs import one_of, pods_file, standard_output, tell, weakest
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import ListedNamespaceOption, WeakestOption
from scheduler_extender.cli.source import look_once
from scheduler_extender.told.counts import summary
from scheduler_extender.told.rows import NodeAnswer, rows_of
from scheduler_extender.told.struct import Struct
from scheduler_extender.told.together import GroupFit, Together, Wanted, judge
from scheduler_extender.told.view import View

SHOWN_NAMES = 3
"""Pods that ask the same, of which that many are named."""


def check(
    pod: Annotated[
        Path,
        typer.Argument(metavar="POD", hidden=True),  # the text below tells of it
    ],
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
    access: Access,
) -> None:
    """Say for every node whether it would take a pod, and why not.

    POD is a file with a Pod, or with an object that has a pod template, such as a Job; - reads
    standard input. A file may have several of them: each is judged by itself, but members of one
    group are judged together. Exits with 1 if there is a pod that no node would take, or no room
    for a whole group.
    """
    least = weakest(require)
    as_json = one_of("--output", output, {"table": False, "json": True})
    asked = pods_file(pod)
    look = look_once(cluster, access, namespace, least)
    for note in look.notes:
        tell(f"note: {note}")
    found = judge(look.cluster, asked)
    if as_json:
        data = msgspec.to_builtins(_data(found, look.view, alone=len(asked) == 1))
        typer.echo(json.dumps(data, indent=2))
    else:
        _draw(found, look.view)
    raise typer.Exit(0 if found.all_may_come else 1)


class Checked(Struct, frozen=True):
    """What every node answers to one pod; ``group`` if it is the only pod, and has one."""

    pod: str
    asks: str
    nodes: list[NodeAnswer]
    group: GroupFit | None = None


def _data(found: Together, view: View, *, alone: bool) -> Checked | dict[str, Any]:
    """The answer as data: that of one pod is there without a list around it."""
    pods: list[Checked] = []
    for each in found.judged:
        nodes = rows_of(each.pods[0].request, each.answers, view)
        pods += [Checked(pod.name, pod.text, nodes) for pod in each.pods]
    if not alone:
        return {"pods": pods, "groups": found.groups}
    return structs.replace(pods[0], group=found.groups[0]) if found.groups else pods[0]


def _draw(found: Together, view: View) -> None:
    """The answer for people: a table for pods that ask the same."""
    console = standard_output()
    for number, each in enumerate(found.judged):
        if number:
            console.print()
        first, word = each.pods[0], "asks" if len(each.pods) == 1 else "each ask"
        console.print(Text(_names(each.pods), "bold"), Text(f"{word} for {first.text}"))
        checktable.draw(console, rows_of(first.request, each.answers, view))
        console.print(summary(first.request, each.answers), highlight=False)
    if found.groups:
        console.print()
    for group in found.groups:
        console.print(Text(group.text, "red" if group.refused else "green"))
    by_themselves = [pod for each in found.judged for pod in each.pods if pod.membership is None]
    if len(by_themselves) > 1:
        console.print()
        console.print(f"each of the {len(by_themselves)} pods without a group is judged by itself")


def _names(pods: Sequence[Wanted]) -> str:
    """The names of pods that ask the same, some of many."""
    names = list(dict.fromkeys(pod.name for pod in pods))
    more = len(names) - SHOWN_NAMES
    return ", ".join([*names[:SHOWN_NAMES], *([f"{more:,} more"] if more > 0 else [])])
