"""Pages show what commands print; the page on the commands names all of them and their options."""

from __future__ import annotations

import re
import shlex
from collections import Counter

import pytest
import typer

from scheduler_extender.cli import main
from scheduler_extender.cli.commands import APP, OF, PLUGIN, app
from scheduler_extender.cli.options import Form
from tests.commands import ROOT, asked

PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text()
SHOWN = {
    (words, printed): page
    for page in ("reference/commands", "tasks/idle-gpus", "tasks/why")
    for words, printed in re.findall(
        r"```sh\ngpu-topology ([^\n]*)\n```\n\n```text\n(.*?)```",
        (ROOT / "docs" / f"{page}.md").read_text(),
        re.DOTALL,
    )
}
WHERE = ("nodes", "map", "node", "waiting")
# Options that the table of options leaves out: the text tells of some, --help of the others.
ELSEWHERE = {
    "--resume",
    "--open",
    "--system",
    "--help",
}


def options(command: str) -> set[str]:
    """The longest and the shortest spelling of each option."""
    group = typer.main.get_command(app)
    with group.make_context("x", [command], resilient_parsing=True) as context:
        found = group.get_command(context, command)  # type: ignore[attr-defined]
    return {name for each in found.params for name in each.opts if name.startswith("-")}


def test_answers_are_shown() -> None:
    assert Counter(SHOWN.values()) == {
        "reference/commands": 1,
        "tasks/idle-gpus": 1,
        "tasks/why": 2,
    }


@pytest.mark.parametrize(("words", "printed"), SHOWN, ids=[words for words, _ in SHOWN])
def test_a_command_prints_what_the_page_shows(
    words: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert asked(main, *shlex.split(words)).stdout == printed


def test_every_command_is_named() -> None:
    for_people, _, others = PAGE.partition("## The other commands")
    named = [
        set(re.findall(r"^\| \[?`([a-z]+)", part, re.MULTILINE)) for part in (for_people, others)
    ]
    ours, every = set(OF[PLUGIN]), set(OF[APP])
    assert named == [ours, every - ours]


def test_the_table_has_the_options_of_the_four() -> None:
    table = PAGE.partition("## Options")[2].partition("\n\n")[2].partition("\n\n")[0]
    spelled = {"-o": "--output", "-l": "--selector", "-w": "--watch", "-n": "--namespace"}
    spelled |= {"-A": "--all-namespaces"}
    told: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        names, commands = line.split(" | ")[0:2]
        for name in re.findall(r"`(--?[A-Za-z-]+)", names):
            told[spelled.get(name, name)] = commands
    for command in WHERE:
        long = {name for name in options(command) if name.startswith("--")} - ELSEWHERE
        assert long <= told.keys()
        for name, commands in told.items():
            meant = f"`{command}`" in commands or "all" in commands
            assert meant == (name in long), (command, name)
    assert all(f"`{form.value}`" in table or f"-o {form.value}`" in table for form in Form)
