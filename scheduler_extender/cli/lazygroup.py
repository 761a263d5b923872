"""A group of commands that imports each command only when it is needed."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

PLAIN: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

# The module and the function of each command by its name, in the order of the help text.
Places = Mapping[str, tuple[str, str]]


class _Made(Mapping[str, Any]):
    """Commands in typer's form, each created at its first use.

    Those of a package that is not installed are not listed.
    """

    def __init__(self, places: Places, examples: Mapping[str, str]) -> None:
        self._places, self._examples = places, examples
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, function = self._places[name]
            from scheduler_extender.cli.options import spread

            alone = typer.Typer(add_completion=False, **PLAIN)
            command = alone.command(name, epilog=self._examples.get(name))
            command(spread(getattr(import_module(module), function)))
            self._made[name] = typer.main.get_command(alone)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        packages = {module.partition(".")[0] for module, _ in self._places.values()}
        there = {package for package in packages if find_spec(package)}
        return (name for name, (at, _) in self._places.items() if at.partition(".")[0] in there)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def lazy_group(places: Places, examples: Mapping[str, str] = {}) -> type[TyperGroup]:
    """Return the class of a typer app's group with these commands.

    ``examples`` are the ends of their help texts.
    """

    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands: Any = _Made(places, examples)

    return Group
