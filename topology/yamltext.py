"""A YAML reader for untrusted text, whose cost is bounded by the text's length.

A few hundred bytes of YAML can stand for billions of nodes (an alias of a list of aliases of a
list …), nest without end, or hold a number whose conversion takes minutes. So this module counts
how deep the parser's events nest and how many nodes the aliases add. It also refuses a mapping that
has a key twice, as kubectl does, because one of the two values would be lost.

The same pass builds the objects, in a fifth of the time of PyYAML's constructor. That constructor
is only used for texts with tags, merge keys (``<<``) or keys that are no strings.
"""

from collections.abc import Callable
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


def documents(text: str, progress: Callable[[float], object] = bool) -> list[Any]:
    """Return every document of a text, with None for an empty one.

    ``progress`` is called from time to time with the part of the text that is read, from 0 to 1.
    Raises :class:`YamlTextError`.

    >>> documents("a: &x [1, 2]\\n---\\nb: 3")
    [{'a': [1, 2]}, {'b': 3}]
    """
    try:
        built = _Builder(text).documents(progress)
        return list(yaml.load_all(text, Loader=_Loader)) if built is None else built
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
    except (LookupError, AttributeError, TypeError) as error:  # such as !!bool maybe
        raise YamlTextError("not YAML: a value does not fit its tag") from error


def _line(found: yaml.Event | yaml.MarkedYAMLError) -> str:
    mark = found.start_mark if isinstance(found, yaml.Event) else found.problem_mark
    return f"line {mark.line + 1}: " if mark else ""


_NO_KEY = object()  # the next node of a mapping is a key


class _Builder:
    """Builds the documents of a text from its events, within the bounds."""

    def __init__(self, text: str) -> None:
        self._loader, self._length = _Loader(text), len(text)
        self._within: Any = []  # the innermost collection that is open; first the list of documents
        self._key: Any = _NO_KEY  # of the next value in it
        # The collections around it and their pending keys, each with the anchor of the collection
        # inside and the number of nodes up to its start.
        self._around: list[tuple[Any, Any, str | None, int]] = []
        self._anchored: dict[str, tuple[Any, int]] = {}  # the value of an anchor, and its size
        self._known: dict[str, Any] = {}  # the values of scalars without quotes
        self._nodes = self._aliased = 0
        self._special = False  # only PyYAML's constructor can build the documents

    def documents(self, progress: Callable[[float], object]) -> list[Any] | None:
        """Return the documents, or None if only PyYAML's constructor can build them.

        Raises :class:`YamlTextError` if a bound is exceeded or a mapping has a key twice.
        """
        found: list[Any] = self._within
        for number, event in enumerate(iter(self._loader.get_event, None)):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._take_scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._open(event, {})
            elif kind is yaml.SequenceStartEvent:
                self._open(event, [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close()
            elif kind is yaml.AliasEvent:
                self._take_alias(event)
            elif kind is yaml.DocumentStartEvent:
                self._anchored = {}
            if number % 10_000 == 0:
                progress(event.end_mark.index / (self._length + 1))
        return None if self._special else found

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        self._nodes += 1
        value = text = event.value
        if event.implicit[0]:
            if text not in self._known:
                self._known[text] = self._resolved(text, event)
            value = self._known[text]
        elif event.tag is not None:
            self._special = True
        if event.anchor is not None:
            self._name(event.anchor, value, 1)
        self._add(value, value if type(value) is str else text, event)

    def _resolved(self, text: str, event: yaml.ScalarEvent) -> Any:
        """Return the value of a scalar without quotes."""
        for tag, form in _Loader.yaml_implicit_resolvers.get(text[:1], ()):
            if form.match(text):
                construct = _Loader.yaml_constructors.get(tag)
                if construct is not None:
                    return construct(self._loader, yaml.ScalarNode(tag, text, event.start_mark))  # type: ignore[arg-type]
                self._special = True
        return text

    def _open(self, event: yaml.CollectionStartEvent, collection: Any) -> None:
        self._nodes += 1
        self._special |= event.tag is not None
        self._add(collection, event, event)
        self._around.append((self._within, self._key, event.anchor, self._nodes))
        if len(self._around) > MAX_DEPTH:
            raise YamlTextError(f"{_line(event)}{_TOO_DEEP}")
        self._within, self._key = collection, _NO_KEY

    def _close(self) -> None:
        collection = self._within
        self._within, self._key, anchor, before = self._around.pop()
        if anchor is not None:
            self._name(anchor, collection, self._nodes - before + 1)

    def _name(self, anchor: str, value: Any, size: int) -> None:
        self._special |= anchor in self._anchored  # the constructor refuses it
        self._anchored[anchor] = value, size

    def _take_alias(self, event: yaml.AliasEvent) -> None:
        """Take the value that an alias names.

        Raises :class:`YamlTextError` if the alias stands inside this value, or if the aliases add
        too many nodes.
        """
        name = event.anchor or ""
        if any(anchor == name for _, _, anchor, _ in self._around):
            raise YamlTextError(f"{_line(event)}*{name[:40]} stands inside itself")
        self._special |= name not in self._anchored  # the constructor refuses it
        value, size = self._anchored.get(name, (None, 1))
        self._nodes, self._aliased = self._nodes + size, self._aliased + size
        if self._aliased > MAX_ALIASED:
            raise YamlTextError(
                f"its aliases (*name) stand for more than {MAX_ALIASED:,} values, "
                "which is the most that is allowed"
            )
        self._add(value, event, event)

    def _add(self, value: Any, key: object, event: yaml.NodeEvent) -> None:
        """Add a node to the collection that is open. ``key`` stands for the node if it is a key.

        Raises :class:`YamlTextError` if the mapping has this key already.
        """
        within = self._within
        if type(within) is list:
            within.append(value)
        elif self._key is not _NO_KEY:
            within[self._key] = value
            self._key = _NO_KEY
        else:
            if key in within:
                raise YamlTextError(
                    f"{_line(event)}the key {str(key)[:64]!r} stands twice in one mapping"
                )
            self._special |= value is not key
            self._key = key
