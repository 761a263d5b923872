"""Our model of nodes with DRA beside kube-scheduler's own allocator: a short run.

The long run is a part of ``make differential``.
"""

from pathlib import Path

import pytest

from tests.differential.claims import run, run_compiled
from tests.differential.managers import allocators
from tests.differential.ownclaims import run_own
from tests.differential.requiring import building
from tests.differential.selectors import run_selectors

pytestmark = pytest.mark.long

QUESTIONS = 1500
SEED = 2_000_000


@pytest.fixture(scope="module", params=["1.36", "1.37"])
def allocator(request: pytest.FixtureRequest) -> Path:
    """The allocator of a release; built the first time."""
    with building():
        return allocators()[str(request.param)]


def test_whatever_the_scheduler_allocates_was_predicted(
    allocator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run(QUESTIONS, SEED, allocator)
    with capsys.disabled():
        print(f"\n{tally.line}")
    assert tally.found == []
    assert tally.exact > 0.3 * QUESTIONS
    assert tally.refused > 0.1 * QUESTIONS
    assert tally.unusable == 0


def test_what_pods_own_claims_get_was_predicted(
    allocator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run_own(QUESTIONS // 3, SEED, allocator)
    with capsys.disabled():
        print(f"\n{tally.line}")
    assert tally.found == []
    assert tally.unpredicted < 0.05 * tally.questions
    assert tally.exact > 0.4 * tally.questions
    assert tally.refused > 0.1 * tally.questions


def test_selectors_are_read_as_kube_scheduler_reads_them(
    allocator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run_selectors(QUESTIONS, SEED, allocator)
    with capsys.disabled():
        print(f"\n{tally.line}")
    assert tally.found == []
    assert tally.unpredicted < 0.005 * tally.alike
    assert tally.alike > 0.4 * QUESTIONS


@pytest.mark.parametrize("pairs", [False, True], ids=["any machine", "linked pairs"])
def test_a_compiled_claim_gets_gpus_that_do_wherever_there_are_some(
    allocator: Path, pairs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run_compiled(QUESTIONS // 3, SEED, allocator, pairs=pairs)
    with capsys.disabled():
        print(f"\n{tally.line}")
    assert tally.found == []
    assert tally.by_claim >= tally.questions * (1 if pairs else 0.95)
    assert not pairs or tally.by_plain < 0.6 * tally.questions


def test_devices_in_another_order_are_found_out(
    allocator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that is planted: a taint of a device is passed over."""
    monkeypatch.setattr("scheduler_extender.kube.draobjects.BARS", ())
    assert len(run(300, SEED, allocator).found) > 5
