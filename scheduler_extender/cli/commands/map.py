"""``gpu-topology map``: every node's GPUs as cells on the terminal, or the map in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    SelectorOption,
    WatchOption,
    Where,
    form_of,
)


def map_(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Open the extender's map in the browser, over kubectl port-forward, until Ctrl-C.",
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """Draw every node's GPUs: free, held, stranded or sick.

    Each GPU is its index and a letter, with colours on a terminal; a legend stands below. Nodes
    that look alike share a line where there are many; -o wide gives each its own. The command needs
    the rights to list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if
    no node has GPUs.
    """
    form = form_of(output)
    if open_ and where.cluster is not None:
        raise BadInputError("--open and --cluster: allowed is one of them, a file has no extender")
    if open_:
        from scheduler_extender.cli.forwarding import open_map

        open_map(where.access, where.system)
    from scheduler_extender.cli.map import draw
    from scheduler_extender.cli.nodes import told
    from scheduler_extender.cli.source import answer_from

    answer_from(
        where,
        lambda look: told(look, selector, draw, devices=True),
        form,
        watch=watch,
        namespace=namespace,
    )
