"""The model beside Kubernetes' own managers: a short run, and every counterexample of the past.

Where the programs cannot be built these tests skip and say why; with
``GPU_TOPOLOGY_REQUIRE_DIFFERENTIAL=1``, as in ``.ci/run``, they fail instead. The long run is
``make differential``.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.histories import random_history
from tests.differential.managers import Managers, programs
from tests.differential.nodes import POLICIES
from tests.differential.play import play
from tests.differential.requiring import building
from tests.differential.tally import Table

pytestmark = pytest.mark.long

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
TIMES = 8  # Ties fall at random in the real programs, so each case is played so often
ADMISSIONS = 1200
SEED = 1_000_000


@pytest.fixture(scope="module")
def managers() -> Iterator[Managers]:
    """The real managers; built the first time."""
    with building():
        built = programs()
    with Managers(built) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_counterexample_of_the_past_is_predicted_now(case: Path, managers: Managers) -> None:
    history = json.loads(case.read_text())
    played = [play(history, managers) for _ in range(TIMES)]
    assert any(one.admissions for one in played)
    assert [found for one in played for found in one.found if not found.unacknowledged] == []


def test_whatever_the_real_managers_do_was_predicted(managers: Managers) -> None:
    table, seed = Table(), SEED
    while table.whole["admissions"] < ADMISSIONS:
        played = play(random_history(seed), managers)
        table.add(played)
        assert [c for c in played.found if not c.unacknowledged] == [], f"seed {seed}"
        seed += 1
    print("\n".join(table.lines()))
    assert {name.split()[0] for name in table.families} == set(POLICIES)
    assert table.whole["promised"] > ADMISSIONS / 2
    silent = [t for name, t in table.families.items() if name.endswith("managers-none")]
    decided, admitted = sum(t["decided"] for t in silent), sum(t["admissions"] for t in silent)
    assert decided > 0.7 * admitted  # a prediction that says "anything" is sound and worth nothing
