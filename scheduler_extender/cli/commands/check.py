"""``gpu-topology check``: what every node of a cluster would answer to a pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.inputs import one_of, weakest
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import ListedNamespaceOption, WeakestOption


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
    as_json = one_of("--output", output, {"table": False, "json": True})
    least = weakest(require)
    from scheduler_extender.cli.check import judged
    from scheduler_extender.cli.podfiles import read_files
    from scheduler_extender.cli.source import look_once

    read = read_files([*(pods or ()), *(further.files or ())])
    look = look_once(cluster, further.access, namespace, least)
    raise typer.Exit(judged(read, look, as_json=as_json, strict=further.strict))
