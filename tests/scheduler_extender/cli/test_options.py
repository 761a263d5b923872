"""Options of several commands: written once, and given to a command as one object."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from scheduler_extender.cli.options import spread
from tests.commands import ROOT

Number = Annotated[int, typer.Option(help="A number.")]


@dataclass(frozen=True, kw_only=True)
class Inner:
    second: Number = 2
    third: Annotated[int, typer.Option(envvar="THIRD", help="Another one.")] = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    first: Number
    inner: Inner
    fourth: Number = 4


def add(*, outer: Outer, fifth: Number = 5) -> None:
    """Show what has been read."""
    typer.echo(f"{outer} {fifth}")


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(spread(add))
    return app


def test_each_field_is_an_option_in_the_order_of_the_fields(app: typer.Typer) -> None:
    command = typer.main.get_command(app)
    ours = [each.name for each in command.params if each.name not in ("help", None)]
    assert [name for name in ours if "completion" not in str(name)] == [
        "first",
        "second",
        "third",
        "fourth",
        "fifth",
    ]
    assert command.help == "Show what has been read."


def test_the_command_gets_the_objects(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["--first", "1", "--second", "7"], env={"THIRD": "9"})
    expected = Outer(first=1, inner=Inner(second=7, third=9))
    assert done.output == f"{expected} 5\n"


def test_a_field_without_a_default_is_needed(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2
    assert "--first" in done.output


def _helps() -> Iterator[str]:
    for path in (ROOT / "scheduler_extender" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option":
                yield from (ast.unparse(each.value) for each in node.keywords if each.arg == "help")


def test_no_option_is_written_twice() -> None:
    seen = Counter(_helps())
    assert len(seen) > 50
    assert [words for words, times in seen.items() if times > 1] == []
