"""Which cluster a command asks, found as kubectl finds it."""

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
    """Contexts of the kubeconfig whose names begin so."""
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
        help="Context of the kubeconfig. Without it: the current one.",
        autocompletion=context_completions,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which API server is asked, and as whom."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Without it: $KUBECONFIG, then ~/.kube/config, then the cluster in which the "
            "command runs.",
        ),
    ] = None
    context: ContextOption = None


@contextmanager
def asking(access: Access) -> Iterator[tuple[ApiServer, str]]:
    """The API server, and the namespace that the context names; closed in the end.

    What it refuses is bad input, too. Raises :class:`BadInputError`.
    """
    import msgspec

    from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer

    log_json(quiet=True)  # an object that cannot be read is no part of the answer
    where = path_of(access.kubeconfig)
    try:
        if where is None:
            api, namespace = ApiServer.in_cluster(), "default"
        else:
            api = ApiServer.from_kubeconfig(where, access.context)
            namespace = _namespace(where, access.context)
    except ApiFailure as error:
        missing = "neither $KUBECONFIG nor ~/.kube/config is there: give --kubeconfig FILE"
        in_pod = f"{missing} (or run it in a pod; {error})"
        raise BadInputError(in_pod if where is None else str(error)) from error
    try:
        yield api, namespace
    except ApiFailure as error:
        hint = ""
        if isinstance(error, ApiError) and error.status in (401, 403):
            hint = (
                " (needed are the rights to get and list pods and gputopologies; --forward asks "
                "the extender instead)"
            )
        raise BadInputError(f"{error}{hint}") from error
    except msgspec.DecodeError as error:
        raise BadInputError(f"what answers there is no Kubernetes API server: {error}") from error
    finally:
        api.close()


def path_of(given: Path | None) -> str | None:
    """The kubeconfig that is meant; None where there is none."""
    if given is not None:
        return str(given)
    named = os.environ.get("KUBECONFIG", "")
    if named:
        return named  # of several files the first that says something counts, as with kubectl
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None


def usual_namespace(access: Access) -> str:
    """The namespace that the context names, where the API server itself is not asked; "default"
    where no kubeconfig can be read."""
    where = path_of(access.kubeconfig)
    try:
        return "default" if where is None else _namespace(where, access.context)
    except Exception:  # noqa: BLE001 (nobody has asked for a kubeconfig)
        return "default"


def _namespace(path: str, context: str | None) -> str:
    contexts, current = _contexts(path)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def _contexts(path: str) -> Any:
    """The contexts of a kubeconfig, and the current one."""
    from kubernetes import config

    listed: Callable[[str], Any] = config.list_kube_config_contexts
    return listed(path)
