"""A group of commands whose modules are imported when a command is asked for.

The list of commands, in the help text and where a shell completes the first word, takes each
command's first sentence from the module's source: to import all modules would take seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from scheduler_extender.cli.commandline import OURS, BadInputError, lacks

PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}

Places = Mapping[str, tuple[str, str]]
"""Commands by name, in the order of the help text: the module and the function of each."""


class _Made(Mapping[str, Any]):
    """Commands as typer runs them, each made when it is asked for."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, function = self._places[name]
            self._made[name] = _command(name, _function(module, function))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def lazy_group(places: Places) -> type[TyperGroup]:
    """The class of a typer app's group with these commands."""

    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands: Any = _Made(places)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(places)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, first_sentence(*places[name])) for name in places])

        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            from typer._click.shell_completion import CompletionItem

            if incomplete.startswith("-"):
                return super().shell_complete(ctx, incomplete)
            return [
                CompletionItem(name, help=first_sentence(*places[name]))
                for name in places
                if name.startswith(incomplete)
            ]

    return Group


def first_sentence(module: str, function: str) -> str:
    """The first sentence of a function's docstring, read from the source of its module."""
    spec = find_spec(module)
    loader: Any = spec.loader if spec is not None else None
    source = loader.get_source(module) if loader is not None else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            return text if text.endswith(".") and ". " not in text else text.split(". ")[0] + "."
    raise LookupError(f"{module} has no function {function}")


def _command(name: str, function: Callable[..., None]) -> Any:
    from scheduler_extender.cli.options import spread

    alone = typer.Typer(add_completion=False, **PLAIN)
    settings = _ANYTHING if function.__name__ == "refuse" else None
    alone.command(name, context_settings=settings)(spread(function))
    return typer.main.get_command(alone)


def _function(module: str, function: str) -> Callable[..., None]:
    """What does a command; where its packages are not installed, what says so."""
    try:
        return getattr(import_module(module), function)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise

    def refuse() -> None:
        raise BadInputError(lacks(package))

    refuse.__doc__ = f"Not in this image: the package {package} is not installed."
    return refuse
