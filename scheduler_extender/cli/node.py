"""``gpu-topology node``: what the extender knows of a node, and taking pods again after refusals.

``--resume`` reaches the extender by an annotation on the Node (:data:`.RESUME`), not by a request
to its admin port: that port knows nobody and answers everybody, so it must change nothing; the API
server asks who writes; every replica of the extender sees the annotation; and it is still there
when the extender starts anew and reads the failed pods again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_node_name

ADMIN = "http://127.0.0.1:8889"
FORWARD = "kubectl -n gpu-topology-system port-forward service/gpu-topology-admin 8889"
"""What makes the admin port of an installed extender answer at :data:`ADMIN`."""
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
            help="With --resume: the cluster. Without it: the one in which the command runs.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Context of the kubeconfig. Without it: the current one."
        ),
    ] = None,
    admin: Annotated[
        str, typer.Option(metavar="URL", help="The extender's admin port, forwarded to here.")
    ] = ADMIN,
) -> None:
    """Show what the extender knows of a node, or resume it.

    NODE is the name of a node. A node whose kubelet refused pods in a row takes none for a while;
    to resume it is to let it take pods again. Without --resume the command asks the extender's
    admin port, which has to be forwarded (kubectl port-forward), and prints what it answers as
    YAML. Which pods have which exclusive CPUs stands in the record (kubectl get gputopo NODE -o
    yaml, status.exclusive). With --resume it writes the annotation
    gpu-topology.io/resume to the Node, which needs the right to patch nodes.
    """
    check_node_name("NODE", name)
    if resume:
        _resume(name, kubeconfig, context)
        typer.echo(f"{name} takes GPU pods again")
    else:
        _show(_asked(admin.rstrip("/"), name))


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


def _asked(admin: str, name: str) -> dict[str, Any]:
    """What the extender answers about a node."""
    import urllib3

    if not admin.startswith(("http://", "https://")):
        raise BadInputError(f"--admin: {admin}: a URL is needed, as {ADMIN}")
    url = f"{admin}/v1/nodes/{quote(name, safe='')}"
    try:
        answer = urllib3.request("GET", url, timeout=TIMEOUT, retries=False)
    except urllib3.exceptions.NewConnectionError as error:
        raise BadInputError(
            f"--admin: {admin}: nobody listens there; forward the port: {FORWARD}"
        ) from error
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise BadInputError(f"--admin: {admin}: {error}") from error
    if answer.status == 404:
        raise BadInputError(f"the extender knows of no node {name}")
    try:
        found = msgspec.json.decode(answer.data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadInputError(f"--admin: {admin} is not the extender's admin port") from error
    if answer.status != 200:
        raise BadInputError(f"--admin: {admin} answers {answer.status}")
    return found


def _show(found: dict[str, Any]) -> None:
    import yaml

    found.pop("record", None)  # kubectl get gputopo shows it
    typer.echo(yaml.safe_dump(found, sort_keys=False, width=100, allow_unicode=True).rstrip())
