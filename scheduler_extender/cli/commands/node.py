"""``gpu-topology node``: one node's GPUs, and taking pods again after refusals."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler_extender.cli.completion import node_completions
from scheduler_extender.cli.inputs import check_node_name
from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    WatchOption,
    Where,
    form_of,
)


def node(
    name: Annotated[
        str, typer.Argument(metavar="NODE", hidden=True, autocompletion=node_completions)
    ],
    *,
    output: OutputOption = "table",
    watch: WatchOption = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Forgive the node's refusals so far: it takes GPU pods again."
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    where: Where,
) -> None:
    """Show a node's GPUs, who holds them, and their links.

    NODE is the name of a node. The command needs the rights to list nodes, pods and gputopologies,
    and says what it may not see. A node whose kubelet refused pods in a row takes none for a while;
    to resume it is to let it take pods again: --resume writes the annotation gpu-topology.io/resume
    to the Node, which needs the right to patch nodes. Which pods have which exclusive CPUs stands
    in the record (kubectl get gputopo NODE -o yaml, status.exclusive).
    """
    check_node_name("NODE", name)
    form = form_of(output)
    from scheduler_extender.cli.node import forgive, print_all, told
    from scheduler_extender.cli.source import answer_from

    if resume:
        forgive(name, where.access)
    elif where.forward:
        print_all(name, where)
    else:
        answer_from(where, lambda look: told(look, name), form, watch=watch, namespace=namespace)
