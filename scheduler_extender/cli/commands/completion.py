"""``kubectl gpu-topology completion``: the program that kubectl asks to complete words."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import COMPLETE, PROGRAM

HOOK = "kubectl_complete-gpu_topology"
SCRIPT = f"""#!/bin/sh
# kubectl runs this to complete the words of kubectl gpu-topology.
exec {PROGRAM} {COMPLETE} "$@"
"""


def completion() -> None:
    """Let kubectl complete the words of kubectl gpu-topology.

    kubectl asks the program kubectl_complete-gpu_topology, which krew installs with no plugin. This
    writes it into the folder of the PATH in which kubectl-gpu_topology is. It goes on working when
    the plugin is upgraded; remove it together with the plugin.
    """
    beside = shutil.which(PROGRAM)
    if beside is None:
        raise BadInputError(f"{PROGRAM} is not on the PATH: install the plugin first")
    hook = Path(beside).parent / HOOK
    try:
        if hook.exists() and hook.read_bytes() != SCRIPT.encode():
            typer.echo(f"{hook} is there already, and is left as it is")
            return
        hook.write_text(SCRIPT)
        hook.chmod(0o755)
    except OSError as error:
        raise BadInputError(f"{hook}: {error.strerror}") from error
    typer.echo(f"{hook} is written: kubectl completes the words of kubectl gpu-topology now")
