"""The facts of a node and their transitions, as tables: before, what happens, after."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.occupants import Occupants, Roster, Terminated
from scheduler_extender.state.node.transitions import (
    MOST_TERMINATED,
    note_terminated,
    with_pod,
    with_record,
    with_unconfirmed,
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
EMPTY = NodeInfo(NODE.name)
Step = Callable[[NodeInfo], NodeInfo]


def record(uid: str, count: int = 1, **how: object) -> PodRecord:
    pod = PodRecord(PodUid(uid), "default", uid, NODE.name, gpu_request(count))
    return replace(pod, **how)  # type: ignore[arg-type]


def report(sequence: int, *allocations: Allocation, **how: object) -> Report:
    return replace(Report("boot", sequence, allocations=allocations), **how)  # type: ignore[arg-type]


def comes(found: Report, uid: str = "") -> Step:
    return lambda info: with_record(info, NODE, found, uid)


def bound(uid: str, **how: object) -> Step:
    return lambda info: with_pod(info, record(uid, **how))  # type: ignore[arg-type]


def deleted(uid: str, version: int) -> Step:
    def step(info: NodeInfo) -> NodeInfo:
        return with_unconfirmed(info, info.pods.bound[PodUid(uid)], version)

    return step


def assumed(pod: PodRecord) -> Step:
    def step(info: NodeInfo) -> NodeInfo:
        return replace(info, pods=info.pods.with_assumed(pod)).without_old_terminated()

    return step


def ends(uid: str) -> Step:
    def step(info: NodeInfo) -> NodeInfo:
        pod = replace(info.pods.bound[PodUid(uid)], phase="Succeeded")
        return with_pod(note_terminated(info, pod), pod)

    return step


CASES: dict[str, tuple[list[Step], int, tuple[str, ...]]] = {
    # Steps; what is left for others then; who counts as leaving or departed.
    "nothing but a record": ([comes(report(1))], 4, ()),
    "a pod is bound": ([comes(report(1)), bound("a", count=2)], 2, ()),
    "a bind is in flight": (
        [comes(report(1)), assumed(record("a", 3))],
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
    "a pod ends before a report shows it, and nobody else is unacknowledged": (
        [comes(report(1)), bound("a"), ends("a")],
        4,
        (),
    ),
    "a pod ends before a report shows it, beside one that is unacknowledged": (
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
            lambda info: without_pod(info, PodUid("b")),
        ],
        4,
        (),
    ),
}


@pytest.mark.parametrize(("steps", "left", "gone"), CASES.values(), ids=CASES.keys())
def test_transitions(steps: list[Step], left: int, gone: tuple[str, ...]) -> None:
    info = EMPTY
    for step in steps:
        before, known = info, repr(info)
        info = step(info)
        assert repr(before) == known, "a transition changes nothing of what was"
    assert offered(info).availability.devices_left == left
    unconfirmed = [f"{uid} leaving" for uid in info.pods.unconfirmed]
    assert (*unconfirmed, *(f"{uid} departed" for uid in info.pods.terminated)) == gone


def test_a_record_that_contradicts_itself_is_unusable_and_forgets_no_pod() -> None:
    twice = report(2, shown("x", 0), shown("y", 0))
    info = with_record(with_pod(EMPTY, record("a")), NODE, report(1), "")
    terminated = {PodUid("d"): Terminated(record("d"), frozenset({PodUid("a")}))}
    info = with_record(info.with_terminated(terminated), NODE, twice, "")
    assert info.last_offer(GPU) is UNUSABLE
    why = info.record.contradiction(GPU) or ""
    assert "is held by two pods" in why
    assert "default/" not in why, "who reads it may not see these pods"
    assert info.pods.terminated == terminated


def test_promises_are_those_that_no_report_has_shown_kept() -> None:
    pod = record("a", 2, promised=Constraints(min_nvlinks=1))
    assert isinstance(pod.request, GpuRequest)
    info = with_pod(with_record(EMPTY, NODE, report(1), ""), pod)
    assert info.promises
    assert not with_record(info, NODE, report(2, shown("a", 0, 1)), "").promises
    assert not with_pod(info, replace(pod, phase="Failed")).promises


def test_without_the_only_unacknowledged_pod_no_terminated_pod_counts() -> None:
    info = with_pod(with_record(EMPTY, NODE, report(1), ""), record("stays"))
    for i in range(MOST_TERMINATED + 1):
        info = ends(f"u{i}")(with_pod(info, record(f"u{i}")))
        info = without_pod(info, PodUid(f"u{i}"))
    assert info.pods.too_many_terminated
    assert not info.without(frozenset({PodUid("stays")})).pods.too_many_terminated


def test_ended_pods_count_only_where_a_report_shows_them() -> None:
    """Whatever came before, the facts are as if they had been made of these pods anew."""
    rng = random.Random(7)
    info, sequence = comes(report(0))(EMPTY), 0
    for _ in range(300):
        uid = f"p{rng.randrange(6)}"
        known = [found for found in info.pods.bound.values() if not found.ended]
        step = rng.choice(["bound", "bound", "ends", "gone", "report"])
        if step == "bound":
            info = bound(uid, phase=rng.choice(["Pending", "Running"]))(info)
        elif step == "ends" and known:
            info = with_pod(info, replace(rng.choice(known), phase="Failed"))
        elif step == "gone":
            info = without_pod(info, PodUid(uid))
        else:
            sequence += 1
            named = rng.sample(sorted(info.pods.bound), min(2, len(info.pods.bound)))
            if rng.random() < 0.2:
                named = [PodUid("stranger")]
            allocations = [shown(name, gpu) for gpu, name in enumerate(named)]
            if allocations and rng.random() < 0.3:  # the agent did not know whose they are
                allocations[0] = replace(allocations[0], pod_uid=PodUid(""))
            info = comes(report(sequence, *allocations))(info)
        again = Roster.of(info.pods.bound.values())
        pods = Occupants(bound=again, acknowledged=info.pods.acknowledged)
        anew = NodeInfo(info.name, record=info.record, pods=pods)
        assert info.pods.bound.alive == {
            u: found for u, found in info.pods.bound.items() if not found.ended
        }
        assert offered(info).availability == offered(anew).availability
        assert offered(info).availability == all_in_ledger(info)


def all_in_ledger(info: NodeInfo) -> object:
    """What is available by a ledger into which every pod is entered."""
    assert info.topology is not None
    report, pods = info.report or Report(), info.pods
    known = Occupants(acknowledged=pods.acknowledged)
    return ledger(info.topology, report, pods.every, GPU, known).availability
