"""Pages show what commands print."""

import re
import shlex

import pytest

from scheduler_extender.cli import main
from tests.commands import ROOT, asked

SHOW = ("tasks/idle-gpus", "tasks/why")
SHOWN = {
    (words, printed): page
    for page in SHOW
    for words, printed in re.findall(
        r"```sh\ngpu-topology ([^\n]*)\n```\n\n```text\n(.*?)```",
        (ROOT / "docs" / f"{page}.md").read_text(),
        re.DOTALL,
    )
}


def test_answers_are_shown() -> None:
    assert {*SHOWN.values()} == {*SHOW}


@pytest.mark.parametrize(("words", "printed"), SHOWN, ids=[words for words, _ in SHOWN])
def test_a_command_prints_what_the_page_shows(
    words: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert asked(main, *shlex.split(words)).stdout == printed
