"""The facts of a node and their transitions, as tables: before, what happens, after."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.occupants import Departed, Occupants, Roster
from scheduler_extender.state.node.transitions import (
    MOST_DEPARTED,
    note_departure,
    with_bind_in_flight,
    with_leaving,
    with_pod,
    with_record,
    without_pod,
)
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import offered, shown, switched
from topology.core.devices import PodUid
from topology.core.placement import UNUSABLE
from topology.core.report import Allocation, Condition, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request

NODE = switched(4, "node")
GPU = "nvidia.com/gpu"
EMPTY = NodeFacts(NODE.name)
Step = Callable[[NodeFacts], NodeFacts]


def record(uid: str, count: int = 1, **how: object) -> PodRecord:
    pod = PodRecord(PodUid(uid), "default", uid, NODE.name, gpu_request(count))
    return replace(pod, **how)  # type: ignore[arg-type]


def report(sequence: int, *allocations: Allocation, **how: object) -> Report:
    return replace(Report("boot", sequence, allocations=allocations), **how)  # type: ignore[arg-type]


def comes(found: Report, uid: str = "") -> Step:
    return lambda facts: with_record(facts, NODE, found, uid)


def bound(uid: str, **how: object) -> Step:
    return lambda facts: with_pod(facts, record(uid, **how))  # type: ignore[arg-type]


def deleted(uid: str, version: int) -> Step:
    def step(facts: NodeFacts) -> NodeFacts:
        pod = facts.pods.bound[PodUid(uid)]
        return with_leaving(facts, pod, version)

    return step


def ends(uid: str) -> Step:
    def step(facts: NodeFacts) -> NodeFacts:
        pod = replace(facts.pods.bound[PodUid(uid)], phase="Succeeded")
        return with_pod(note_departure(facts, pod), pod)

    return step


CASES: dict[str, tuple[list[Step], int, tuple[str, ...]]] = {
    # Steps; what is left for others then; who counts as leaving or departed.
    "nothing but a record": ([comes(report(1))], 4, ()),
    "a pod is bound": ([comes(report(1)), bound("a", count=2)], 2, ()),
    "a bind is in flight": (
        [comes(report(1)), lambda facts: with_bind_in_flight(facts, record("a", 3))],
        1,
        (),
    ),
    "a report shows the pod": (
        [comes(report(1)), bound("a"), comes(report(2, shown("a", 0)))],
        3,
        (),
    ),
    "a pod is deleted, and nobody knows what its kubelet does": (
        [comes(report(1)), bound("a"), deleted("a", 20)],
        3,
        ("a leaving",),
    ),
    "its agent did not know of the deletion": (
        [comes(report(1)), bound("a"), deleted("a", 20), comes(report(2, pods_version="19"))],
        3,
        ("a leaving",),
    ),
    "its agent knew of the deletion, and its kubelet may not have met it yet": (
        [comes(report(1)), bound("a"), deleted("a", 20), comes(report(2, pods_version="20"))],
        3,
        ("a leaving",),
    ),
    "until the next report": (
        [
            comes(report(1)),
            bound("a"),
            deleted("a", 20),
            comes(report(2, pods_version="20")),
            comes(report(3, pods_version="20")),
        ],
        4,
        (),
    ),
    "its kubelet was seen to have it, and its agent knew of the deletion": (
        [
            comes(report(1)),
            bound("a"),
            comes(report(2, shown("a", 0))),
            deleted("a", 20),
            comes(report(3, pods_version="20")),
        ],
        4,
        (),
    ),
    "its agent knew and shows it still": (
        [
            comes(report(1)),
            bound("a"),
            deleted("a", 20),
            comes(report(2, shown("a", 0), pods_version="20")),
        ],
        3,
        ("a leaving",),
    ),
    "a report that nobody vouches for proves nothing": (
        [
            comes(report(1)),
            bound("a"),
            deleted("a", 20),
            comes(report(2, pods_version="20", conditions=(Condition("Ready", False, "x", "y"),))),
        ],
        3,
        ("a leaving",),
    ),
    "an agent that does not say what it knew: the second report counts": (
        [comes(report(1)), bound("a"), deleted("a", 20), comes(report(2)), comes(report(3))],
        4,
        (),
    ),
    "a record made anew starts its numbers again": (
        [
            comes(report(7), "first"),
            bound("a"),
            deleted("a", 20),
            comes(report(1), "second"),
            comes(report(3), "second"),
        ],
        4,
        (),
    ),
    "after a reboot nobody is leaving": (
        [comes(report(1)), bound("a"), deleted("a", 20), comes(report(1, boot_id="another"))],
        4,
        (),
    ),
    "a pod ends before a report shows it, and nobody else is unreported": (
        [comes(report(1)), bound("a"), ends("a")],
        4,
        (),
    ),
    "a pod ends before a report shows it, beside one that is unreported": (
        [comes(report(1)), bound("a"), bound("b"), ends("a")],
        3,
        ("a departed",),
    ),
    "until that one is reported": (
        [comes(report(1)), bound("a"), bound("b"), ends("a"), comes(report(2, shown("b", 1)))],
        3,
        (),
    ),
    "or is gone": (
        [
            comes(report(1)),
            bound("a"),
            bound("b"),
            ends("a"),
            lambda facts: without_pod(facts, PodUid("b")),
        ],
        4,
        (),
    ),
}


@pytest.mark.parametrize(("steps", "left", "gone"), CASES.values(), ids=CASES.keys())
def test_transitions(steps: list[Step], left: int, gone: tuple[str, ...]) -> None:
    facts = EMPTY
    for step in steps:
        before, known = facts, repr(facts)
        facts = step(facts)
        assert repr(before) == known, "a transition changes nothing of what was"
    available = offered(facts).availability
    assert available.devices_left == left
    leaving = [f"{uid} leaving" for uid in facts.pods.leaving]
    assert (*leaving, *(f"{uid} departed" for uid in facts.pods.departed)) == gone


def test_a_record_that_contradicts_itself_is_unusable_and_forgets_nobody() -> None:
    twice = report(2, shown("x", 0), shown("y", 0))
    facts = with_record(with_pod(EMPTY, record("a")), NODE, report(1), "")
    departed = {PodUid("d"): Departed(record("d"), frozenset({PodUid("a")}))}
    facts = with_record(facts.with_departed(departed), NODE, twice, "")
    assert facts.last_offer(GPU) is UNUSABLE
    why = facts.record.contradiction(GPU) or ""
    assert "is held by two pods" in why
    assert "default/" not in why, "who reads it may not see these pods"
    assert facts.pods.departed == departed


def test_promises_are_those_that_no_report_has_shown_kept() -> None:
    wanted = Constraints(min_nvlinks=1)
    pod = record("a", 2, promised=wanted)
    assert isinstance(pod.request, GpuRequest)
    facts = with_pod(with_record(EMPTY, NODE, report(1), ""), pod)
    assert facts.promises
    assert not with_record(facts, NODE, report(2, shown("a", 0, 1)), "").promises
    assert not with_pod(facts, replace(pod, phase="Failed")).promises


def test_without_the_only_unreported_pod_nobody_departed_counts() -> None:
    facts = with_pod(with_record(EMPTY, NODE, report(1), ""), record("stays"))
    for i in range(MOST_DEPARTED + 1):
        facts = ends(f"u{i}")(with_pod(facts, record(f"u{i}")))
        facts = without_pod(facts, PodUid(f"u{i}"))
    assert facts.pods.too_many_departed
    assert not facts.without(frozenset({PodUid("stays")})).pods.too_many_departed


def test_ended_pods_count_only_where_a_report_shows_them() -> None:
    """Whatever came before, the facts are as if they had been made of these pods anew."""
    rng = random.Random(7)
    facts, sequence = comes(report(0))(EMPTY), 0
    for _ in range(300):
        uid = f"p{rng.randrange(6)}"
        known = [found for found in facts.pods.bound.values() if not found.ended]
        step = rng.choice(["bound", "bound", "ends", "gone", "report"])
        if step == "bound":
            facts = bound(uid, phase=rng.choice(["Pending", "Running"]))(facts)
        elif step == "ends" and known:
            facts = with_pod(facts, replace(rng.choice(known), phase="Failed"))
        elif step == "gone":
            facts = without_pod(facts, PodUid(uid))
        else:
            sequence += 1
            named = rng.sample(sorted(facts.pods.bound), min(2, len(facts.pods.bound)))
            if rng.random() < 0.2:
                named = [PodUid("stranger")]
            told = [shown(name, gpu) for gpu, name in enumerate(named)]
            if told and rng.random() < 0.3:  # the agent did not know whose they are
                told[0] = replace(told[0], pod_uid=PodUid(""))
            facts = comes(report(sequence, *told))(facts)
        again = Roster.of(facts.pods.bound.values())
        pods = Occupants(bound=again, reported=facts.pods.reported)
        anew = NodeFacts(facts.name, record=facts.record, pods=pods)
        assert facts.pods.bound.alive == {
            u: found for u, found in facts.pods.bound.items() if not found.ended
        }
        assert offered(facts).availability == offered(anew).availability
        assert offered(facts).availability == all_in_ledger(facts)


def all_in_ledger(facts: NodeFacts) -> object:
    """What is available by a ledger into which every pod is entered."""
    assert facts.topology is not None
    report, pods = facts.report or Report(), facts.pods
    known = Occupants(reported=pods.reported)
    return ledger(facts.topology, report, pods.every, GPU, known).availability
