"""Refusals are counted by what pods ask: which kinds a node takes, and which wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.asking.enquiry import ask
from scheduler_extender.state.node.streak import (
    LONGEST_PAUSE,
    MOST_KINDS,
    NEW_PAUSE,
    NEW_PAUSE_AFTER,
)
from scheduler_extender.state.pods.record import PodRecord, manifest_of
from tests.nodes import switched
from tests.scheduler_extender.conftest import raw
from tests.scheduler_extender.state.answers.refusals import (
    ASKING,
    ERROR,
    GPU,
    NODE,
    PAIR,
    PINNED,
    SHUT_TO_ALIKE,
    World,
)
from topology.core.devices import NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Report
from topology.core.requests import Constraints, Exclusive, gpu_request

LINKED = gpu_request(1, Constraints(link=LinkKind.NVLINK))


def test_a_kind_that_never_fits_shuts_out_itself_alone() -> None:
    """Its own CPUs cannot be aligned; pods without CPUs of their own go on as before."""
    world = World()
    for i in range(12):
        world.refuse(f"pinned-{i}", asking=PINNED)
        world.answer(world.bind(f"plain-{i}"))
        assert not world.shut()
        world.bind(f"more-{i}")
        assert not world.shut()
        for uid in ("plain", "more"):
            world.cluster.feed.drop_pod(PodUid(f"{uid}-{i}"))
        while world.shut(PINNED):
            world.clock.now += 1
    assert world.clock.now == 30 + 60 + 120 + 240 + 480 + 960 + 5 * LONGEST_PAUSE
    assert world.told[-1].in_a_row == 12


def test_what_no_kubelet_sees_makes_no_kind() -> None:
    """Constraints are ours: two pods with the same containers are the same to a kubelet."""
    world = World()
    world.refuse("a", asking=LINKED)
    world.refuse("b")
    assert world.shut()
    assert world.shut(LINKED)


def test_two_kinds_in_a_row_shut_out_everybody() -> None:
    world = World()
    world.refuse("a", "b", asking=PINNED)
    assert world.shut(PINNED)
    assert not world.shut(PAIR)
    world.refuse("c")
    assert world.shut(PAIR)
    assert len(world.told) < 5
    assert [(r.in_a_row, r.pause) for r in world.told] == [(1, 0), (2, 30), (3, 30)]


def test_when_the_node_heals_all_kinds_are_let_in() -> None:
    """Whoever is admitted first lets all kinds in that were refused with it."""
    world = World()
    for i, asking in enumerate((ASKING, PINNED, PINNED, PINNED)):
        world.refuse(f"{i}", asking=asking)
    for i in range(5):
        while world.shut(PINNED):
            world.clock.now += 1
        world.refuse(f"again-{i}", asking=PINNED)
    assert world.shut(PINNED)
    assert not world.shut(PAIR)
    world.answer(world.bind("pair", PAIR))
    assert not world.shut()
    assert not world.shut(PINNED)


def test_a_success_between_two_kinds_keeps_the_node_open() -> None:
    world = World()
    world.refuse("a", asking=PINNED)
    world.answer(world.bind("good", PAIR))
    world.refuse("b")
    world.answer(world.bind("as-good", PAIR))
    assert not world.shut(PAIR)
    assert not world.shut(PINNED)


def test_kinds_that_were_at_fault_before_prove_nothing_against_the_node() -> None:
    """And the node still closes to all within five refusals once it refuses everybody."""
    world, never = World(), (PINNED, replace(PAIR, exclusive=Exclusive.CPUS))
    for i, asking in enumerate(never):
        world.refuse(f"never-{i}", asking=asking)
        world.answer(world.bind(f"good-{i}"))
    for i, asking in enumerate(never):
        world.refuse(f"again-{i}", asking=asking)
    assert not world.shut()
    world.refuse("b", asking=ASKING)
    world.refuse("c", asking=PAIR)
    assert world.shut(gpu_request(3))


def test_kinds_that_come_again_and_again_keep_the_others_away_for_one_pause_only() -> None:
    """They are always first to try; only the first refusal of each makes the others wait."""
    world, never = World(), (PINNED, gpu_request(9))
    good = 0
    for second in range(600):
        world.clock.now = float(second)
        for asking in (*never, PAIR):
            if world.refuses(asking):
                continue
            pod = world.bind(f"{second}-{asking.text}", asking)
            world.answer(pod, "" if asking is PAIR else ERROR)
            world.cluster.feed.drop_pod(pod.uid)
            good += asking is PAIR
    assert good == 600 - 30
    lost = {kind: sum(r.pod.request == kind for r in world.told) for kind in never}
    assert all(5 <= count <= 7 for count in lost.values())


@pytest.mark.parametrize("healthy_first", [True, False])
@pytest.mark.parametrize("kinds", [2 * MOST_KINDS, 5])
def test_many_kinds_that_never_fit_lose_few_pods(kinds: int, *, healthy_first: bool) -> None:
    """In an hour, each made anew at once, beside a kind that has run here and runs on."""
    world, never = World(), [gpu_request(i + 9) for i in range(kinds)]
    world.answer(world.bind("before"))
    world.cluster.feed.drop_pod(PodUid("before"))
    ran = 0
    for second in range(0, 3600, 10):
        world.clock.now = float(second)
        for asking in (ASKING, *never) if healthy_first else (*never, ASKING):
            if world.refuses(asking):
                continue
            pod = world.bind(f"{second}-{asking.count}", asking)
            world.answer(pod, "" if asking is ASKING else ERROR)
            world.cluster.feed.drop_pod(pod.uid)
            ran += asking is ASKING
    assert len(world.told) < min(11 * kinds, 200)
    assert ran > 300  # of 360: it waits while two new kinds in a row are refused


def test_new_kinds_wait_once_many_in_a_row_did_not_fit() -> None:
    """Those that have run here do not wait; the first new one that is admitted ends it."""
    world, new = World(), gpu_request(3)
    for i in range(NEW_PAUSE_AFTER):
        assert not world.refuses(new)
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 10))
    world.answer(world.bind("good"))
    assert world.refuses(new)
    assert not world.refuses(ASKING)
    world.clock.now += NEW_PAUSE
    assert not world.refuses(new)
    trial = world.bind("trial", new)
    assert world.refuses(gpu_request(4))
    assert not world.refuses(ASKING)
    world.answer(trial)
    assert not world.refuses(gpu_request(4))


def test_a_pause_of_new_kinds_grows_no_longer_by_an_admission() -> None:
    """Five were refused at once or soon after; one of them is admitted, so four are left."""
    world, new = World(), gpu_request(3)
    kinds = [gpu_request(i + 10) for i in range(NEW_PAUSE_AFTER + 1)]
    pods = [world.bind(f"p{i}", asking) for i, asking in enumerate(kinds)]
    for bound in pods[:-1]:
        world.answer(bound, ERROR)
    world.clock.now += 100
    world.answer(pods[-1], ERROR)
    world.answer(world.bind("good", kinds[0]))
    assert world.refuses(new)
    world.clock.now += NEW_PAUSE - 100
    assert not world.refuses(new)


def test_a_kind_that_is_forgotten_is_new_again() -> None:
    """Though it was admitted once: else kinds that fit no more would be lost again and again."""
    world, forgotten = World(), gpu_request(9)
    for i in range(MOST_KINDS + 1):
        world.answer(world.bind(f"ran-{i}", gpu_request(i + 9)))
    for i in range(MOST_KINDS + 1):
        world.clock.now += 1
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 9))
    streaks = world.cluster.facts(NODE).history.streaks[GPU]
    assert forgotten not in streaks.of_kind
    assert forgotten not in world.cluster.facts(NODE).history.admitted[GPU]


def test_nodes_that_differ_in_who_tries_share_no_answers() -> None:
    """Both have been refused a pod, and hold one that no report shows; one of those is admitted."""
    world, second = World(), NodeName("second")
    world.cluster.feed.put_record(switched(8, second), Report("boot", 1))
    early: dict[NodeName, PodRecord] = {}
    for name in (NODE, second):
        for uid in ("early", "refused"):
            found = PodRecord(PodUid(f"{uid}-{name}"), "default", uid, name, ASKING)
            early.setdefault(name, found)
            world.cluster.feed.put_pod(found)
        world.answer(found, ERROR)
    world.answer(early[NODE])
    for _ in range(2):
        told = dict(ask(world.cluster.snapshot(), ASKING, [NODE, second]).each())
        assert {name: answer and answer.rejection for name, answer in told.items()} == {
            NODE: None,
            second: SHUT_TO_ALIKE,
        }


@pytest.mark.parametrize("step", [1, -1])
def test_after_a_restart_kinds_are_told_apart(step: int) -> None:
    world = World()
    answers = [("a", ERROR, 40.0, PINNED), ("b", ERROR, 30.0, PINNED), ("good", "", 20.0, ASKING)]
    for uid, reason, age, asking in answers[::step]:
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, asking), reason, age)
    world.bind("another")
    assert not world.shut()
    assert not world.shut(PINNED)  # its pause of 30 s is over
    world.bind("trial", PINNED)
    assert world.shut(PINNED)
    assert not world.shut()


@pytest.mark.parametrize("seed", range(30))
def test_a_restart_that_lists_the_pods_in_any_order_takes_what_the_former_extender_took(
    seed: int,
) -> None:
    """But for the time since: both know of the same refusals and admissions."""
    rng, world = random.Random(seed), World()
    kinds = [gpu_request(i + 1) for i in range(rng.choice((1, 2, 3, 20)))]
    for i in range(rng.randint(1, 40)):
        world.clock.now += rng.choice((2, 5, 31, 61, 200))
        asking = rng.choice(kinds)
        if not world.refuses(asking):
            world.answer(world.bind(f"p{i}", asking), "" if rng.random() < 0.3 else ERROR)
            pod = world.cluster.pod(PodUid(f"p{i}"))
            if pod is not None and pod.admitted:
                world.cluster.feed.put_pod(replace(pod, phase="Succeeded"))
    listed = [raw(manifest_of(pod)) for pod in world.cluster.facts(NODE).pods.bound.values()]
    rng.shuffle(listed)
    again = World()
    again.clock.now = world.clock.now
    PodSink(again.cluster, lambda: 1000.0 + again.clock.now).replace(listed, "1")
    assert [again.refuses(asking) for asking in kinds] == [
        world.refuses(asking) for asking in kinds
    ]


def test_kinds_without_end_are_not_all_remembered() -> None:
    world = World()
    for i in range(3 * MOST_KINDS):
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 2))
    assert len(world.cluster.facts(NODE).history.streaks[GPU].of_kind) == MOST_KINDS
