"""Shell completion with names from the cluster, also for kubectl's plugin interface.

kubectl runs ``kubectl_complete-gpu_topology`` with the words typed so far; the last word may be
empty. kubectl expects one choice on each line, and a colon and a number on the last line. The
number 0 lets the shell offer files, and 4 forbids it (cobra's ``ShellCompDirective``).
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import typer

from scheduler_extender.cli.kubeconfig import Access, asking

TIMEOUT = 2.0  # seconds; short, because a user has pressed a key and waits
MOST = 500  # names that are requested
PROGRAM = "kubectl-gpu_topology"
# If this is the first word, :data:`PROGRAM` completes the words after it, as programs of cobra do.
COMPLETE = "__complete"
FILES, NO_FILES = 0, 4
# The columns of each list, with - for a blank. To ask the lists would load the model.
COLUMNS = {
    "check": "node verdict score may-hand-out remarks",
    "idle": "pod idle node gpus resource containers since would-unblock",
    "nodes": "node gpus free stranded assumed reserved in-use sick pairs quads whole machine "
    "reported",
    "pods": "pod node gpus request has verdict runs",
    "waiting": "pod waits request nodes why",
}


def node_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of nodes with a GPUTopology record that begin with ``incomplete``."""
    return _names(context, incomplete, lambda _: "/apis/gpu-topology.io/v1alpha1/gputopologies")


def beginning(words: Iterable[str], incomplete: str) -> list[str]:
    """Return the words that begin with ``incomplete``."""
    return [word for word in words if word.startswith(incomplete)]


def machine_completions(incomplete: str) -> list[str]:
    """Return names of machines of the catalogue that begin with ``incomplete``."""
    from topology.machines import MACHINES

    return beginning(MACHINES, incomplete)


def column_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of columns by which the command sorts that begin with ``incomplete``."""
    return beginning(COLUMNS[context.info_name or ""].split(), incomplete)


def namespace_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of namespaces that begin with ``incomplete``."""
    return _names(context, incomplete, lambda _: "/api/v1/namespaces")


def pod_completions(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of pods of the given or usual namespace that begin with ``incomplete``."""

    def where(usual: str) -> str:
        from topology.kubeapi.apiserver import path

        meant = context.params.get("namespace") or usual
        return path("/api/v1/namespaces", meant, "pods")

    return _names(context, incomplete, where)


def _names(context: typer.Context, incomplete: str, where: Callable[[str], str]) -> list[str]:
    """Return names of objects that begin with ``incomplete``; empty if the cluster cannot be read.

    The command itself reports the error once it runs.
    """
    try:
        said = context.params.get
        with asking(Access(kubeconfig=said("kubeconfig"), context=said("context"))) as (api, usual):
            body = api.get(where(usual), (("limit", str(MOST)),), timeout=TIMEOUT)
        items = json.loads(body).get("items") or ()
        names = sorted(str(item["metadata"]["name"]) for item in items)
    except Exception:  # noqa: BLE001
        return []
    return beginning(names, incomplete)


def complete_for_kubectl(plugin: typer.Typer, words: list[str]) -> str:
    """Return the output of ``kubectl_complete-gpu_topology`` for these words.

    The last word is unfinished.
    """
    from typer._completion_classes import BashComplete

    command = typer.main.get_command(plugin)
    *before, unfinished = words or [""]
    items = BashComplete(command, {}, PROGRAM, "").get_completions(before, unfinished)
    choices = [item.value for item in items if item.value.strip()]
    files = not choices and _wants_file(command, words)
    return "\n".join([*choices, f":{FILES if files else NO_FILES}", ""])


def _wants_file(group: Any, words: list[str]) -> bool:
    """Check whether the unfinished word is a file: an option's value or an argument."""
    command = group.commands.get(words[0]) if words else None
    if command is None or len(words) < 2:
        return False
    if words[-2].startswith("-"):
        return any(words[-2] in each.opts and each.metavar == "FILE" for each in command.params)
    files = [each for each in command.params if each.metavar == "FILE"]
    return any(each.param_type_name == "argument" for each in files)
