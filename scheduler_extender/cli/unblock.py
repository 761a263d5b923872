"""``gpu-topology unblock``: whom to evict so that a waiting pod gets a guaranteed place.

The plan is the extender's; ``--evict`` carries it out (:mod:`.evictions`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from scheduler_extender.cli.adminport import ADMIN, Credentials, port_at
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.evictions import Waiting, carry_out
from scheduler_extender.cli.inputs import cluster_file, one_of
from scheduler_extender.cli.kubeconfig import Access, ContextOption, usual_namespace
from scheduler_extender.cli.options import ClusterOption, PodNamespaceOption, TextOption
from scheduler_extender.cli.source import described
from scheduler_extender.cli.suggestions import pod_meant
from scheduler_extender.harmless import one_line
from scheduler_extender.state.pods.keptplace import MAX_SECONDS
from scheduler_extender.told.unblocking import Unblocking, unblocking_of
from topology.core.devices import PodUid
from topology.core.placement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose plan is asked for, and in which cluster it is carried out."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Whose token to show to the admin port, and with --evict: the cluster. Without it "
            "--evict takes $KUBECONFIG, then ~/.kube/config, then the cluster in which the command "
            "runs.",
        ),
    ] = None
    context: ContextOption = None
    cluster: ClusterOption = None
    admin: Annotated[
        str, typer.Option(metavar="URL", help="The extender's admin port, forwarded to here.")
    ] = ADMIN
    credentials: Credentials


def unblock(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    evict: Annotated[
        bool, typer.Option("--evict", help="Carry the plan out, with your own rights.")
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="SECONDS", help="With --evict: for how long the place is kept."
        ),
    ] = 600,
    *,
    source: Source,
) -> None:
    """Say whom to evict so that a waiting pod can run.

    POD is the name of a waiting pod, or NAMESPACE/NAME. The command asks the extender's admin port,
    which has to be forwarded (kubectl port-forward) and asks for a token, or with --cluster a file,
    for the cheapest set of evictions; each of the evicted pods has a guaranteed place elsewhere, or
    is named as lost. With --evict it keeps the place and evicts the pods through the Eviction API,
    which needs the rights of the ClusterRole gpu-topology-unblocker. Exits with 1 where nobody is
    worth evicting.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    if not 30 <= keep <= MAX_SECONDS:
        raise BadInputError(f"--keep: allowed are 30 to {MAX_SECONDS:.0f} seconds, not {keep}")
    if source.cluster is not None and evict:
        raise BadInputError("--evict: nobody can be evicted from a cluster file (--cluster)")
    where, _, name = pod.rpartition("/")
    access = Access(kubeconfig=source.kubeconfig, context=source.context)
    usual = "default" if source.cluster is not None else usual_namespace(access)
    where = where or namespace or usual
    place = f"/v1/unblock/{quote(where, safe='')}/{quote(name, safe='')}"
    if source.cluster is not None:
        known = described(cluster_file(source.cluster), Verdict.EXPECTED)
        found, asked = unblocking_of(known, where, name), f"{source.cluster}:"
        there = ((each.namespace, each.name) for each in known.snapshot().pods)
        meant = pod_meant(where, name, there)
    else:
        port = port_at(source.admin, source.credentials, access, needed=not evict)
        found, asked, meant = port.get(place, Unblocking), "the extender knows of", ""
    if found is None:
        raise BadInputError(f"{asked} no pod {where}/{name} with GPUs{meant}")
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        typer.echo("\n".join(map(one_line, found.text)))
    plan, kept = found.plan, found.kept_place
    done = found.node or found.takes or kept is not None or plan is not None
    if evict and (kept is not None or (plan is not None and plan.steps)):
        waiting = Waiting(where, name, PodUid(found.uid), place)
        carry_out(found, waiting, port, keep, access)
    raise typer.Exit(0 if done else 1)
