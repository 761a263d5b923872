"""``gpu-topology unblock``: whom to evict so that a waiting pod gets a guaranteed place."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import pod_completions
from scheduler_extender.cli.inputs import one_of
from scheduler_extender.cli.options import PodNamespaceOption, Source, TextOption


def unblock(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    evict: Annotated[
        bool, typer.Option("--evict", help="Carry the plan out, with your own rights.")
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="SECONDS", help="With --evict: for how long the place is reserved."
        ),
    ] = 600,
    *,
    source: Source,
) -> None:
    """Say whom to evict so that a waiting pod can run.

    POD is the name of a waiting pod, or NAMESPACE/NAME. The command looks for the cheapest set of
    evictions; each of the evicted pods has a guaranteed place elsewhere, or is named as lost. It
    needs the rights to list nodes, gputopologies, and the pods and PodDisruptionBudgets of all
    namespaces. With --evict it reserves the place and evicts the pods through the Eviction API: the
    ClusterRole gpu-topology-unblocker has all these rights. Exits with 1 where no pod is worth
    evicting.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    if source.cluster is not None and evict:
        raise BadInputError("--evict: nobody can be evicted from a cluster file (--cluster)")
    from scheduler_extender.cli.unblock import plan

    plan(pod, namespace, source, keep, evict=evict, as_json=as_json)
