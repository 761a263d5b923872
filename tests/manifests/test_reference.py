"""The generated pages of the reference say what the code says."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from manifests.reference import commands, settings
from manifests.reference.__main__ import PAGES, main
from manifests.reference.annotations import ENTRIES, absent, allowed, answer
from manifests.reference.options import options
from manifests.reference.pages import BEGIN, FOLDER, made
from scheduler_extender.annotations import KEYS
from scheduler_extender.groupreference import GROUP_KEYS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes(name: str) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    assert made(page, PAGES[name]) == page, "run make reference"


def test_an_old_page_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_every_command_and_option_is_there() -> None:
    page = (FOLDER / "commands.md").read_text()
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == list(commands.COMMANDS)
    rows = commands.shared() + commands.plugin() + commands.others()
    every = {option for name in commands.COMMANDS for option in options(name)}
    assert len(every) > 50
    for name in set(commands.COMMANDS) - commands.SERVICES.keys():
        assert all(f"{each.typed}" in rows and each.help in rows for each in options(name))


def test_every_value_is_there() -> None:
    def leaves(values: Any, path: str) -> Iterator[str]:
        if not isinstance(values, dict) or not values:
            yield path
            return
        for key, value in values.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))

    named = set(re.findall(r"`([\w.]+)[`:]", settings.helm()))
    for leaf in leaves(yaml.safe_load(settings.VALUES.read_text()), ""):
        parts = leaf.split(".")
        assert named & {parts[1], *(".".join(parts[: n + 1]) for n in range(1, len(parts)))}, leaf


def test_every_key_is_there_in_the_order_of_the_code() -> None:
    assert list(ENTRIES) == [*KEYS, *GROUP_KEYS]


@pytest.mark.parametrize("key", ENTRIES)
def test_an_example_is_taken_by_one_machine_and_not_by_the_other(key: str) -> None:
    takes, refuses = ENTRIES[key].asked
    assert "guaranteed." in (answer(key, takes), answer(key, refuses))
    assert answer(key, takes) != answer(key, refuses)


@pytest.mark.parametrize(
    ("key", "values", "default"),
    [
        ("link", "nvlink, pix, pxb, phb, node", "–"),
        ("nic", "pix, pxb, phb, node", "–"),
        ("shape", "pairwise, ring, connected", "pairwise"),
        ("sharing", "exclusive, shared", "shared"),
        ("policy", "required, preferred", "required"),
        ("same-numa", "true, false", "false"),
        ("min-nvlinks", "whole numbers from 1 to 18", "–"),
        ("group-size", "whole numbers from 2 to 4096", "–"),
    ],
)
def test_allowed_values_are_those_that_the_parser_names(
    key: str, values: str, default: str
) -> None:
    assert (allowed(key), absent(key)) == (values, default)


def test_a_change_by_hand_is_undone() -> None:
    page = (FOLDER / "annotations.md").read_text()
    changed = page.replace("`link: nvlink`, 2 GPUs", "`link: pix`, 2 GPUs", 1)
    assert changed != page
    assert made(changed, PAGES["annotations"]) == page


def test_a_page_needs_its_marks() -> None:
    with pytest.raises(ValueError, match="2 times"):
        made(f"# Annotations\n{BEGIN}\n", PAGES["annotations"])
    with pytest.raises(ValueError, match="lacks a line"):
        made(f"# Annotations\n{BEGIN}\n{BEGIN}\n", PAGES["annotations"])
