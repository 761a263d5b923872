"""No GPU is given twice by replicas that take over from each other at the worst moments (ADR 12).

``GPU_TOPOLOGY_FENCING_SEEDS`` says how many histories are played.
"""

import os
from itertools import chain

import pytest

from tests.property.fencing import RULES, gives_twice, served

SEEDS = int(os.environ.get("GPU_TOPOLOGY_FENCING_SEEDS", "200"))
STEPS = 2500


def test_no_gpu_is_given_twice() -> None:
    assert [seed for seed in range(SEEDS) if gives_twice(seed, STEPS)] == []


def test_pods_get_it_one_after_the_other() -> None:
    assert sum(served(seed, STEPS) for seed in range(20)) > 60


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    """Else the model could not have found a fault. The seed that showed it comes first."""
    seeds = chain([RULES[rule]], range(5000))
    assert any(gives_twice(seed, STEPS, frozenset({rule})) for seed in seeds)
