"""Shell completion: names from the cluster, and what kubectl asks of a plugin.

kubectl runs ``kubectl_complete-gpu_topology`` with the words typed so far, the last of them perhaps
empty, and expects a choice on each line, with its description after a tab, and on the last line a
colon and a number: 0 lets the shell offer files, 4 forbids it (cobra's ``ShellCompDirective``).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer

TIMEOUT = 2.0
"""Seconds: somebody has pressed a key and waits."""
MOST = 500
FILES, NO_FILES = 0, 4


def node_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Nodes whose names begin so: those with a GPUTopology record."""
    return _names(context, incomplete, lambda _: "/apis/gpu-topology.io/v1alpha1/gputopologies")


def namespace_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Namespaces whose names begin so."""
    return _names(context, incomplete, lambda _: "/api/v1/namespaces")


def pod_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Pods of the namespace that is meant whose names begin so."""

    def where(usual: str) -> str:
        from topology.kubeapi.paths import path

        meant = context.params.get("namespace") or usual
        return path("/api/v1/namespaces", meant, "pods")

    return _names(context, incomplete, where)


def context_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Contexts of the kubeconfig whose names begin so."""
    from scheduler_extender.cli.kubeconfig import contexts_of

    try:
        found = contexts_of(context.params.get("kubeconfig"))
    except Exception:  # noqa: BLE001 (nothing to offer; the command itself will say what is wrong)
        return []
    return [name for name in found if name.startswith(incomplete)]


def _names(context: typer.Context, incomplete: str, where: Callable[[str], str]) -> list[str]:
    """Names of objects that begin so; none where the cluster cannot be asked at once.

    Whatever is wrong is told by the command itself, once it runs.
    """
    from scheduler_extender.cli.kubeconfig import asking

    given: Path | None = context.params.get("kubeconfig")
    try:
        with asking(given, context.params.get("context")) as (api, usual):
            return [name for name in _listed(api, where(usual)) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001
        return []


def _listed(api: ApiServer, collection: str) -> list[str]:
    import msgspec

    query = (("limit", str(MOST)),)
    found: dict[str, Any] = msgspec.json.decode(
        api.get(collection, query, timeout=TIMEOUT), type=dict[str, Any]
    )
    return sorted(str(item["metadata"]["name"]) for item in found.get("items") or ())


def complete_for_kubectl(plugin: typer.Typer, words: list[str]) -> str:
    """What ``kubectl_complete-gpu_topology`` prints for these words, the last one unfinished."""
    from typer.completion import completion_init

    completion_init()
    variable = "_KUBECTL_GPU_TOPOLOGY_COMPLETE"
    *before, last = words or [""]
    line = shlex.join(["kubectl-gpu_topology", *before]) + " " + (shlex.quote(last) if last else "")
    # typer answers fish with "choice<tab>description" on each line, which is what kubectl wants.
    given = {
        variable: "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    said = io.StringIO()
    with _environment(given), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        typer.main.get_command(plugin).main(
            args=[], prog_name="kubectl-gpu_topology", complete_var=variable, standalone_mode=False
        )
    choices = [line for line in said.getvalue().splitlines() if line.strip()]
    return "\n".join([*choices, f":{NO_FILES if choices else FILES}", ""])


@contextlib.contextmanager
def _environment(given: dict[str, str]) -> Any:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
