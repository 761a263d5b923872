"""The command line: ``commands`` declares the commands, ``NAME.py`` does the work of one.

A declaration has the options, the help and what can be checked at once. It imports the work when it
is called, since to import everything takes a second; short work stands in it. ``options`` has the
options that several commands share, ``inputs`` reads what the user gives.
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """The console script ``gpu-topology``."""
    _begin()
    from scheduler_extender.cli.commandline import run
    from scheduler_extender.cli.commands import app

    run(app, "gpu-topology")


def kubectl_plugin() -> None:
    """The console script that kubectl runs as ``kubectl gpu-topology``."""
    _begin()
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
    _begin()
    from scheduler_extender.cli.commands import plugin
    from scheduler_extender.cli.completion import complete_for_kubectl

    sys.stdout.write(complete_for_kubectl(plugin, sys.argv[1:]))


def _begin() -> None:
    from scheduler_extender.cli.interrupts import end_at_once

    end_at_once()
    # What imports make stays: to look through it for garbage takes a sixth of a short command.
    gc.set_threshold(10_000)
