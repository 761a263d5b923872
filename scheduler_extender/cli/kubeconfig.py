"""Which cluster a command asks, found as kubectl finds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler_extender.cli.commandline import BadInputError

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Without it: $KUBECONFIG, then ~/.kube/config, then the cluster in which the command "
        "runs.",
    ),
]


def api_server(kubeconfig: Path | None, context: str | None) -> tuple[ApiServer, str]:
    """The API server, and the namespace that the context names. Raises :class:`BadInputError`."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    found = _path(kubeconfig)
    try:
        if found is None:
            return ApiServer.in_cluster(), "default"
        return ApiServer.from_kubeconfig(found, context), _namespace(found, context)
    except ApiFailure as error:
        hint = "" if found else "; outside a cluster give --kubeconfig FILE"
        raise BadInputError(f"{error}{hint}") from error


def _path(given: Path | None) -> str | None:
    if given is not None:
        return str(given)
    named = os.environ.get("KUBECONFIG", "")
    if named:
        return named  # of several files the first that says something counts, as with kubectl
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None


def _namespace(path: str, context: str | None) -> str:
    from kubernetes import config

    listed: Callable[[str], Any] = config.list_kube_config_contexts
    contexts, current = listed(path)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")
