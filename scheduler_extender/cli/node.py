"""``gpu-topology node``: what the extender knows of a node, and taking pods again after refusals.

``--resume`` reaches the extender by an annotation on the Node (:data:`.RESUME`), not by a request
to its admin port, which changes nothing: the API server asks who writes; every replica of the
extender sees the annotation; and it is still there when the extender starts anew and reads the
failed pods again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli.adminport import (
    ADMIN,
    CREATE_TOKEN,
    TOKEN_VARIABLE,
    AdminCaOption,
    AdminOption,
    AdminPort,
    ContextOption,
    TokenOption,
)
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_node_name

TIMEOUT = 10.0
"""Seconds."""


def node(
    name: Annotated[str, typer.Argument(metavar="NODE", hidden=True)],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Forgive the node's refusals so far: it takes GPU pods again."
        ),
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --resume: the cluster. Without --kubeconfig: the one in which the command "
            "runs. Without --resume: whose token to show to the admin port.",
        ),
    ] = None,
    context: ContextOption = None,
    admin: AdminOption = ADMIN,
    admin_ca: AdminCaOption = None,
    token: TokenOption = None,
) -> None:
    """Show what the extender knows of a node, or resume it.

    NODE is the name of a node. A node whose kubelet refused pods in a row takes none for a while;
    to resume it is to let it take pods again. Without --resume the command asks the extender's
    admin port, which has to be forwarded (kubectl port-forward) and asks for a token, and prints
    what it answers as YAML. Which pods have which exclusive CPUs stands in the record (kubectl get
    gputopo NODE -o yaml, status.exclusive). With --resume it writes the annotation
    gpu-topology.io/resume to the Node, which needs the right to patch nodes.
    """
    check_node_name("NODE", name)
    if resume:
        _resume(name, kubeconfig, context)
        typer.echo(f"{name} takes GPU pods again")
    else:
        token = token or token_of(kubeconfig, context)
        port = AdminPort(admin.rstrip("/"), admin_ca, token)
        found = port.get(f"/v1/nodes/{quote(name, safe='')}")
        if found is None:
            raise BadInputError(f"the extender knows of no node {name}")
        _show(found)


def _resume(name: str, kubeconfig: Path | None, context: str | None) -> None:
    from topology.kubeapi.apiserver import ApiFailure, ApiServer
    from topology.kubeapi.paths import path

    body = {"metadata": {"annotations": {RESUME: datetime.now(UTC).isoformat()}}}
    try:
        if kubeconfig is not None:
            api = ApiServer.from_kubeconfig(kubeconfig, context)
        else:
            api = ApiServer.in_cluster()
        where = path("/api/v1/nodes", name)
        api.patch(where, msgspec.json.encode(body), timeout=TIMEOUT)
    except ApiFailure as error:
        hint = "" if kubeconfig else "; outside a cluster give --kubeconfig PATH"
        raise BadInputError(f"{name} was not resumed: {error}{hint}") from error


def token_of(kubeconfig: Path | None, context: str | None, *, needed: bool = True) -> str | None:
    """The token that a kubeconfig has or gets, as from a plugin. Where it has none that is bad
    input if it is ``needed``, and else None."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    if kubeconfig is None:
        return None
    try:
        api = ApiServer.from_kubeconfig(kubeconfig, context)
        try:
            shown = api.authorization().values()
        finally:
            api.close()
    except ApiFailure as error:
        raise BadInputError(str(error)) from error
    tokens = [value.partition(" ")[2] for value in shown if value.lower().startswith("bearer ")]
    if not tokens and not needed:
        return None
    if not tokens:
        raise BadInputError(
            f"--kubeconfig: {kubeconfig} has no token; give --token, or set {TOKEN_VARIABLE}, to "
            f"what this prints: {CREATE_TOKEN}"
        )
    return tokens[0]


def _show(found: dict[str, Any]) -> None:
    import yaml

    found.pop("record", None)  # kubectl get gputopo shows it
    typer.echo(yaml.safe_dump(found, sort_keys=False, width=100, allow_unicode=True).rstrip())
