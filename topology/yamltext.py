"""A YAML reader for untrusted text, whose cost is bounded by the text's length.

A few hundred bytes of YAML can stand for billions of nodes (an alias of a list of aliases of a
list …), nest without end, or hold a number whose conversion takes minutes. So this module counts
the parser's events before it builds any object. It counts how deep they nest and how many nodes the
aliases add. It also refuses a mapping that has a key twice, as kubectl does, because one of the two
values would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

MAX_DEPTH = 64  # lists and mappings inside each other; a Kubernetes object has about fifteen
_TOO_DEEP = (
    f"lists and mappings nest deeper than {MAX_DEPTH} levels, which is the most that is allowed"
)
MAX_ALIASED = 200_000  # nodes that a text's aliases may add, all together
MAX_NUMBER = 64  # characters of a number


class YamlTextError(ValueError):
    """A text that is not YAML or exceeds a bound. The message names the line where it is known."""


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
    """Return every document of a text, with None for an empty one.

    Raises :class:`YamlTextError`.

    >>> documents("a: &x [1, 2]\\n---\\nb: 3")
    [{'a': [1, 2]}, {'b': 3}]
    """
    try:
        _check(text)
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # PyYAML's own limit, since 6.0.4
            raise YamlTextError(f"{_line(error)}{_TOO_DEEP}") from error
        raise YamlTextError(f"{_line(error)}not YAML: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise YamlTextError(f"not YAML: {str(error).splitlines()[0]}") from error
    except YamlTextError:
        raise
    except (ValueError, RecursionError) as error:  # such as a date that does not exist
        raise YamlTextError(f"not YAML: {error}") from error


def _line(found: yaml.Event | yaml.MarkedYAMLError) -> str:
    mark = found.start_mark if isinstance(found, yaml.Event) else found.problem_mark
    return f"line {mark.line + 1}: " if mark else ""


@dataclass(slots=True)
class _Opened:
    """A list or mapping whose end event has not come yet."""

    anchor: str | None
    nodes_before: int  # how many nodes the text has up to and including this one
    keys: set[str] | None  # the keys of a mapping so far; None for a list
    key_is_next: bool = True


def _check(text: str) -> None:
    """Raise :class:`YamlTextError` if a bound is exceeded or a mapping has a key twice.

    The bounds are the depth of nesting and the number of nodes that the aliases add.
    """
    opened: list[_Opened] = []
    sizes: dict[str, int] = {}  # nodes that each anchor stands for
    nodes = aliased = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.DocumentStartEvent):
            sizes = {}
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = opened.pop()
            sizes[ended.anchor or ""] = nodes - ended.nodes_before + 1
        elif isinstance(event, yaml.NodeEvent):
            _take_key(event, opened)
            if isinstance(event, yaml.AliasEvent):
                size = _size(event, opened, sizes)
                nodes, aliased = nodes + size, aliased + size
                if aliased > MAX_ALIASED:
                    raise YamlTextError(
                        f"its aliases (*name) stand for more than {MAX_ALIASED:,} values, "
                        "which is the most that is allowed"
                    )
                continue
            nodes += 1
            if isinstance(event, yaml.ScalarEvent):
                sizes[event.anchor or ""] = 1
            else:
                mapping = isinstance(event, yaml.MappingStartEvent)
                opened.append(_Opened(event.anchor, nodes, set() if mapping else None))
                if len(opened) > MAX_DEPTH:
                    raise YamlTextError(f"{_line(event)}{_TOO_DEEP}")


def _take_key(event: yaml.NodeEvent, opened: list[_Opened]) -> None:
    """Record the event as a key or value of the mapping around it.

    Raises :class:`YamlTextError` if the mapping has this key already.
    """
    if not opened or opened[-1].keys is None:
        return
    within, keys = opened[-1], opened[-1].keys
    if within.key_is_next and isinstance(event, yaml.ScalarEvent):
        if event.value in keys:
            raise YamlTextError(
                f"{_line(event)}the key {event.value[:64]!r} stands twice in one mapping"
            )
        keys.add(event.value)
    within.key_is_next = not within.key_is_next


def _size(event: yaml.AliasEvent, opened: list[_Opened], sizes: dict[str, int]) -> int:
    """Return how many nodes an alias stands for.

    Raises :class:`YamlTextError` if the alias stands inside the node that it names.
    """
    name = event.anchor or ""
    if any(each.anchor == name for each in opened):
        raise YamlTextError(f"{_line(event)}*{name[:40]} stands inside itself")
    return sizes.get(name, 1)  # the loader reports an unknown alias
