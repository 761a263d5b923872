"""Changes a YAML text at one place, and keeps everything else, including comments.

The parser gives the position of a value in the text, and lines are inserted or removed there. The
result is parsed again. The document is written anew, without its comments, in two cases: the result
does not have the wanted content (for example with a list in brackets, or an alias), or the place
has no position in the text (a merged key).

A place is a path of keys and list indexes. A new value is a YAML text of its own.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from topology.yamltext import documents

Step = str | int
END: Step = -1  # as the last step of a path: the position after the last item of the list


class EditError(ValueError):
    """A text does not have the expected content. The message says what is wrong."""


def document(text: str, kind: str) -> dict[str, Any]:
    """Parse a text with exactly one mapping. Raises :class:`EditError`, or ``YamlTextError``."""
    contents = [each for each in documents(text) if each is not None]
    if len(contents) != 1 or not isinstance(contents[0], dict):
        raise EditError(f"one {kind} is needed, but this is {_count(contents)}")
    return contents[0]


def _count(found: list[Any]) -> str:
    if len(found) == 1:
        return f"a {type(found[0]).__name__}"
    return f"{len(found)} documents" if found else "an empty file"


def put(text: str, path: Sequence[Step], value: str) -> str:
    """Return the text with the value at the path, in place of the old one or after all others.

    >>> print(put("a: 1 # one\\nb: [2]\\n", ["c"], "- 3"), end="")
    a: 1 # one
    b: [2]
    c:
    - 3
    """
    wanted = _apart(document(text, "mapping"))
    *way, last = path
    value = value.rstrip("\n")
    holder, new = _at(wanted, way), documents(value)[0]
    if last == END:
        holder.append(new)
    else:
        holder[last] = new
    return _checked(wanted, lambda: _with(text, path, value, new))


def _with(text: str, path: Sequence[Step], value: str, new: object) -> str:
    *way, last = path
    node = _node(text, way)
    item = "- " + textwrap.indent(value, "  ")[2:]
    lines = item if last == END else _pair(str(last), value, new)
    indent = " " * node.start_mark.column
    lines = textwrap.indent(lines, indent)
    replaced = [pair for pair in _pairs(node) if pair[0].value == last]
    if not replaced:
        start = end = _end(text, node)
        lines = f"{lines}\n" if text[:start].endswith("\n") else f"\n{lines}\n"
    else:
        key, old = replaced[0]
        start, end = key.start_mark.index, _end(text, old)
        lines = f"{lines.removeprefix(indent)}\n"
        if isinstance(old, yaml.ScalarNode) and "\n" not in value:
            end, lines = old.end_mark.index, lines.rstrip("\n")  # keep a comment behind the value
    return text[:start] + (lines.replace("\n", "\r\n") if "\r\n" in text else lines) + text[end:]


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def take(text: str, path: Sequence[Step]) -> str:
    """Return the text without the value at the path.

    A list or mapping that would become empty is removed, too.

    >>> take("a:\\n- 1 # one\\n- 2\\nb: 3\\n", ["a", 0])
    'a:\\n- 2\\nb: 3\\n'
    """
    wanted = _apart(document(text, "mapping"))
    while len(path) > 1 and len(_at(wanted, path[:-1])) == 1:
        path = path[:-1]
    del _at(wanted, path[:-1])[path[-1]]
    return _checked(wanted, lambda: _less(text, path))


def _less(text: str, path: Sequence[Step]) -> str:
    *way, last = path
    node = _node(text, way)
    key = {key.value: key for key, _ in _pairs(node)}.get(last)
    old = _step(node, last)
    start = text.rfind("\n", 0, (key or old).start_mark.index) + 1
    return text[:start] + text[_end(text, old) :]


def same(text: str, other: str) -> bool:
    """Check whether two texts have the same content, and ``other`` has all comments of ``text``.

    >>> same("a: 1\\nb: [2]\\n", "a: 1 # one\\nb:\\n- 2\\nc: []\\n")
    True
    """
    said, others = (_full([each for each in documents(one) if each]) for one in (text, other))
    noted, known = ({line.partition("#")[2] for line in one.splitlines()} for one in (text, other))
    return said == others and noted <= known


def _full(data: Any) -> Any:
    """Return the data without empty values, which have no effect."""
    if isinstance(data, dict):
        full = {key: _full(value) for key, value in data.items()}
        return {key: value for key, value in full.items() if value not in (None, [], {})}
    return [_full(each) for each in data] if isinstance(data, list) else data


def _apart(data: Any) -> Any:
    """Return a copy in which no object occurs twice.

    With aliases (``*name``) the parser returns data in which the same object occurs several times.
    """
    if isinstance(data, dict):
        return {key: _apart(value) for key, value in data.items()}
    return [_apart(each) for each in data] if isinstance(data, list) else data


def _at(data: Any, path: Sequence[Step]) -> Any:
    for step in path:
        data = data[step]
    return data


def _node(text: str, path: Sequence[Step]) -> Any:
    slow: Any = yaml.SafeLoader  # libyaml's positions leave out a byte order mark
    loader = slow if text.startswith("\ufeff") else getattr(yaml, "CSafeLoader", slow)
    nodes = yaml.compose_all(text, Loader=loader)
    node: Any = next(each for each in nodes if isinstance(each, yaml.MappingNode))
    for step in path:
        node = _step(node, step)
    return node


def _step(node: Any, step: Step) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key.value: value for key, value in _pairs(node)}[step]
    return node.value[step]


def _end(text: str, node: Any) -> int:
    """Return the index at which the line after a value begins."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    index = int(node.end_mark.index)
    if index and text[index - 1] == "\n":  # a block of several lines includes its last line break
        return index
    return text.find("\n", index) + 1 or len(text)


def _pair(key: str, value: str, new: object) -> str:
    if isinstance(new, dict) and not value.startswith("{"):
        return f"{key}:\n{textwrap.indent(value, '  ')}"
    return f"{key}:\n{value}" if value.startswith("- ") else f"{key}: {value}"


def _checked(wanted: dict[str, Any], edit: Callable[[], str]) -> str:
    """Return the edited text if it has the wanted content; else write the content anew."""
    try:
        edited = edit()
        if document(edited, "mapping") == wanted:
            return edited
    except (ValueError, LookupError, yaml.YAMLError):
        pass
    return str(yaml.safe_dump(wanted, sort_keys=False, width=10_000))
