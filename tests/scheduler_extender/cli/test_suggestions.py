"""Names that are not there, and those that were meant: of nodes and pods, in files."""

import pytest

from scheduler_extender.cli import main
from tests.commands import asked

WHY = "examples/clusters/why.yaml"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["node", "serve-0"], "did you mean serve-00, serve-01, serve-02?"),
        (["node", "elsewhere"], ""),
        (["why", "finetune"], "did you mean team-a/finetune?"),
        (["why", "team-a/finetun"], "did you mean finetune?"),
        (["why", "team-c/finetun"], "did you mean team-a/finetune?"),
        (["why", "web"], ""),
        (["unblock", "train"], "did you mean team-a/train?"),
    ],
)
def test_a_name_that_is_like_another_one_is_reported(words: list[str], meant: str) -> None:
    done = asked(main, *words, "--cluster", WHY)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(meant) if meant else "did you mean" not in line
