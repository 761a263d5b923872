"""Help texts, as a newcomer reads them at 80 and at 120 columns."""

import contextlib
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from scheduler_extender.cli import main
from scheduler_extender.cli.commands import app as gpu_topology
from scheduler_extender.cli.commands import plugin
from scheduler_extender.cli.commands.examples import EXAMPLES
from tests.commands import asked

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
def test_the_short_option_shows_the_same_help(app: typer.Typer, words: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*words, flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)


@pytest.mark.parametrize(("app", "words"), [page for page in PAGES if page.values[1]])
def test_help_ends_with_two_examples_that_can_be_typed(
    app: typer.Typer, words: tuple[str, ...]
) -> None:
    if app is benchmarks:
        return
    program = "gpu-topology" if app is gpu_topology else "kubectl gpu-topology"
    (command,) = words
    printed = CliRunner().invoke(app, [command, "--help"], terminal_width=80).output
    *_, title, first, second = printed.splitlines()
    assert title == "  Examples:"
    assert first != second
    for example in (first, second):
        typed = shlex.split(example.removeprefix(f"    {program} "))
        assert typed[0] == command
        group = typer.main.get_command(app)
        with contextlib.suppress(typer.Exit):  # as --help ends
            group.commands[command].make_context("x", typed[1:])  # type: ignore[attr-defined]


# Of the commands that need a cluster; these name nodes and pods of this file.
ASKED = ("nodes", "node", "map", "waiting", "pods", "idle", "check", "claim")
ALONE = ("--open", "--watch")
HERE = {
    "pod.yaml": "manifests/samples/pair-nvlink.yaml",
    "now.yaml": "examples/clusters/where.yaml",
}


@pytest.mark.parametrize("example", [each for name in ASKED for each in EXAMPLES[name]])
def test_examples_have_an_answer(example: str) -> None:
    words = [HERE.get(word, word) for word in example.split() if word not in ALONE]
    more = () if "--cluster" in words else ("--cluster", HERE["now.yaml"])
    done = asked(main, *words, *more)
    assert done.returncode in (0, 1)
    assert "error" not in done.stderr


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
