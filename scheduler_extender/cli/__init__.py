"""The command line: ``main`` has the commands, one file each; ``inputs`` what they take."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script ``gpu-topology``."""
    from scheduler_extender.cli.main import main as commands

    commands()
