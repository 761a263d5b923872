"""YAML that people wrote → plain objects, at a cost that the text's own length bounds.

A few hundred bytes of YAML can stand for billions of nodes (an alias of a list of aliases of a
list …), nest without end, or hold a number whose conversion takes minutes. So the parser's events
are counted before anything is built: how deep they nest, and how many nodes the aliases add.
A key that a mapping has twice is refused, too, as kubectl does: one of its values would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MAX_DEPTH = 64  # lists and mappings inside each other; a Kubernetes object has about fifteen
MAX_ALIASED = 200_000  # nodes that a text's aliases may add, all together
MAX_NUMBER = 64  # characters of a number


class YamlTextError(ValueError):
    """A text is not YAML, or more than its length says; the message names the line."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, with numbers of bounded length."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if len(node.value) > MAX_NUMBER:
        raise yaml.constructor.ConstructorError(
            None,
            None,
            f"a number of {len(node.value)} characters; at most {MAX_NUMBER} are allowed",
            node.start_mark,
        )
    whole = node.tag == "tag:yaml.org,2002:int"
    return loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


def documents(text: str) -> list[Any]:
    """Every document of a text, None for an empty one. Raises :class:`YamlTextError`.

    >>> documents("a: &x [1, 2]\\n---\\nb: 3")
    [{'a': [1, 2]}, {'b': 3}]
    """
    try:
        _bounded(text)
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        raise YamlTextError(f"{_line(error)}not YAML: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise YamlTextError(f"not YAML: {str(error).splitlines()[0]}") from error
    except YamlTextError:
        raise
    except (ValueError, RecursionError) as error:  # such as a date that there is not
        raise YamlTextError(f"not YAML: {error}") from error


def _line(found: yaml.Event | yaml.MarkedYAMLError) -> str:
    mark = found.start_mark if isinstance(found, yaml.Event) else found.problem_mark
    return f"line {mark.line + 1}: " if mark else ""


def _bounded(text: str) -> None:
    """Raise where the text nests too deep, its aliases stand for too much, or a key is twice in a
    mapping."""
    aliased = 0
    for size in _alias_sizes(text):
        aliased += size
        if aliased > MAX_ALIASED:
            raise YamlTextError(
                f"its aliases (*name) stand for more than {MAX_ALIASED:,} values, "
                "which is the most that is allowed"
            )


def _alias_sizes(text: str) -> Iterator[int]:
    """How many nodes each alias of the text stands for, in order."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    nodes = 0
    keys = _Keys()
    for event in yaml.parse(text, Loader=_Loader):
        keys.take(event)
        if isinstance(event, yaml.DocumentStartEvent):
            sizes = {}
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            nodes += 1
            opened.append((event.anchor, nodes))
            if len(opened) > MAX_DEPTH:
                raise YamlTextError(
                    f"{_line(event)}lists and mappings nest deeper than {MAX_DEPTH} levels, "
                    "which is the most that is allowed"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = nodes - before + 1
        elif isinstance(event, yaml.AliasEvent):
            name = event.anchor or ""
            if any(anchor == name for anchor, _ in opened):
                raise YamlTextError(f"{_line(event)}*{name[:40]} stands inside itself")
            size = sizes.get(name, 1)  # of an unknown one the loader says so
            nodes += size
            yield size


class _Keys:
    """Follows a text's events, and knows which of its scalars are keys."""

    def __init__(self) -> None:
        self._open: list[_Opened] = []

    def take(self, event: yaml.Event) -> None:
        """The next event. Raises :class:`YamlTextError` for a key that its mapping has already."""
        if isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            return
        if not isinstance(event, yaml.NodeEvent):
            return
        within = self._open[-1] if self._open else None
        if within is not None and within.keys is not None:
            if within.key_is_next and isinstance(event, yaml.ScalarEvent):
                if event.value in within.keys:
                    raise YamlTextError(
                        f"{_line(event)}the key {event.value[:64]!r} stands twice in one mapping"
                    )
                within.keys.add(event.value)
            within.key_is_next = not within.key_is_next
        if isinstance(event, yaml.CollectionStartEvent):
            mapping = isinstance(event, yaml.MappingStartEvent)
            self._open.append(_Opened(set() if mapping else None))


@dataclass(slots=True)
class _Opened:
    """A list or mapping that has not ended; ``keys`` are those of a mapping so far."""

    keys: set[str] | None
    key_is_next: bool = True
