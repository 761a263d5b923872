"""Which cluster a command asks, found as kubectl finds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import log_json

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer


class Chosen(Protocol):
    """Which cluster somebody has chosen; None where kubectl's own choice is meant."""

    @property
    def kubeconfig(self) -> Path | None:
        """The kubeconfig's path."""
        ...

    @property
    def context(self) -> str | None:
        """The context's name."""
        ...


def api_server(access: Chosen) -> tuple[ApiServer, str]:
    """The API server, which the caller closes, and the namespace that the context names. Raises
    :class:`BadInputError`."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    found = path_of(access.kubeconfig)
    try:
        if found is None:
            return ApiServer.in_cluster(), "default"
        return ApiServer.from_kubeconfig(found, access.context), _namespace(found, access.context)
    except ApiFailure as error:
        if found is None:
            missing = "neither $KUBECONFIG nor ~/.kube/config is there: give --kubeconfig FILE"
            raise BadInputError(f"{missing} (or run it in a pod; {error})") from error
        raise BadInputError(str(error)) from error


@contextmanager
def asking(access: Chosen) -> Iterator[tuple[ApiServer, str]]:
    """The API server, and the namespace that the context names; closed in the end.

    What it refuses is bad input, too. Raises :class:`BadInputError`.
    """
    from topology.kubeapi.apiserver import ApiError, ApiFailure

    log_json(quiet=True)  # an object that cannot be read is no part of the answer
    api, namespace = api_server(access)
    try:
        yield api, namespace
    except ApiFailure as error:
        hint = ""
        if isinstance(error, ApiError) and error.status in (401, 403):
            hint = (
                " (needed are the rights to get and list pods and gputopologies; --admin URL asks "
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


def _namespace(path: str, context: str | None) -> str:
    contexts, current = _contexts(path)
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def contexts_of(kubeconfig: Path | None) -> list[str]:
    """The names of a kubeconfig's contexts; none where there is no kubeconfig. Raises whatever a
    bad file raises."""
    found = path_of(kubeconfig)
    return [] if found is None else [str(each["name"]) for each in _contexts(found)[0]]


def _contexts(path: str) -> Any:
    """The contexts of a kubeconfig, and the current one."""
    from kubernetes import config

    listed: Callable[[str], Any] = config.list_kube_config_contexts
    return listed(path)
