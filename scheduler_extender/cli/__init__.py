"""The command line. ``commands`` declares the commands, and ``NAME.py`` does the work of each.

A declaration has a command's options, its help and the checks that need no model. It imports the
work when the command is called, because importing everything takes a second. Short work stands in
the declaration itself, so the folder has a file for most commands. ``options`` has the options that
several commands share, and ``inputs`` reads the user's input.
"""

import gc
import sys


def main() -> None:
    """Run the console script ``gpu-topology``."""
    _begin()
    from scheduler_extender.cli.commandline import run
    from scheduler_extender.cli.commands import app

    run(app, "gpu-topology")


def kubectl_plugin() -> None:
    """Run the console script that kubectl starts as ``kubectl gpu-topology``."""
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
    """Run the console script by which kubectl completes the words of ``kubectl gpu-topology``."""
    _begin()
    from scheduler_extender.cli.commands import plugin
    from scheduler_extender.cli.completion import complete_for_kubectl

    sys.stdout.write(complete_for_kubectl(plugin, sys.argv[1:]))


def _begin() -> None:
    from scheduler_extender.cli.interrupts import end_at_once

    end_at_once()
    # The objects that imports create stay alive. Collecting garbage among them takes a sixth of the
    # time of a short command.
    gc.set_threshold(10_000)
