"""``gpu-topology check``: what every node of a cluster would answer to a pod."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scheduler_extender.cli import checktable
from scheduler_extender.cli.adminport import ContextOption
from scheduler_extender.cli.inputs import cluster_file, console, one_of, pod_file, tell
from scheduler_extender.cli.kubeconfig import KubeconfigOption, looked_at
from scheduler_extender.explain import answers, summary
from scheduler_extender.files.clusterfile import feed
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Settings
from scheduler_extender.terminal import show
from scheduler_extender.why.nearest import View
from scheduler_extender.why.rows import rows_of
from topology.core.placement import Verdict


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
    output: Annotated[str, typer.Option(metavar="FORM", help="table or json.")] = "table",
    require: Annotated[
        str,
        typer.Option(
            metavar="VERDICT",
            help="The weakest verdict on which a node takes a pod with required constraints: "
            "guaranteed or expected.",
        ),
    ] = "expected",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Whose pods are listed where you may not list those of all namespaces. Without "
            "it: the one of the context.",
        ),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Say for every node whether it would take a pod, and why not.

    POD is a file with a Pod, or with an object that has a pod template, such as a Job; - reads
    standard input. Exits with 1 if no node would take the pod.
    """
    weakest = one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    as_json = one_of("--output", output, {"json": True}, False, "table")
    asked = pod_file(pod)
    if cluster is not None:
        known = Cluster(lambda: 0.0, Settings(weakest, None, all_pods_known=False))
        feed(known, cluster_file(cluster))
        view = View(time.time())
    else:
        known, view, notes = looked_at(kubeconfig, context, namespace, weakest)
        for note in notes:
            tell(f"note: {note}")
    told = answers(
        known,
        known.cluster_facts(),
        asked.request,
        membership=asked.membership,
        destinations=asked.destinations,
    )
    rows = rows_of(asked.request, told, view)
    if as_json:
        answer = {"pod": asked.name, "asks": asked.text}
        typer.echo(json.dumps({**answer, "nodes": [row.as_json() for row in rows]}, indent=2))
    else:
        console.print(Text(asked.name, "bold"), Text(f"asks for {asked.text}"))
        show(console, checktable.table(rows), keys=3)
        console.print(summary(asked.request, told), highlight=False)
    raise typer.Exit(0 if any(answer.may_come for answer in told) else 1)
