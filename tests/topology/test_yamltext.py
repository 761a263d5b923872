"""Texts that stand for far more than they seem to, and what is said of them."""

import tracemalloc
from random import Random

import pytest
import yaml

from tests.crd import ROOT
from tests.fuzz.mutation import changed_text
from topology import yamltext
from topology.yamltext import YamlTextError, documents


def _bomb(levels: int, width: int = 9) -> str:
    lines = ["a0: &a0 x"]
    for i in range(1, levels + 1):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]")
    return "\n".join(lines)


def _merges(levels: int) -> str:
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, levels + 1)]
    return "\n".join(lines)


HOSTILE = {
    "aliases of aliases": (_bomb(9), "aliases"),
    "merges of merges": (_merges(26), "aliases"),
    "aliases over documents": ("\n---\n".join([_bomb(5)] * 10), "aliases"),
    "flow lists": ("a: " + "[" * 20_000, "line 1: lists and mappings nest deeper than 64"),
    "block mappings": ("\n".join(" " * i + "a:" for i in range(300)), "nest deeper than 64"),
    "a list in itself": ("items: &a [1, *a]", "line 1: *a stands inside itself"),
    "a mapping in itself": ("&a {kind: *a}", "*a stands inside itself"),
    "a number in base 60": ("a: 1" + ":1" * 100_000, "a number of 200001 characters; at most 64"),
    "a float in base 60": ("a: 1" + ":1" * 1000 + ".5", "a number of 2003 characters"),
    "a decimal number": ("a: " + "9" * 5000, "a number of 5000 characters"),
    "a hexadecimal number": ("a: 0x" + "f" * 20_000, "a number of 20002 characters"),
    "a number with a tag": ("a: !!int " + "9" * 5000, "a number of 5000 characters"),
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.values(), ids=HOSTILE)
def test_what_stands_for_too_much_is_refused_at_little_cost(text: str, words: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(YamlTextError) as caught:
            documents(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200
    assert peak < 32_000_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "line 2: not YAML: did not find expected"),
        ("a: *nobody", "line 1: not YAML: found undefined alias"),
        ("a: 2026-99-99", "not YAML: month must be in 1..12"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("{[1]: 2}", "unhashable key"),
        ("a: \0", "not YAML"),
        ("a: !!int ''", "not YAML: a value does not fit its tag"),
        ("a: !!bool maybe", "not YAML: a value does not fit its tag"),
        ("a: !!timestamp soon", "not YAML: a value does not fit its tag"),
        ("a: &x 1\nb: &x 2\nc: *x", "line 2: not YAML: second occurrence"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' stands twice in one mapping"),
        ("- {x: [{k: 1}, {k: 1, j: {k: 1}, k: 2}]}", "line 1: the key 'k' stands twice"),
        ("a: 1\n'a': 2", "line 2: the key 'a' stands twice"),
        ("x: &x {a: 1}\ny: {<<: *x, b: 1, b: 2}", "line 2: the key 'b' stands twice"),
    ],
)
def test_what_is_no_yaml_is_reported_in_one_line(text: str, words: str) -> None:
    with pytest.raises(YamlTextError) as caught:
        documents(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fair_use_of_aliases_is_read_as_ever() -> None:
    links = ", ".join(str(i) for i in range(300))
    text = f"all: &all [{links}]\n" + "\n".join(f"n{i}: *all" for i in range(500))
    assert documents(text) == [yaml.safe_load(text)]
    assert documents("a: &x {k: 1}\nb: {<<: *x, j: 2}") == [{"a": {"k": 1}, "b": {"k": 1, "j": 2}}]
    assert documents("a: &x {k: 1}\nb: {<<: *x, k: 2}")[0]["b"] == {"k": 2}
    assert documents("k: [k, k, {k: k}]\nj: {k: k}\n---\nk: 1") == [
        {"k": ["k", "k", {"k": "k"}], "j": {"k": "k"}},
        {"k": 1},
    ]
    assert documents("a: &x 1\n---\nb: &x 2\nc: *x") == [{"a": 1}, {"b": 2, "c": 2}]
    assert documents("") == []
    assert documents("---\n---\na: 0x10") == [None, {"a": 16}]
    nested = "[" * yamltext.MAX_DEPTH + "]" * yamltext.MAX_DEPTH
    assert documents(nested) == [yaml.safe_load(nested)]


SCALARS = (
    *("yes", "'yes'", "on", "y", "No", "TRUE", "~", "null", "", '""', "''", "'it''s'", "=", "<<"),
    *("010", "0o10", "0x1F", "0b101", "1_000", "+1", "-1", "-", "1e3", "1.e+3", "1e+06", ".5"),
    *(".inf", "-.Inf", ".nan", "12:30:45", "190:20:30.15", "9" * 60, "9" * 65, "8ce1-4b9"),
    *("2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05 +01:00", "2026-99-99"),
    *(
        '"\\n\\u00e9\\x41"',
        '"a\\\n  b"',
        "|\n  a\n\n",
        "|2\n    a",
        ">-\n  a\n  b",
        "a\n  b\n  c",
        "a # b",
    ),
    *("! 1", "!!str 1", '!!int "1"', "!!binary aGk=", "!!set {a, b}", "&x 1", "*x", "{<<: {a: 1}}"),
    *("[a, b, {c: d}]", "{a: [1, 2], b: }", "{a, b}", "{? [a]: b}", "{&x a: *x}", "#", "a\tb", "é"),
)
TEXTS = [
    *(f"a: {scalar}" for scalar in SCALARS),
    *(f"{scalar}: a" for scalar in SCALARS),
    *(f"- {scalar}\n- - {scalar}\n  - b" for scalar in SCALARS),
    *(
        "? a\n: b",
        "? [a]\n: b",
        '1: a\n"1": b',
        "%YAML 1.1\n---\na: 1",
        "a: 1\n...\nb: 2",
        "a\r\nb",
    ),
    *(path.read_text() for path in sorted((ROOT / "examples").rglob("*.yaml"))),
]
# Refusals of texts that PyYAML reads.
OURS = ("stands twice", "nest deeper", "aliases", "stands inside itself")


@pytest.mark.parametrize("seed", range(8))
def test_a_text_is_read_as_by_pyyaml_or_refused(seed: int) -> None:
    rng = Random(seed)
    changed = [changed_text(rng, rng.choice(TEXTS)[:2000], SCALARS) for _ in range(300)]
    for text in changed if seed else TEXTS:
        try:
            read = repr(documents(text))
        except YamlTextError as error:
            if any(words in str(error) for words in OURS):
                continue
            read = "refused"
        assert read == _by_pyyaml(text), text


def _by_pyyaml(text: str) -> str:
    try:
        return repr(list(yaml.load_all(text, Loader=yamltext._Loader)))
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
        return "refused"
