"""Reads the commands of ``gpu-topology``, with their help and options, as typer has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from scheduler_extender.cli.commands import APP, OF, app, plugin

# A paragraph's line break, and words of a help text that are code.
_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
_CODE = re.compile(
    r"(?<![\w`-])(--[a-z][a-z-]*(?: --[a-z][a-z-]*)*|/(?:metrics|healthz|readyz|v1)\b|\$[A-Z]+)"
    r"(?![\w`])"
)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    names: tuple[str, ...]  # as one types them, such as --output and -o
    value: str  # the metavariable; empty for a flag
    default: str  # empty without one
    help: str

    @property
    def typed(self) -> str:
        """The option with its default, such as ``--port=8888``, or with its metavariable."""
        *others, last = (*self.names[1:], self.names[0])
        value = f"={self.default}" if self.default else f" {self.value}" if self.value else ""
        return ", ".join(f"`{name}`" for name in (*others, f"{last}{value}"))


def command(name: str) -> Any:
    """Return a command in typer's form."""
    group: Any = typer.main.get_command(app if name in OF[APP] else plugin)
    return group.commands[name]


def text(name: str) -> list[str]:
    """Return the first two paragraphs of a command's help; ``--help`` shows the others, too."""
    return [
        as_markdown(part) for part in _BREAK.sub(" ", str(command(name).help)).split("\n\n")[:2]
    ]


def options(name: str) -> Iterator[Option]:
    """Yield a command's options in the order of its help."""
    for each in command(name).params:
        if each.param_type_name != "option" or each.name == "help":
            continue
        shown, _, hinted = each.help.partition("  [default: ")
        default = hinted.rstrip("]")
        if not each.is_flag and each.default is not None and not callable(each.default):
            default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
        value = "" if each.is_flag else each.metavar or ""
        yield Option(tuple(each.opts), value, default, as_markdown(shown))


def as_markdown(help_text: str) -> str:
    """Return a help text with its options and paths marked as code.

    >>> as_markdown("Needs --client-ca. Serves /metrics.")
    'Needs `--client-ca`. Serves `/metrics`.'
    """
    return _CODE.sub(r"`\1`", help_text)
