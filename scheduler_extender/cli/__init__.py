"""The command line: ``commands`` has all commands, one file each.

``options`` has the options that several commands share, ``inputs`` reads what the user gives.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script ``gpu-topology``."""
    from scheduler_extender.cli.commands import main as commands

    commands()


def kubectl_plugin() -> NoReturn:
    """The console script ``kubectl-gpu_topology``."""
    from scheduler_extender.cli.commands import kubectl_plugin as commands

    commands()


def kubectl_completion() -> None:
    """The console script ``kubectl_complete-gpu_topology``."""
    from scheduler_extender.cli.commands import kubectl_completion as commands

    commands()
