"""Finds the cluster that a command reads, as kubectl finds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import log_json

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer


def context_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of the kubeconfig's contexts that begin with ``incomplete``."""
    try:
        path = path_of(context.params.get("kubeconfig"))
        names = [] if path is None else [str(each["name"]) for each in _contexts(path)[0]]
    except Exception:  # noqa: BLE001 (nothing to offer; the command itself will say what is wrong)
        return []
    return [name for name in names if name.startswith(incomplete)]


ContextOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Context of the kubeconfig. Default: the current one.",
        autocompletion=context_completions,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The API server that a command uses, and the user's credentials for it."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Default: $KUBECONFIG, ~/.kube/config, then the cluster around the command.",
        ),
    ] = None
    context: ContextOption = None


@contextmanager
def asking(access: Access) -> Iterator[tuple[ApiServer, str]]:
    """Yield the API server and the context's namespace, and close the connection at the end.

    A failed request inside the block raises :class:`BadInputError`, too.
    """
    import msgspec

    from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer

    log_json(quiet=True)  # warnings about unreadable objects do not belong into the answer
    where = path_of(access.kubeconfig)
    try:
        if where is None:
            api, namespace = ApiServer.in_cluster(), "default"
        else:
            api = ApiServer.from_kubeconfig(where, access.context)
            namespace = _namespace(where, access.context)
    except ApiFailure as error:
        missing = "neither $KUBECONFIG nor ~/.kube/config exists; give --kubeconfig FILE"
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            missing += f" ({error})"
        raise BadInputError(missing if where is None else str(error)) from error
    try:
        yield api, namespace
    except ApiFailure as error:
        hint = ""
        if isinstance(error, ApiError) and error.status in (401, 403):
            hint = (
                " (you need permission to get and list pods and gputopologies; --forward asks "
                "the extender instead)"
            )
        raise BadInputError(f"{error}{hint}") from error
    except msgspec.DecodeError as error:
        raise BadInputError(f"the server is not a Kubernetes API server: {error}") from error
    finally:
        api.close()


def path_of(given: Path | None) -> str | None:
    """Return the path of the kubeconfig to use; None if there is none."""
    if given is not None:
        return str(given)
    named = os.environ.get("KUBECONFIG", "")
    if named:
        return named  # of several files the first one with a value counts, as for kubectl
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None


def usual_namespace(access: Access) -> str:
    """Return the context's namespace, without a request to the API server.

    The result is "default" if no kubeconfig can be read.
    """
    where = path_of(access.kubeconfig)
    try:
        return "default" if where is None else _namespace(where, access.context)
    except Exception:  # noqa: BLE001 (no option has asked for a kubeconfig)
        return "default"


def _namespace(path: str, context: str | None) -> str:
    contexts, current = _contexts(path)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def _contexts(path: str) -> Any:
    """Return the contexts of a kubeconfig, and the current one."""
    from kubernetes import config

    listed: Callable[[str], Any] = config.list_kube_config_contexts
    return listed(path)
