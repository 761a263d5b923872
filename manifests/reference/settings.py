"""The generated parts of docs/reference/settings.md: the chart's values, the services' flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from manifests.reference.options import as_markdown, options
from manifests.reference.pages import Parts, table

VALUES = Path(__file__).parents[1] / "chart" / "values.yaml"
MOST_SHOWN = 32  # characters of a default
_KEY = re.compile(r"( *)(\w+):")
_COMMENT = re.compile(r" *# ?(.*)")
_PAGE = re.compile(r"docs/([\w-]+)/([\w-]+)\.md")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart, the comment above it, and its default as YAML writes it."""

    name: str
    comment: str
    default: str


def values() -> Iterator[Value]:
    """Yield the values of the chart in their order. A group has no entry of its own."""
    path: list[str] = []
    comment: list[str] = []
    defaults = yaml.safe_load(VALUES.read_text())
    for line in VALUES.read_text().splitlines():
        if said := _COMMENT.fullmatch(line):
            comment.append(said[1])
            continue
        if key := _KEY.match(line):
            path[len(key[1]) // 2 :] = [key[2]]
            default: Any = defaults
            for part in path:
                default = default.get(part) if isinstance(default, dict) else None
            leaf = not isinstance(default, dict) or not default or "{" in line
            if leaf or comment:
                yield Value(".".join(path), " ".join(comment), _written(default))
        comment = []


def _written(default: object) -> str:
    """Return a default in one line; empty if there is none, or if it is long."""
    if default in ("", [], {}):
        return ""
    text = str(yaml.safe_dump(default, default_flow_style=True, width=1000))
    text = text.removesuffix("\n").removesuffix("\n...")
    return text if len(text) <= MOST_SHOWN else ""


def helm() -> str:
    """Return the table of the values with a comment, and the names of other fields."""
    every = list(values())
    rows = (
        (f"`{each.name}{f': {each.default}' if each.default else ''}`", _linked(each.comment))
        for each in every
        if each.comment
    )
    told = tuple(f"{each.name}." for each in every if each.comment)
    others = (e.name for e in every if not e.comment and not e.name.startswith(told))
    names = dict.fromkeys(name.split(".")[1] for name in others if "." in name)
    fields = ", ".join(f"`{name}`" for name in names)
    plain = f"Each part also has these fields of Kubernetes: {fields}."
    return f"{table(('value and default', 'meaning'), rows)}\n\n{plain}"


def _linked(comment: str) -> str:
    """Return a comment in Markdown, with links to the pages that it names."""
    linked = _PAGE.sub(r"[\2](../\1/\2.md)", comment)
    return as_markdown(linked.replace("../reference/", ""))


def extender() -> str:
    """Return the table of the extender's flags."""
    return _flags("extender")


def agent() -> str:
    """Return the table of the agent's flags."""
    return _flags("agent")


def _flags(command: str) -> str:
    return table(("flag", "meaning"), ((each.typed, each.help) for each in options(command)))


PARTS: Parts = (helm, extender, agent)
