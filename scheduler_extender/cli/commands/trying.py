"""The declarations of the commands to try it with: ``import``, ``machines``, ``demo``, ``play``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import machine_completions
from scheduler_extender.cli.inputs import (
    check_node_name,
    cluster_file,
    folder,
    one_of,
    same,
    standard_output,
)
from scheduler_extender.cli.kubeconfig import Access


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", hidden=True),  # the help text below describes it
    ],
    node: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the node that the text comes from.")
    ],
    product: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Product of the GPUs, such as 'NVIDIA A100-SXM4-40GB'."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Memory of each GPU, such as 40960Mi.",
        ),
    ] = None,
    allocator: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="How the device plugin picks GPUs: best-effort, distributed, packed or any.  "
            "[default: best-effort]",
        ),
    ] = None,
) -> None:
    """Convert output of nvidia-smi or NCCL to a GPUTopology.

    FILE is the output of `nvidia-smi topo -m`, or NCCL's topology as XML; - reads standard input.

    Standard output gets the object as YAML, ready for a cluster file. Standard error says what the
    text does not tell.
    """
    check_node_name("--node", node)
    if allocator is not None:
        one_of("--allocator", allocator, same("best-effort", "distributed", "packed", "any"))
    from scheduler_extender.cli.machines import print_pasted

    print_pasted(file, node, product, memory, allocator)


def machines(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MACHINE", hidden=True, autocompletion=machine_completions),
    ] = None,
) -> None:
    """List the machines of the catalogue, or print one of them.

    MACHINE is a name from the list. Cluster files and `--cluster MACHINE=COUNT` take it, too.
    """
    from scheduler_extender.cli.machines import print_all, print_one

    if name is None:
        print_all()
    else:
        print_one(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """The pods of the demo, its cluster, and the folder for its results."""

    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the pictures and the cluster file.")
    ] = Path("out")
    pods: Annotated[int, typer.Option(metavar="COUNT", help="Number of pods.", min=1, max=5000)] = (
        200
    )
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random pods.")] = 1
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file instead of the bundled one."),
    ] = None


def demo(*, placing: Placing) -> None:
    """Place pods on a bundled cluster, and show the result.

    The extender is the real one; kubelets are emulated.

    The cluster has 64 nodes. For comparison, the same pods are also placed by kube-scheduler's
    rules alone.
    """
    from scheduler_extender.demo import FILES, run_demo
    from scheduler_extender.files.clusterfile import ClusterFileError

    out, cluster = placing.out, placing.cluster
    folder("--out", out)
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadInputError(f"--out: {out}: Permission denied")
    for made in (out / name for name in FILES):
        if made.is_dir():
            raise BadInputError(f"--out: {made}: Is a directory")
    try:
        code = run_demo(standard_output(), out, placing.pods, placing.seed, cluster)
    except ClusterFileError as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)


def play(
    *,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file to play, or machines (hgx-h100-8=2)."),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove all played nodes, also of a play that still runs."),
    ] = False,
    beside_gpu_nodes: Annotated[
        bool,
        typer.Option("--beside-gpu-nodes", help="Play also in a cluster that has GPU nodes."),
    ] = False,
    access: Access,
) -> None:
    """Play GPU nodes in a cluster that has none, until Ctrl-C.

    The cluster needs the CustomResourceDefinition of GPUTopology, and nothing else of ours.

    The nodes have the taint gpu-topology.io/played. Pods that are bound there count as running.
    The annotation gpu-topology.io/play-seconds ends a pod after so many seconds.
    """
    if remove == bool(cluster):
        raise BadInputError("either --cluster or --remove is needed")
    from scheduler_extender.cli.play import play_until_stopped, remove_played

    if cluster is None:
        remove_played(access)
        return
    content = cluster_file(cluster)
    for node in (record.topology for record in content.records):
        if not node.resources:
            raise BadInputError(f"node {node.name}: it serves no GPU resource to play")
    play_until_stopped(content, access, beside=beside_gpu_nodes)
