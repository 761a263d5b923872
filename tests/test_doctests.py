"""Every example in a docstring is run, and no page has one, since none would run it.

The files are found by walking the packages and the pages, so a new one needs no line here.
"""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
PACKAGES = ("topology", "scheduler_extender", "benchmarks")
MODULES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")])

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prompts(path: Path) -> int:
    """How many examples a file shows."""
    return sum(line.lstrip().startswith(">>> ") for line in path.read_text().splitlines())


def docstrings(source: str, name: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a module's docstrings, whatever decorates what they belong to.

    ``doctest`` alone passes over what is wrapped, as by a cache, and over what is no routine.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node)
            if text is not None:
                yield f"{name}.{getattr(node, 'name', '')}", text


def run(text: str, name: str, names: dict[str, object]) -> tuple[int, list[str]]:
    """Run the examples of a text: how many there are, and what the failed ones say."""
    found = doctest.DocTestParser().get_doctest(text, dict(names), name, name, 0)
    message: list[str] = []
    doctest.DocTestRunner().run(found, out=message.append)
    return len(found.examples), message


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def with_examples(paths: list[Path]) -> list[object]:
    """The files that show examples, as parameters."""
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in paths if prompts(p)]


@pytest.mark.parametrize("path", with_examples(MODULES))
def test_the_examples_of_a_module_are_true(path: Path) -> None:
    name = module_of(path)
    names = vars(importlib.import_module(name))
    tried = 0
    for where, text in docstrings(path.read_text(), name):
        count, message = run(text, where, names)
        assert not message, "".join(message)
        tried += count
    assert tried == prompts(path), "an example stands where no docstring is"


def test_no_page_has_an_example_that_is_not_run() -> None:
    assert [page.name for page in PAGES if prompts(page)] == []


def test_an_example_that_is_false_is_found() -> None:
    source = '@cache\ndef twice(n):\n    """Double.\n\n    >>> 1 + 1\n    3\n    """\n'
    ((where, text),) = docstrings(source, "some")
    assert where == "some.twice"
    count, message = run(text, where, {})
    assert count == 1
    assert "Expected:" in "".join(message)


def test_there_are_examples_to_run() -> None:
    """What the walk finds, lest a moved folder empties it."""
    assert {p.relative_to(ROOT).parts[0] for p in MODULES} == set(PACKAGES)
    assert with_examples(MODULES)
    assert PAGES
