"""The command line: ``commands`` has all commands, one file each.

``options`` has the options that several commands share, ``inputs`` reads what the user gives.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script ``gpu-topology``."""
    from scheduler_extender.cli.commandline import run
    from scheduler_extender.cli.commands import app

    run(app, "gpu-topology")


def kubectl_plugin() -> NoReturn:
    """The console script that kubectl runs as ``kubectl gpu-topology``."""
    from scheduler_extender.cli.commandline import run
    from scheduler_extender.cli.commands import plugin
    from scheduler_extender.cli.completion import COMPLETE

    if sys.argv[1:2] == [COMPLETE]:
        del sys.argv[1]
        kubectl_completion()
        sys.exit(0)
    run(plugin, "kubectl gpu-topology")


def kubectl_completion() -> None:
    """The console script that kubectl runs to complete the words of ``kubectl gpu-topology``."""
    from scheduler_extender.cli.commands import plugin
    from scheduler_extender.cli.completion import complete_for_kubectl

    sys.stdout.write(complete_for_kubectl(plugin, sys.argv[1:]))
