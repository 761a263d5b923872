"""Edits of YAML text: they say what they should, and leave everything else as it was."""

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.installing.yamledit import END, EditError, Step, document, put, take

COMMENTED = """\
# first
a: 1  # one
b:
    - x: "1"   # quoted
      y: |
        two
        lines
    # between
    - z
c: {d: e}
# last
"""


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        pytest.param(["a"], "2", ["a: 2  # one"], id="a value, its comment stays"),
        pytest.param(["n"], "m", ["n: m"], id="a new key"),
        pytest.param(["b", END], "o: p\nq: r", ["    - o: p", "      q: r"], id="an item"),
        pytest.param(["b", 0, "x"], "3", ["    - x: 3   # quoted"], id="a value in an item"),
        pytest.param(["b", 0, "w"], "4", ["      w: 4"], id="a key behind a text of lines"),
        pytest.param(["n"], "- 1\n- 2", ["n:", "- 1", "- 2"], id="a list"),
        pytest.param(["n"], "o: p", ["n:", "  o: p"], id="a mapping"),
    ],
)
def test_only_the_lines_of_the_value_change(path: list[Step], value: str, lines: list[str]) -> None:
    now = put(COMMENTED, path, value).splitlines()
    assert [line for line in now if line not in COMMENTED.splitlines()] == lines
    kept = [line for line in COMMENTED.splitlines() if line in now]
    assert [line for line in now if line in kept] == kept
    assert len(kept) >= len(COMMENTED.splitlines()) - 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("a: [1, 2]\n", ["a", END], id="a list in brackets"),
        pytest.param('{"a": [1]}', ["a", END], id="JSON"),
        pytest.param('{"a": [1]}', ["b"], id="a key of JSON"),
        pytest.param("x: &x [1]\na: *x\n", ["a", END], id="an alias"),
        pytest.param("x: &x\n- 1\na: *x\n", ["a", END], id="an alias of lines"),
        pytest.param("a: []", ["a", END], id="an empty list"),
        pytest.param("x: &x {a: [1]}\n<<: *x\n", ["a", END], id="a merged key"),
    ],
)
def test_what_cannot_be_edited_in_place_is_written_anew(text: str, path: list[Step]) -> None:
    wanted = yaml.safe_load(text)
    if path[-1] == END:
        wanted["a"] = [*wanted["a"], 9]
    else:
        wanted["b"] = 9
    assert yaml.safe_load(put(text, path, "9")) == wanted


@pytest.mark.parametrize("begins", ["\ufeffx: # a mark\n", "x:\t# a tab\n"])
def test_a_byte_order_mark_and_a_tab_stay(begins: str) -> None:
    text = f"{begins}  y: 1\n"
    assert put(text, ["b"], "2") == f"{text}b: 2\n"
    assert put(text, ["x", "y"], "2") == f"{begins}  y: 2\n"


def test_an_empty_document_beside_it_stays() -> None:
    text = "---\n---\na: 1 # one\n---\n"
    now = put(text, ["b"], "2")
    assert now == "---\n---\na: 1 # one\nb: 2\n---\n"
    assert take(now, ["b"]) == text


def test_what_would_be_empty_goes_too() -> None:
    assert take("a:\n  b:\n  - 1\nc: 2\n", ["a", "b", 0]) == "c: 2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("# nothing\n", "an empty file"),
        ("a: 1\n---\nb: 2\n", "2 documents"),
        ("- 1\n", "a list"),
        ("text", "a str"),
    ],
)
def test_one_mapping_is_needed(text: str, message: str) -> None:
    with pytest.raises(EditError, match=f"one Pod is needed, but this is {message}"):
        document(text, "Pod")


WORDS = st.text("abc #:-'\"\n", max_size=8)
LEAVES = st.one_of(st.integers(-9, 9), st.booleans(), st.none(), WORDS)
KEYS = st.text("abcdef", min_size=1, max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


def places(data: Any, way: tuple[Step, ...] = ()) -> list[tuple[Step, ...]]:
    """Where something may be put: a new key of each mapping, the end of each list."""
    if isinstance(data, dict):
        inner = [each for key, value in data.items() for each in places(value, (*way, key))]
        return [(*way, "new"), *inner]
    if isinstance(data, list):
        inner = [each for n, value in enumerate(data) for each in places(value, (*way, n))]
        return [(*way, END), *inner]
    return []


@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    VALUES,
    st.sampled_from([None, True, False]),
    st.sampled_from([2, 4]),
    st.data(),
)
def test_any_document_says_what_was_put_and_is_as_before_once_that_is_taken(
    data: dict[str, Any], value: Any, flow: bool | None, indent: int, draw: st.DataObject
) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, indent=indent)
    path = draw.draw(st.sampled_from(places(data)))
    now = put(text, path, yaml.safe_dump(value).removesuffix("...\n"))
    wanted = copy.deepcopy(data)
    holder: Any = wanted
    for step in path[:-1]:
        holder = holder[step]
    if path[-1] == END:
        holder.append(value)
        path = (*path[:-1], len(holder) - 1)
    else:
        holder[path[-1]] = value
    assert yaml.safe_load(now) == wanted
    if len(holder) > 1:  # else what held it goes with it
        assert yaml.safe_load(take(now, path)) == data
