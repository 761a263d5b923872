"""``gpu-topology demo``: the real service on a bundled cluster, with emulated kubelets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_ports, folder, standard_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Which pods are placed, where, and what is left of it."""

    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the pictures and the cluster file.")
    ] = Path("out")
    pods: Annotated[
        int, typer.Option(metavar="COUNT", help="How many pods to place.", min=1, max=5000)
    ] = 200
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Seed that the pods are drawn from.")
    ] = 1
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file to take in place of the bundled one."),
    ] = None
    each: Annotated[bool, typer.Option(help="List every placed pod, too.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Whether the extender is only left running, and on which ports."""

    serve: Annotated[
        bool, typer.Option(help="Place no pods; leave the extender running over the cluster.")
    ] = False
    port: Annotated[
        int, typer.Option(metavar="PORT", help="With --serve: port for kube-scheduler.")
    ] = 8888
    admin_port: Annotated[
        int, typer.Option(metavar="PORT", help="With --serve: port for people.")
    ] = 8889


def demo(*, placing: Placing, serving: Serving) -> None:
    """Place pods on a bundled cluster and show what happened.

    The cluster has 64 nodes. The extender is the real one, over HTTP; the kubelets are emulated.
    The same pods are placed without it, too, as kube-scheduler alone does.
    """
    from scheduler_extender.demo import CLUSTER_FILE, PICTURE, STOCK_PICTURE, run_demo, serve_demo
    from scheduler_extender.files.clusterfile import ClusterFileError
    from scheduler_extender.http.servers import PortError

    out, cluster = placing.out, placing.cluster
    if serving.serve:
        check_ports(serving.port, serving.admin_port)
    else:
        folder("--out", out)
        if not os.access(out, os.W_OK | os.X_OK):
            raise BadInputError(f"--out: {out}: Permission denied")
        for made in (out / PICTURE, out / STOCK_PICTURE, out / CLUSTER_FILE):
            if made.is_dir():
                raise BadInputError(f"--out: {made}: Is a directory")
    try:
        if serving.serve:
            code = serve_demo(standard_output(), cluster, serving.port, serving.admin_port)
        else:
            pods, seed, each = placing.pods, placing.seed, placing.each
            code = run_demo(standard_output(), out, pods, seed, cluster, each=each)
    except (ClusterFileError, PortError) as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)
