"""``gpu-topology node``: one node's GPUs, and taking pods again after refusals.

With ``--forward`` the extender tells all that it knows of the node, as YAML for scripts.

``--resume`` reaches the extender by an annotation on the Node (:data:`.RESUME`), not by a request
to its port for people, which changes nothing: the API server asks who writes; every replica of the
extender sees the annotation; and it is still there when the extender starts anew and reads the
failed pods again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli import nodetext
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import node_completions
from scheduler_extender.cli.forwarding import forwarded
from scheduler_extender.cli.inputs import check_node_name
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.cli.nodewords import node_named
from scheduler_extender.cli.options import (
    ListedNamespaceOption,
    OutputOption,
    WatchOption,
    Where,
)
from scheduler_extender.cli.outputs import Told, as_yaml, form_of
from scheduler_extender.cli.source import Look, answer_from

TIMEOUT = 10.0
"""Seconds."""


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
    if resume:
        _resume(name, where.access)
        typer.echo(f"{name} takes GPU pods again")
    elif where.forward:
        with forwarded("--forward", where.access, where.system) as port:
            found = port.get(f"/v1/nodes/{quote(name, safe='')}", dict[str, Any])
        if found is None:
            raise BadInputError(f"the extender knows of no node {name}")
        found.pop("record", None)  # kubectl get gputopo shows it
        typer.echo(as_yaml(found).rstrip())
    else:
        answer_from(where, lambda look: told(look, name), form, watch=watch, namespace=namespace)


def told(look: Look, name: str) -> Told:
    """The answer. Raises :class:`BadInputError` where there is no such node with GPUs."""
    state = node_named(look, name)
    return Told(
        state.as_json(devices=True),
        [f"node/{name}"],
        lambda console, wide: nodetext.draw(console, state, look.today, wide=wide),
        look.notes,
    )


def _resume(name: str, access: Access) -> None:
    from topology.kubeapi.apiserver import path

    body = {"metadata": {"annotations": {RESUME: datetime.now(UTC).isoformat()}}}
    try:
        with asking(access) as (api, _):
            where = path("/api/v1/nodes", name)
            api.patch(where, msgspec.json.encode(body), timeout=TIMEOUT)
    except BadInputError as error:
        raise BadInputError(f"{name} was not resumed: {error}") from error
