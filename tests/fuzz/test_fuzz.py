"""A moment of ``python -m tests.fuzz``, always with the same seeds; and whether it would notice."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutation import changed_json, changed_text
from tests.fuzz.targets import PODS, TARGETS, WORDS

SEEDS = range(400)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_written_is_read_or_refused_in_a_line(name: str) -> None:
    target, said = TARGETS[name], set()
    for seed in SEEDS:
        text = target.text(Random(f"{name} {seed}"))
        try:
            said.add(target.check(text))
        except Exception as error:
            again = f"python -m tests.fuzz --inputs 1 --seed {seed} --target '{name}'"
            raise AssertionError(f"{again}: {error!r}") from error
    # The changes reach what they are meant for: some texts are read, and some are not.
    assert len(said) > 1, said


def test_a_seed_makes_the_same_text_again() -> None:
    for name, target in TARGETS.items():
        assert target.text(Random(name)) == target.text(Random(name))


def test_the_changes_get_everywhere() -> None:
    """Whatever place of a value a reader has its fault in, it is found out."""

    def nulled(value: object) -> bool:
        match value:
            case {
                "spec": {"containers": [*_, {"resources": {"limits": {"nvidia.com/gpu": None}}}]}
            }:
                return True
        return False

    rng = Random(1)
    assert any(nulled(changed_json(rng, PODS[1])) for _ in range(20_000))
    seen = {changed_text(rng, "a: [b, c]\nd: e\n", WORDS) for _ in range(2_000)}
    assert any("b, c" not in text for text in seen)
    assert any(text.startswith("d: e") for text in seen)
    assert any("&a " in text for text in seen)
