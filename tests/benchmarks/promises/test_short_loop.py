"""The closed loop, short: a play of each kind. `make test-long` plays thirty times as much.

No promise called guaranteed is broken, no GPU is given twice, nothing happens unforeseen, no group
is split. The judge that says so finds bugs that are planted.
"""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.promises.plays import Play, play
from scheduler_extender.framework import evaluator
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.setrule import OfSet
from scheduler_extender.framework.setrules import groups
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.verbs import assume
from topology.core.allocators.dra import FirstFit
from topology.core.allocators.protocol import Call, Outcomes
from topology.core.placement import verdict
from topology.core.placement.podoutcomes import Judgement, judged

DRA = Play("extender", 120, 1, foreign=0.0, restarts=2, dra=0.5)
PLAYS = {
    "any": Play("extender", 200, 1, restarts=2),
    "pods that others bind": Play("extender", 120, 2, foreign=0.1, restarts=1),
    "aligned": Play("extender", 120, 3, nodes="aligned", rate=0.9, foreign=0.0, restarts=1),
    "containers": Play("extender", 100, 5, workload="containers", rate=0.6, foreign=0.0),
    "allocators": Play("extender", 100, 6, nodes="allocators", foreign=0.0),
    "sick GPUs": Play("extender", 100, 7, foreign=0.0, faults=Faults(gpus_sicken=60.0)),
    "deleted by force": Play("extender", 100, 9, foreign=0.0, faults=Faults(forced=0.3)),
    "binds that come late": Play("extender", 100, 10, foreign=0.0, faults=Faults(late_commits=0.1)),
    "slices": Play("extender", 100, 1, nodes="sliced", workload="slices", rate=1.2, foreign=0.0),
    "memory": Play("extender", 100, 8, nodes="memory", workload="shares", rate=1.5, foreign=0.0),
    "groups": Play("extender", 100, 11, "racks", "groups", 0.5, 0.0, restarts=1),
    "DRA": DRA,
}


@pytest.mark.parametrize("what", PLAYS.values(), ids=PLAYS)
def test_every_promise_is_kept(what: Play) -> None:
    tally = play(what)
    assert tally.faults == []
    assert tally.promised["guaranteed"] > 0
    assert tally.broken["guaranteed"] == 0, tally.broken_jobs
    assert tally.overcommitted == 0, tally.broken_jobs
    assert tally.split_groups == 0
    if not what.foreign:
        assert tally.kubelet_refusals["UnexpectedAdmissionError"] == 0
        assert tally.mispredictions["outside-outcomes"] == 0
    assert tally.required_placed >= 0.4 * tally.required


@pytest.mark.parametrize("kind", ["allocators", "containers", "slices", "memory"])
def test_the_judge_finds_a_promise_that_is_broken(kind: str, planted: pytest.MonkeyPatch) -> None:
    """A bug that is planted: where some outcome is good, every one is called so."""

    def some_is_every(*asked: Any) -> Judgement:
        found = judged(*asked)
        return found._replace(every=found.some)

    planted.setattr(verdict, "judged", some_is_every)
    assert play(replace(PLAYS[kind], pods=100)).broken["guaranteed"] > 0


GANGS = Play("extender", 250, 12, "racks", "groups", 0.9, 0.0, delays=Delays(bind=0.0, watch=0.0))


def test_no_gang_is_half_bound_where_nothing_changes_after_filter() -> None:
    """Every bind of a gang follows its filter at once, and every watch shows it at once."""
    tally = play(GANGS)
    assert tally.gang_binds > 50
    assert tally.gang_refusals == 0


def test_the_judge_finds_gangs_that_filter_lets_go_to_any_domain(
    planted: pytest.MonkeyPatch,
) -> None:
    """A bug that is planted: filter takes no group into account; bind does."""

    def only_bind(question: Question, member: Member | None) -> OfSet | None:
        return None if question.purpose is Purpose.FILTER else groups.of_set(question, member)

    planted.setattr(evaluator, "SET_RULES", [only_bind])
    assert play(replace(GANGS, pods=100)).gang_refusals > 0


def test_the_judge_finds_claims_whose_devices_were_not_checked(
    planted: pytest.MonkeyPatch,
) -> None:
    """A bug that is planted: bind takes filter's word. Pods come so fast that some are chosen for
    before the claims of those before them are known."""

    def unproven(*asked: Any) -> Any:
        results = evaluate(*asked)
        if results.node_decisions:  # else it waits for its claim
            results.by_reason = {None: list(results.node_decisions)}
        return results

    burst = replace(DRA, pods=200, seed=2, rate=8.0, runs=8.0)
    sound = play(burst)
    assert (sound.broken.total(), sound.vetoes > 0) == (0, True)
    evaluate = evaluator.evaluate
    planted.setattr(assume, "evaluate", unproven)
    assert play(burst).broken.total() > 0


def test_the_judge_finds_an_order_that_was_never_read(planted: pytest.MonkeyPatch) -> None:
    """A bug that is planted: devices are thought to be taken in the order of their numbers."""
    outcomes = FirstFit.outcomes

    def by_number(allocator: FirstFit, call: Call) -> Outcomes:
        return outcomes(replace(allocator, order=tuple(sorted(allocator.order))), call)

    planted.setattr(FirstFit, "outcomes", by_number)
    assert play(DRA).broken["guaranteed"] > 0
