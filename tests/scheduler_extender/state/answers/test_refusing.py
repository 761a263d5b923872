"""When a node pauses, and what lifts a pause: no network, no clock."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.files.clusterfile import feed, parse
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.history import LONGEST_PAUSE, MOST_REFUSALS
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord, manifest_of
from tests.nodes import pod, record_of
from tests.scheduler_extender.state.answers.refusals import ASKING, ERROR, GPU, NODE, World
from topology.core.devices import PodUid
from topology.core.requests import gpu_request

STATUSES: dict[str, tuple[dict[str, Any], bool]] = {
    "bound": ({}, False),
    "admitted, pulls its image": ({"startTime": "2026-11-22T07:00:00Z"}, True),
    "running": ({"phase": "Running"}, True),
    "refused": (
        {"phase": "Failed", "reason": ERROR, "startTime": "2026-11-22T07:00:00Z"},
        False,
    ),
    "ran and failed": (
        {
            "phase": "Failed",
            "startTime": "2026-11-22T07:00:00Z",
            "containerStatuses": [{"name": "main"}],
        },
        True,
    ),
    "failed, nobody knows why": (
        {"phase": "Failed", "reason": "Unheard", "startTime": "2026-11-22T07:00:00Z"},
        False,
    ),
    "a start time that is none": ({"startTime": "soon"}, False),
}


@pytest.mark.parametrize(("status", "admitted"), STATUSES.values(), ids=STATUSES)
def test_whether_the_kubelet_has_taken_a_pod(status: dict[str, Any], admitted: bool) -> None:
    found = record_of(pod(1, node=NODE, **status))
    assert found.admitted == admitted
    assert record_of(manifest_of(found)) == found


def test_pauses_double_up_to_five_minutes(world: World) -> None:
    world.refuse("a")
    pauses = [world.pause()]
    for i in range(40):
        world.refuse(f"trial-{i}")
        pauses.append(world.pause())
    assert pauses[:7] == [10, 20, 40, 80, 160, 300, 300]
    assert set(pauses[7:]) == {LONGEST_PAUSE}
    assert len(world.cluster.node_info(NODE).history.backoffs[GPU].of_kind[ASKING].refusals) == (
        MOST_REFUSALS
    )


def test_a_controller_loses_sixteen_pods_in_the_first_hour_and_then_twelve(world: World) -> None:
    """The controller replaces a refused pod at once, on a node that refuses each."""
    lost = [0, 0]
    for second in range(7200):
        world.clock.now = float(second)
        if not world.refuses(ASKING):
            world.refuse(f"p{second}")
            lost[second // 3600] += 1
    assert lost == [16, 12]


def test_many_pods_that_were_bound_before_make_one_pause(world: World) -> None:
    world.refuse(*(f"p{i}" for i in range(20)))
    assert [r.pause for r in world.refusals] == [10] + 19 * [0]
    assert world.pause() == 10


def test_many_pods_that_others_have_bound_shorten_no_pause(world: World) -> None:
    for i in range(6):
        world.refuse(f"trial-{i}")
        world.pause()
    world.refuse("trial-6")
    world.refuse(*(f"other-{i}" for i in range(2 * MOST_REFUSALS)))
    assert world.pause() == LONGEST_PAUSE
    world.refuse("trial-7")
    assert world.pause() == LONGEST_PAUSE


def test_after_a_pause_one_pod_may_try(world: World) -> None:
    """Until one succeeds: a crowd would be lost if the kubelet refuses them all."""
    world.refuse("a")
    world.pause()
    assert not world.shut()
    flying = world.cluster.assume(NODE, PodRecord(PodUid("c"), "default", "c", None, ASKING))
    assert flying is not None
    assert world.shut()
    trial = world.bind("c")
    assert world.shut()
    info = world.cluster.node_info(NODE)
    assert not info.without(frozenset({trial.uid})).refusing(ASKING)  # it is not in its own way
    world.answer(trial)
    assert not world.shut()
    assert not world.cluster.node_info(NODE).history.backoffs
    world.bind("d")
    assert not world.shut()


def test_an_ended_pod_in_a_late_report_proves_nothing(world: World) -> None:
    early = world.bind("early")
    world.cluster.put_pod(replace(early, phase="Failed"))
    world.refuse("a", "b")
    world.report("early")
    assert world.shut()
    world.cluster.put_pod(replace(early, phase="Failed", admitted=True))
    assert world.shut()


def test_refused_pods_are_not_gone_through_again_for_each_that_comes(world: World) -> None:
    waits = world.bind("waits")
    world.refuse(*(f"p{i}" for i in range(50)))
    info = world.cluster.node_info(NODE)
    assert info.history.backoffs[GPU].beside == {waits.uid}
    world.refuse("another")
    before, now = info.pods.bound.ended, world.cluster.node_info(NODE).pods.bound.ended
    shared = [a is b for a, b in zip(before.buckets, now.buckets, strict=True)]
    assert shared.count(False) == 1


def test_a_trial_that_is_deleted_makes_room_for_another(world: World) -> None:
    world.refuse("a", "b")
    world.pause()
    trial = world.bind("c")
    assert world.shut()
    world.cluster.drop_pod(trial.uid)
    assert not world.shut()


def test_a_report_that_shows_the_trial_lifts_the_pause(world: World) -> None:
    world.refuse("a", "b")
    world.pause()
    world.bind("c")
    world.report("c")
    assert not world.cluster.node_info(NODE).history.backoffs


@pytest.mark.parametrize("by", ["status", "report"])
def test_a_pod_bound_before_the_last_refusal_lifts_no_pause(world: World, by: str) -> None:
    early = world.bind("early")
    world.refuse("a", "b")
    if by == "status":
        world.answer(early)
    else:
        world.report("early")
    assert world.shut()


def test_a_success_between_starts_the_count_again(world: World) -> None:
    for i in range(6):
        world.refuse(f"bad-{i}")
        assert world.pause() == 10
        world.answer(world.bind(f"good-{i}"))
        assert not world.shut()
    assert {r.in_a_row for r in world.refusals} == {1}


def test_the_pods_own_faults_are_reported_and_shut_nothing(world: World) -> None:
    world.refuse("a", "b", "c", reason="SysctlForbidden")
    assert not world.shut()
    assert [r.in_a_row for r in world.refusals] == [0, 0, 0]


def test_other_resources_are_not_shut(world: World) -> None:
    world.refuse("a", "b")
    assert not world.refuses(gpu_request(1, resource="nvidia.com/gpu.shared"))


def test_ignored_refusals_shut_nothing_and_are_reported() -> None:
    world = World(Settings(refusals=Refusals.IGNORE))
    world.refuse("a", "b")
    assert not world.shut()
    assert [r.pause for r in world.refusals] == [0, 0]


def test_a_node_without_a_record_is_shut_too(world: World) -> None:
    world.cluster.drop_record(NODE)
    world.refuse("a", "b")
    assert world.shut()
    world.pause()
    world.bind("c")
    assert not world.cluster.node_info(NODE).without(frozenset({PodUid("c")})).refusing(ASKING)


ORDERS = {"as they came": 1, "the latest first": -1}


@pytest.mark.parametrize("step", ORDERS.values(), ids=ORDERS)
def test_after_a_restart_the_pause_follows_from_the_pods(step: int) -> None:
    """Refused 100, 88 and 45 s ago: the third pause, of 40 s, is over."""
    for latest, left in ((45.0, 0), (20.0, 20)):
        world = World()
        world.clock.now = 5.0
        ages = {"a": 100.0, "b": 88.0, "c": latest}
        for uid, age in [*ages.items()][::step]:
            world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
        assert world.pause() == left
        assert (
            len(world.cluster.node_info(NODE).history.backoffs[GPU].of_kind[ASKING].refusals) == 3
        )
        assert not world.refusals


@pytest.mark.parametrize("step", ORDERS.values(), ids=ORDERS)
def test_after_a_restart_a_success_in_between_counts(world: World, step: int) -> None:
    answers = [("a", ERROR, 40.0), ("b", ERROR, 30.0), ("good", "", 20.0), ("c", ERROR, 4.0)]
    for uid, reason, age in answers[::step]:
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), reason, age)
    (backoff,) = world.cluster.node_info(NODE).history.backoffs[GPU].of_kind.values()
    assert [r.at for r in backoff.refusals] == [-4.0]
    assert world.pause() == 6


def test_an_operator_lifts_the_pause(world: World) -> None:
    world.cluster.put_node(NODE, NodeObject())
    world.refuse("a", "b")
    world.cluster.put_node(NODE, NodeObject(), resumed=1.0)  # whatever the operator's clock
    assert not world.shut()
    world.refuse("c", "d")
    world.cluster.put_node(NODE, NodeObject(), resumed=1.0)  # nothing new
    world.cluster.put_node(NODE, NodeObject())  # nor is it to take the annotation away
    assert world.shut()


def test_an_operator_whose_clock_was_ahead_lifts_the_next_pause_too(world: World) -> None:
    world.cluster.put_node(NODE, NodeObject())
    for resumed in (5_000.0, 1_010.0):
        world.refuse(f"a-{resumed}", f"b-{resumed}")
        assert world.shut()
        world.cluster.put_node(NODE, NodeObject(), resumed=resumed)
        assert not world.shut()


@pytest.mark.parametrize("pods_first", [True, False])
def test_after_a_restart_what_was_forgiven_stays_so(world: World, pods_first: bool) -> None:
    if not pods_first:
        world.cluster.put_node(NODE, NodeObject(), resumed=975.0)
    for uid, age in (("a", 40.0), ("b", 30.0), ("c", 20.0)):
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
    if pods_first:
        world.cluster.put_node(NODE, NodeObject(), resumed=975.0)
    (backoff,) = world.cluster.node_info(NODE).history.backoffs[GPU].of_kind.values()
    assert len(backoff.refusals) == 1
    assert not world.shut()


def test_a_pause_that_is_left_after_a_restart_ends(world: World) -> None:
    """The Node comes after its pods, forgiven from between their refusals."""
    for uid, age in (("a", 25.0), ("b", 24.0), ("c", 12.0), ("d", 1.0)):
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
    world.cluster.put_node(NODE, NodeObject(), resumed=1000.0 + world.clock.now - 24.5)
    (backoff,) = world.cluster.node_info(NODE).history.backoffs[GPU].of_kind.values()
    assert len(backoff.refusals) == 3
    assert world.pause() == 8


def test_a_snapshot_replays_whether_the_node_takes_pods() -> None:
    world = World(Settings(stale_after=None))
    for step in range(2):
        if step:
            world.answer(world.bind("good"))
        else:
            world.refuse("a", "b")
        text = b"".join(cluster_file(world.cluster)).decode()
        replayed = Cache(world.clock, world.cluster.settings)
        feed(replayed, parse(text))
        shut = answer(replayed.snapshot(), replayed.node_info(NODE), ASKING).rejection is not None
        assert shut == world.shut() == (step == 0)


def test_the_event_says_whether_the_refusal_was_predicted(world: World) -> None:
    world.refuse("a")
    world.pause()
    world.refuse("b")
    assert [r.foreseen for r in world.refusals] == [(), ()]
    assert world.refusals[1].words == (
        "switched refused default/b (UnexpectedAdmissionError), no known hazard; 2 refusals in "
        "a row; the node gets no GPU pods for 20 s"
    )
