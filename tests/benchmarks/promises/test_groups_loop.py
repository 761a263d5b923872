"""The closed loop over groups and gangs: nothing broken, no group split, no gang half-bound by us.

`make closed-loop` plays it ten times as long.
"""

import os
from collections import Counter

import pytest

from benchmarks.promises.plays import Play
from scheduler_extender.simulator.scene import Tally
from tests.benchmarks.promises.playing import play_all

pytestmark = pytest.mark.long

TIMES = int(os.environ.get("GPU_TOPOLOGY_CLOSED_LOOP_TIMES", "1"))
PLAYS = tuple(
    Play("extender", 900 * TIMES, seed, "racks", "groups", rate, 0.0, restarts=2 * TIMES)
    for seed, rate in ((11, 0.5), (12, 0.9))
)


@pytest.fixture(scope="module")
def tallies() -> list[Tally]:
    return play_all(PLAYS)


def test_no_promise_is_broken_and_no_group_split(
    tallies: list[Tally], capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = sum(t.gang_refusals for t in tallies)
    with capsys.disabled():
        print(f"\n{sum(t.group_members for t in tallies)} members of groups were bound,", end=" ")
        print(f"{sum(t.gang_binds for t in tallies)} binds of gangs, {refusals} refused")
    for tally in tallies:
        assert tally.broken.total() == 0, tally.broken_jobs
        assert tally.split_groups == 0
        assert tally.kubelet_refusals.total() == 0
        assert tally.faults == []
        assert tally.mispredictions.total() == 0


def test_few_binds_of_gangs_are_refused_since_something_has_changed(tallies: list[Tally]) -> None:
    for tally in tallies:
        assert tally.gang_refusals < 0.02 * tally.gang_binds


def test_groups_and_gangs_of_every_kind_are_placed(tallies: list[Tally]) -> None:
    asked = sum((t.asked_by_kind for t in tallies), Counter[str]())
    placed = sum((t.placed_by_kind for t in tallies), Counter[str]())
    for kind in ("rack", "gang-rack", "node", "gang-pairs", "gang-triples", "rack-preferred"):
        assert placed[kind] > 0, kind
    assert placed.total() >= 0.6 * asked.total()
    assert sum(tally.whole_groups for tally in tallies) > 100
