"""``gpu-topology``: the commands, one file each.

Exit codes: 0 done, 1 the answer is no, 2 bad input with one clear line on stderr.

An argument is described in the text of its command and hidden from the list below it: typer shows
the Python type of an argument, and cannot be told not to.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import OURS, BadInputError, lacks
from scheduler_extender.cli.options import spread

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


# In the order of the help text, with the programs that have them.
COMMANDS = {
    "extender": (app,),
    "agent": (app,),
    "certificates": (app,),
    "install": (app,),
    "import": (app,),
    "check": (app, plugin),
    "machines": (app,),
    "nodes": (app, plugin),
    "node": (app, plugin),
    "map": (app, plugin),
    "waiting": (app, plugin),
    "idle": (app, plugin),
    "unblock": (app, plugin),
    "why": (app, plugin),
    "doctor": (app, plugin),
    "demo": (app,),
    "completion": (plugin,),
}
# Module and function of a command, where they are not called as the command is.
_ELSEWHERE = {"import": ("importing", "import_"), "map": ("clustermap", "map_")}


def _load(command: str) -> Callable[..., None]:
    """What does a command; where its packages are not installed, what says so."""
    module, function = _ELSEWHERE.get(command, (command, command))
    try:
        return getattr(import_module(f"scheduler_extender.cli.{module}"), function)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise

    def refuse() -> None:
        raise BadInputError(lacks(package))

    refuse.__doc__ = f"Not in this image: the package {package} is not installed."
    return refuse


_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}
for command, programs in COMMANDS.items():
    function = _load(command)
    settings = _ANYTHING if function.__name__ == "refuse" else None
    for program in programs:
        program.command(command, context_settings=settings)(spread(function))
for each in (app, plugin):
    # Without a help text of its own the callback would take the place of the app's.
    each.callback(help=each.info.help)(_options)
