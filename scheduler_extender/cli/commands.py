"""``gpu-topology``: the commands, one file each.

Exit codes: 0 done, 1 the answer is no, 2 bad input with one clear line on stderr.

An argument is described in the text of its command and hidden from the list below it: typer shows
the Python type of an argument, and cannot be told not to.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from scheduler_extender.cli.agent import agent
from scheduler_extender.cli.certificates import certificates
from scheduler_extender.cli.check import check
from scheduler_extender.cli.clustermap import map_
from scheduler_extender.cli.commandline import run
from scheduler_extender.cli.completion import complete_for_kubectl
from scheduler_extender.cli.demo import demo
from scheduler_extender.cli.extender import extender
from scheduler_extender.cli.idle import idle
from scheduler_extender.cli.importing import import_
from scheduler_extender.cli.machines import machines
from scheduler_extender.cli.node import node
from scheduler_extender.cli.nodes import nodes
from scheduler_extender.cli.unblock import unblock
from scheduler_extender.cli.waiting import waiting
from scheduler_extender.cli.why import why

app = typer.Typer(
    name="gpu-topology",
    help="GPU placement on Kubernetes that keeps its word.\n\n"
    "Every command exits with 0 when it is done, with 1 when the answer is no, and with 2 and one "
    "line on standard error when its input is wrong.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(extender)
app.command()(agent)
app.command()(certificates)
app.command("import")(import_)
app.command()(check)
app.command()(machines)
app.command()(nodes)
app.command()(node)
app.command("map")(map_)
app.command()(waiting)
app.command()(idle)
app.command()(unblock)
app.command()(why)
app.command()(demo)


def _tell_version(asked: bool) -> None:
    if asked:
        # From the package's metadata: pyproject.toml is the one place that says it.
        typer.echo(f"gpu-topology {version('gpu-topology')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """What comes before a command's name."""


plugin = typer.Typer(
    name="kubectl-gpu_topology",
    help="GPU placement on Kubernetes that keeps its word: the part for people, as kubectl "
    "gpu-topology.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plugin.command()(check)
plugin.command()(nodes)
plugin.command()(node)
plugin.command("map")(map_)
plugin.command()(waiting)
plugin.command()(idle)
plugin.command()(unblock)
plugin.command()(why)
for each in (app, plugin):
    # Without a help text of its own the callback would take the place of the app's.
    each.callback(help=each.info.help)(_options)


def main() -> NoReturn:
    """The console script."""
    run(app, "gpu-topology")


def kubectl_plugin() -> NoReturn:
    """The console script that kubectl runs as ``kubectl gpu-topology``."""
    run(plugin, "kubectl gpu-topology")


def kubectl_completion() -> None:
    """The console script that kubectl runs to complete the words of ``kubectl gpu-topology``."""
    sys.stdout.write(complete_for_kubectl(plugin, sys.argv[1:]))
