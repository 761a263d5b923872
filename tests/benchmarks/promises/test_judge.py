"""What the closed loop counts as broken, and what it counts apart."""

import json
import random
from dataclasses import replace

import pytest

from benchmarks.promises.judge import Judge
from benchmarks.promises.workloads import app, manifest
from scheduler_extender.simulator.clock import Clock
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.simulator.pods import Job, PodEntry, PublishedReport
from scheduler_extender.simulator.scene import Scene, Tally
from scheduler_extender.verbs import Binding
from topology.core.report import Health, Report
from topology.machines import machine

NODE = machine("dgx1-v100").topology("node")
LINKED, UNLINKED = (0, 3), (0, 5)
OBSERVED, DECIDED = 10.0, 11.0


def judged(
    verdict: str,
    held: tuple[int, ...] | None,
    *,
    disturbed: float = 0.0,
    healed: float = 0.0,
    sick: tuple[int, ...] = (),
) -> Tally:
    """A pair's promise over a report of time 10, and what became of it at time 20."""
    clock = Clock(random.Random(1))
    scene = Scene(clock, {NODE.name: NODE}, {}, Delays(), Faults())
    judge = Judge(scene)
    entry = PodEntry.of(Job(0, 60, manifest("pair", 1, {"link": "nvlink"}, app(2))), 0)
    health = tuple(Health(NODE.gpus[p].uuid, healthy=False) for p in sick)
    record = entry.record = replace(entry.record, node=NODE.name)
    entry.view = PublishedReport(Report(health=health), "0", OBSERVED)
    for when, happens in ((disturbed, judge.disturbed), (healed, judge.unsettled)):
        if when:
            clock.now = when
            happens(NODE.name)
    clock.now = entry.decided = DECIDED
    placement = json.dumps({"verdict": verdict}) if verdict else ""
    binding = Binding(record.namespace, record.name, record.uid, NODE.name, placement)
    judge.placed(entry, binding, OBSERVED)
    clock.now = 20.0
    if held is None:
        judge.refused(entry, "why")
    else:
        judge.admitted(entry, held)
    return scene.tally


@pytest.mark.parametrize("held", [UNLINKED, None], ids=["other GPUs", "refused"])
def test_what_a_report_could_show_is_broken(held: tuple[int, ...] | None) -> None:
    for found in (judged("guaranteed", held), judged("guaranteed", held, disturbed=9.0)):
        assert (found.broken, found.unacknowledged) == ({"guaranteed": 1}, {})
    assert judged("guaranteed", LINKED).broken == {}


@pytest.mark.parametrize("held", [UNLINKED, None], ids=["other GPUs", "refused"])
def test_what_no_report_could_show_is_counted_apart(held: tuple[int, ...] | None) -> None:
    found = judged("guaranteed", held, disturbed=10.5)
    assert (found.broken, found.unacknowledged) == ({}, {"guaranteed": 1})
    assert not found.kubelet_refusals


def test_a_bind_in_shadow_mode_promises_nothing() -> None:
    found = judged("", UNLINKED)
    assert (found.required_placed, found.promised, found.broken) == (0, {}, {})


def test_a_guarantee_holds_when_a_gpu_heals_and_an_expectation_need_not() -> None:
    assert judged("guaranteed", UNLINKED, healed=10.5).broken == {"guaranteed": 1}
    found = judged("expected", UNLINKED, healed=10.5)
    assert (found.broken, found.unacknowledged) == ({}, {"expected": 1})


def test_a_gpu_that_was_known_to_be_sick_breaks_a_promise() -> None:
    assert judged("guaranteed", LINKED, sick=(3,)).broken == {"guaranteed": 1}
    assert judged("guaranteed", LINKED, sick=(4,)).broken == {}
