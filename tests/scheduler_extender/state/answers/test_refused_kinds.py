"""Refusals are counted by what pods ask: which kinds a node takes, and which wait."""

import itertools
import random
from dataclasses import replace

import pytest

from scheduler_extender.framework.equivalence import ask
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.node.history import FIRST_PAUSE, LONGEST_PAUSE, MOST_KINDS
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
from topology.core.requests import Constraints, gpu_request

LINKED = gpu_request(1, Constraints(link=LinkKind.NVLINK))


def test_a_kind_that_never_fits_shuts_out_itself_alone(world: World) -> None:
    """Its own CPUs cannot be aligned; pods without CPUs of their own go on as before."""
    for i in range(12):
        world.refuse(f"pinned-{i}", asking=PINNED)
        world.answer(world.bind(f"plain-{i}"))
        assert not world.shut()
        world.bind(f"more-{i}")
        assert not world.shut()
        for uid in ("plain", "more"):
            world.cluster.drop_pod(PodUid(f"{uid}-{i}"))
        while world.shut(PINNED):
            world.clock.now += 1
    assert world.clock.now == 10 + 20 + 40 + 80 + 160 + 7 * LONGEST_PAUSE
    assert world.refusals[-1].in_a_row == 12


def test_what_no_kubelet_sees_makes_no_kind(world: World) -> None:
    """Constraints are ours: two pods with the same containers are the same to a kubelet."""
    world.refuse("a", asking=LINKED)
    world.refuse("b")
    assert world.shut()
    assert world.shut(LINKED)


def test_two_kinds_without_an_admission_between_them_shut_out_every_kind(world: World) -> None:
    world.refuse("a", asking=PINNED)
    assert world.shut(PINNED)
    assert not world.shut(PAIR)
    world.refuse("b")
    assert world.shut(PAIR)
    assert [(r.in_a_row, r.pause) for r in world.refusals] == [(1, 10), (2, 10)]
    while world.shut(PAIR):
        world.clock.now += 1
    world.refuse("c", asking=PAIR)
    assert (world.refusals[-1].in_a_row, world.refusals[-1].pause) == (3, 20)


def test_the_nodes_back_off_ends_with_an_admission_and_a_kinds_own_goes_on(world: World) -> None:
    world.refuse("a", asking=PINNED)
    world.refuse("b")
    while world.shut(PAIR):
        world.clock.now += 1
    world.refuse("again", asking=PINNED)
    assert world.shut(PAIR)
    world.answer(world.bind("pair", PAIR))
    assert not world.shut(gpu_request(3))
    assert not world.shut()
    assert world.shut(PINNED)
    assert world.cluster.node_info(NODE).history.backoffs[GPU].of_node is None
    assert len(world.cluster.node_info(NODE).history.backoffs[GPU].of_kind[PINNED].refusals) == 2


def test_an_admission_between_two_kinds_keeps_the_node_open(world: World) -> None:
    world.refuse("a", asking=PINNED)
    world.answer(world.bind("good", PAIR))
    world.refuse("b")
    world.answer(world.bind("as-good", PAIR))
    assert not world.shut(PAIR)
    assert not world.shut(gpu_request(3))
    assert world.shut(PINNED)
    assert world.shut()


def test_one_pod_of_each_kind_tries_when_the_nodes_pause_ends() -> None:
    """So kinds that never fit, and are always first, keep no other away for good."""
    world, never = World(), (PINNED, gpu_request(9))
    good = []
    for second in range(3600):
        world.clock.now = float(second)
        open_ = [asking for asking in (*never, PAIR) if not world.refuses(asking)]
        pods = [world.bind(f"{second}-{asking.text}", asking) for asking in open_]
        for pod in pods:
            world.answer(pod, "" if pod.request == PAIR else ERROR)
            world.cluster.drop_pod(pod.uid)
            if pod.request == PAIR:
                good.append(second)
    assert good[0] == 0
    assert max(b - a for a, b in itertools.pairwise(good)) <= LONGEST_PAUSE
    lost = {kind: sum(r.pod.request == kind for r in world.refusals) for kind in never}
    assert all(count <= 16 for count in lost.values())


def test_nodes_that_differ_in_the_pod_on_trial_share_no_answers() -> None:
    """Both have been refused a pod, and hold one that no report shows; one of those is admitted."""
    world, second = World(), NodeName("second")
    world.cluster.put_record(switched(8, second), Report("boot", 1))
    early: dict[NodeName, PodRecord] = {}
    for name in (NODE, second):
        for uid in ("early", "refused"):
            found = PodRecord(PodUid(f"{uid}-{name}"), "default", uid, name, ASKING)
            early.setdefault(name, found)
            world.cluster.put_pod(found)
        world.answer(found, ERROR)
    world.clock.now += FIRST_PAUSE
    world.cluster.expire()
    world.answer(early[NODE])
    for _ in range(2):
        reported = dict(ask(world.cluster.snapshot(), ASKING, [NODE, second]).each())
        assert {name: answer and answer.rejection for name, answer in reported.items()} == {
            NODE: None,
            second: SHUT_TO_ALIKE,
        }


@pytest.mark.parametrize("step", [1, -1])
def test_after_a_restart_kinds_are_distinguished(world: World, step: int) -> None:
    answers = [("a", ERROR, 45.0, PINNED), ("b", ERROR, 30.0, PINNED), ("good", "", 20.0, ASKING)]
    for uid, reason, age, asking in answers[::step]:
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, asking), reason, age)
    world.bind("another")
    assert not world.shut()
    assert not world.shut(PINNED)  # its pause of 20 s is over
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
                world.cluster.put_pod(replace(pod, phase="Succeeded"))
    listed = [raw(manifest_of(pod)) for pod in world.cluster.node_info(NODE).pods.bound.values()]
    rng.shuffle(listed)
    again = World()
    again.clock.now = world.clock.now
    PodSink(again.cluster, lambda: 1000.0 + again.clock.now).replace(listed, "1")
    assert [again.refuses(asking) for asking in kinds] == [
        world.refuses(asking) for asking in kinds
    ]


def test_the_number_of_cached_kinds_is_bounded(world: World) -> None:
    for i in range(3 * MOST_KINDS):
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 2))
    assert len(world.cluster.node_info(NODE).history.backoffs[GPU].of_kind) == MOST_KINDS
