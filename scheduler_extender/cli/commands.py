"""``gpu-topology``: the commands, one file each.

Exit codes: 0 done, 1 the answer is no, 2 bad input with one clear line on stderr.

A command's module is imported when somebody asks for the command.

An argument is described in the text of its command and hidden from the list below it: typer shows
the Python type of an argument, and cannot be told not to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scheduler_extender.cli.commandline import OURS, BadInputError, lacks

# In the order of the help text, with whether the kubectl plugin has them, too.
COMMANDS = {
    "extender": False,
    "agent": False,
    "certificates": False,
    "install": False,
    "import": False,
    "check": True,
    "claim": True,
    "machines": False,
    "nodes": True,
    "node": True,
    "map": True,
    "waiting": True,
    "idle": True,
    "unblock": True,
    "why": True,
    "doctor": True,
    "demo": False,
}
APP, PLUGIN = "gpu-topology", "kubectl-gpu_topology"
OF = {
    APP: tuple(COMMANDS),
    PLUGIN: (*(name for name, people in COMMANDS.items() if people), "completion"),
}
# Module and function of a command, where they are not called as the command is.
_ELSEWHERE = {"import": ("importing", "import_"), "map": ("clustermap", "map_")}
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


class _Loaded(Mapping[str, Any]):
    """Commands by name, each made when it is asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = _command(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Loaded(OF[str(self.name)])

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands; typer would make each of them."""
        return list(self.commands)


def _command(name: str) -> Any:
    """A command as typer runs it."""
    from scheduler_extender.cli.options import spread

    function = _function(name)
    alone = typer.Typer(add_completion=False, **_PLAIN)
    settings = _ANYTHING if function.__name__ == "refuse" else None
    alone.command(name, context_settings=settings)(spread(function))
    return typer.main.get_command(alone)


def _function(command: str) -> Callable[..., None]:
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


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

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


app = typer.Typer(
    name=APP,
    cls=_Group,
    help="GPU placement on Kubernetes that keeps its word.\n\n"
    "Every command exits with 0 when it is done, with 1 when the answer is no, and with 2 and one "
    "line on standard error when its input is wrong.",
    no_args_is_help=True,
    add_completion=True,
    **_PLAIN,
)
plugin = typer.Typer(
    name=PLUGIN,
    cls=_Group,
    help="GPU placement on Kubernetes that keeps its word: the part for people, as kubectl "
    "gpu-topology.",
    no_args_is_help=True,
    add_completion=False,
    **_PLAIN,
)
for each in (app, plugin):
    # Without a help text of its own the callback would take the place of the app's.
    each.callback(help=each.info.help)(_options)
