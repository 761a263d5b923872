"""Recorded choices of NVIDIA's plugin with ``packed`` and ``distributed`` were predicted."""

from dataclasses import replace

import pytest

from tests.differential.choices import POLICIES
from tests.differential.recording import Choice, recorded

LEAST = 150  # questions of each policy


def outside(choice: Choice) -> set[int]:
    """Recorded choices that were not predicted, as sets of devices."""
    predicted = choice.predicted().sets
    assert predicted is not None, choice
    return {choice.pool(counts) for counts in choice.seen} - set(predicted)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_recorded_choice_was_predicted(policy: str) -> None:
    mine = [choice for choice in recorded() if choice.policy == policy]
    assert len(mine) >= LEAST
    assert sum(any(choice.required) for choice in mine) >= LEAST / 5
    assert not [choice for choice in mine if outside(choice)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_prediction_is_what_comes(policy: str) -> None:
    """Where the model says that it is exact, and so often as the plugin was asked."""
    few = [c for c in recorded() if c.policy == policy and _is_exact(c)]
    assert len(few) >= LEAST / 2
    assert all(len(choice.seen) == len(choice.predicted().sets or ()) for choice in few)


def _is_exact(choice: Choice) -> bool:
    found = choice.predicted()
    return found.exact and found.sets is not None and len(found.sets) <= 2


def test_a_model_of_the_other_policy_is_found_out() -> None:
    """A bug that is planted: what one policy chose, taken for the other's."""
    other = dict(zip(POLICIES, reversed(POLICIES), strict=True))
    wrong = [c for c in recorded() if outside(replace(c, policy=other[c.policy]))]
    assert len(wrong) > LEAST / 2
