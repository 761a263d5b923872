"""Shell completion: names from the cluster, and what kubectl asks of a plugin.

kubectl runs ``kubectl_complete-gpu_topology`` with the words typed so far, the last of them perhaps
empty, and expects a choice on each line, and on the last line a colon and a number: 0 lets the
shell offer files, 4 forbids it (cobra's ``ShellCompDirective``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer

from scheduler_extender.cli.kubeconfig import Access, asking

TIMEOUT = 2.0  # seconds: somebody has pressed a key and waits
MOST = 500  # names that are asked for
OF_FILES = ("check",)  # commands whose argument is a file
PROGRAM = "kubectl-gpu_topology"
# What :data:`PROGRAM` completes words after, as programs of kubectl's own kind do.
COMPLETE = "__complete"
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
        from topology.kubeapi.apiserver import path

        meant = context.params.get("namespace") or usual
        return path("/api/v1/namespaces", meant, "pods")

    return _names(context, incomplete, where)


def _names(context: typer.Context, incomplete: str, where: Callable[[str], str]) -> list[str]:
    """Names of objects that begin so; none where the cluster cannot be asked at once.

    Whatever is wrong is told by the command itself, once it runs.
    """
    try:
        said = context.params.get
        with asking(Access(kubeconfig=said("kubeconfig"), context=said("context"))) as (api, usual):
            body = api.get(where(usual), (("limit", str(MOST)),), timeout=TIMEOUT)
        items = json.loads(body).get("items") or ()
        names = sorted(str(item["metadata"]["name"]) for item in items)
    except Exception:  # noqa: BLE001
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_for_kubectl(plugin: typer.Typer, words: list[str]) -> str:
    """What ``kubectl_complete-gpu_topology`` prints for these words, the last one unfinished."""
    from typer._completion_classes import BashComplete

    command = typer.main.get_command(plugin)
    *before, unfinished = words or [""]
    items = BashComplete(command, {}, PROGRAM, "").get_completions(before, unfinished)
    choices = [item.value for item in items if item.value.strip()]
    files = not choices and _wants_file(command, words)
    return "\n".join([*choices, f":{FILES if files else NO_FILES}", ""])


def _wants_file(group: Any, words: list[str]) -> bool:
    """Whether the unfinished word is a file's: the value of such an option, or of ``check``."""
    command = group.commands.get(words[0]) if words else None
    if command is None or len(words) < 2:
        return False
    if words[-2].startswith("-"):
        return any(words[-2] in each.opts and each.metavar == "FILE" for each in command.params)
    return words[0] in OF_FILES
