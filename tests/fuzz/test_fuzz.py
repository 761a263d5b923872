"""A moment of ``python -m tests.fuzz``, always with the same seeds; and whether it would notice."""

from random import Random

import pytest

from tests.fuzz.targets import TARGETS

SEEDS = range(200)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_written_is_read_or_refused_in_a_line(name: str) -> None:
    target, answers = TARGETS[name], set()
    for seed in SEEDS:
        text = target.text(Random(f"{name} {seed}"))
        try:
            answers.add(target.check(text))
        except Exception as error:
            again = f"python -m tests.fuzz --inputs 1 --seed {seed} --target '{name}'"
            raise AssertionError(f"{again}: {error!r}") from error
    # The changes reach what they are meant for: some texts are read, and some are not.
    assert len(answers) > 1, answers
