"""``gpu-topology nodes``: every node with GPUs, how they stand, and what it can still promise."""

from __future__ import annotations

from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    SelectorOption,
    WatchOption,
    Where,
    form_of,
)


def nodes(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """List the nodes with GPUs, and what they can still promise.

    Stranded is a free GPU without an NVLink to another free one. Pairs, quads and whole say how
    many more pods the node can promise GPUs: pods that ask for two or four GPUs joined by NVLink,
    or for all GPUs of the node. Each number is for that kind alone. The command needs the rights to
    list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if no node has
    GPUs.
    """
    form = form_of(output)
    from scheduler_extender.cli.nodes import draw, told
    from scheduler_extender.cli.source import answer_from

    answer_from(
        where, lambda look: told(look, selector, draw), form, watch=watch, namespace=namespace
    )
