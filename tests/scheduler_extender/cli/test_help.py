"""Help texts, as a newcomer reads them at 80 and at 120 columns."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from scheduler_extender.cli.commands import app as gpu_topology
from scheduler_extender.cli.commands import plugin

APPS = {"gpu-topology": gpu_topology, "benchmarks": benchmarks, "kubectl gpu-topology": plugin}
PYTHON_TYPE = re.compile(r"<(list|str|int|float|tuple|bool)\b")


def commands(app: typer.Typer) -> list[str]:
    return list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


PAGES = [pytest.param(app, (), id=name) for name, app in APPS.items()] + [
    pytest.param(app, (command,), id=f"{name} {command}")
    for name, app in APPS.items()
    for command in commands(app)
]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("app", "words"), PAGES)
def test_help_shows_no_python_types_and_cuts_nothing(
    app: typer.Typer, words: tuple[str, ...], columns: int
) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], terminal_width=columns)
    assert done.exit_code == 0, done.output
    assert not PYTHON_TYPE.search(done.output)
    assert not re.search(r"[^\]A-Z}]\.\.\.|…", done.output), "an ellipsis is cut text"
    assert max(map(len, done.output.splitlines())) <= columns


@pytest.mark.parametrize(("app", "words"), PAGES)
def test_every_option_is_explained(app: typer.Typer, words: tuple[str, ...]) -> None:
    group = typer.main.get_command(app)
    with group.make_context("x", list(words), resilient_parsing=True) as context:
        command = group if not words else group.get_command(context, words[0])  # type: ignore[attr-defined]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            assert f"{parameter.metavar} is" in str(command.help), parameter.name
        else:
            assert getattr(parameter, "help", ""), parameter.name
