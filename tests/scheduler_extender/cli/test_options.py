"""Options of several commands are written once."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.commands import ROOT


def _helps() -> Iterator[str]:
    for path in (ROOT / "scheduler_extender" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option":
                yield from (ast.unparse(each.value) for each in node.keywords if each.arg == "help")


def test_no_option_is_written_twice() -> None:
    seen = Counter(_helps())
    assert len(seen) > 50
    assert [words for words, times in seen.items() if times > 1] == []
