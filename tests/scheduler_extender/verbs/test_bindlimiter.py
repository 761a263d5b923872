"""A crowd of binds to one node: no more are written than its kubelet has answered, but for two."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from scheduler_extender import verbs
from scheduler_extender.clientlimits import BIND_THREADS
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs.binding import NO_ANSWER
from scheduler_extender.verbs.bindlimiter import (
    AT_ONCE,
    KNOWN_AT_ONCE,
    KUBELET,
    MOST_WAITING,
    REPORT,
    WaitingBind,
)
from scheduler_extender.wire import BindingArgs
from tests.deadlines import ending_when
from tests.nodes import bridged, switched
from tests.scheduler_extender.verbs.crowd import NODE, OTHER, SINGLE, Crowd
from tests.waiting import PATIENCE, eventually
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.placement.rejections import BUSY, IN_PROGRESS
from topology.core.report import Report
from topology.core.requests import Constraints, GpuRequest, gpu_request

PAIR = gpu_request(2, Constraints(link=LinkKind.NVLINK))
FULL = (None, frozenset[DeviceId]())


def test_a_bind_that_has_waited_is_decided_by_what_is_known_then() -> None:
    crowd = Crowd()
    with crowd.bound((3, NODE)) as binds:
        eventually(lambda: crowd.binds == AT_ONCE and crowd.flying() == 1)
        another = PodRecord(PodUid("other"), "default", "other", NODE, gpu_request(14))
        crowd.cluster.put_pod(another)
        crowd.answer(refused=False)
        errors = [bind.result(PATIENCE) for bind in binds]
    assert sorted(errors) == ["", "", BUSY.message]
    assert crowd.flying() == 0


def test_more_binds_are_written_at_a_time_once_one_of_their_kind_is_admitted() -> None:
    crowd = Crowd()
    with crowd.bound((12, NODE)) as binds:
        eventually(lambda: crowd.binds == AT_ONCE and crowd.flying() == 12 - AT_ONCE)
        for done in range(1, 13):
            crowd.answer(refused=False)
            eventually(lambda done=done: crowd.binds == min(12, done + KNOWN_AT_ONCE))  # type: ignore[misc]
        assert {bind.result(PATIENCE) for bind in binds} == {""}


def test_other_nodes_are_not_waited_for() -> None:
    crowd = Crowd()
    with crowd.bound((4, NODE)), crowd.bound((2, OTHER)) as others:
        assert {bind.result(PATIENCE) for bind in others} == {""}
        for _ in range(6):
            crowd.answer(refused=False)


def test_a_kubelet_that_does_not_answer_delays_no_bind_for_ever() -> None:
    crowd = Crowd(longest=0.05)
    with crowd.bound((5, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}
    assert crowd.binds == 5


def test_a_bind_that_waits_for_too_long_is_tried_again() -> None:
    """And what it held is free again."""
    crowd = Crowd()
    with crowd.bound((AT_ONCE, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}
    crowd.late = iter([False, False, True, True]).__next__
    assert crowd.bind("patient") == NO_ANSWER
    assert crowd.flying() == 0
    crowd.late = lambda: False
    crowd.answer(refused=False)
    assert crowd.bind("patient") == ""


def test_no_bind_waits_where_refusals_are_ignored() -> None:
    crowd = Crowd(settings=Settings(refusals=Refusals.IGNORE))
    with crowd.bound((5, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}


def test_no_more_wait_than_threads_can_be_spared() -> None:
    """A bind that comes when many wait is written at once."""
    crowd = Crowd()
    names = [NodeName(f"full-{i}") for i in range(2 * MOST_WAITING // 16)]
    for name in names:
        crowd.cluster.put_record(switched(16, name), Report("boot", 1))
    count = 16 * len(names)
    with crowd.bound(*((16, name) for name in names)) as binds:
        eventually(lambda: crowd.binds >= count - MOST_WAITING)
        for _ in range(count):
            crowd.answer(refused=False)
        assert {bind.result(PATIENCE) for bind in binds} == {""}


# Placements on their way: of three GPUs two are bridged, and a pair was promised its bridge. A
# single pod that the kubelet takes first could have one of the two.


def beside_a_pair(gpus: int = 3) -> tuple[Crowd, PodRecord]:
    crowd = Crowd()
    topology = replace(bridged(gpus), name=NODE, allocator=AllocatorConfig("best-effort"))
    crowd.cluster.put_record(topology, Report("boot", 2))
    return crowd, PodRecord(
        PodUid("pair"), "default", "pair", NODE, PAIR, promised=PAIR.constraints
    )


@contextmanager
def awaits_changes(crowd: Crowd, uid: str, request: GpuRequest = SINGLE) -> Iterator[Future[str]]:
    """A bind that listens for changes of its node, and is not assumed meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        bind = threads.submit(crowd.bind, uid, request=request)
        try:
            eventually(lambda: bool(crowd.limiter.waiting(REPORT)) and crowd.flying() == 0)
            assert not bind.done()
            yield bind
        finally:
            crowd.late = lambda: True
    assert not crowd.limiter.waiting(REPORT)


def test_a_bind_waits_for_the_placement_on_its_way() -> None:
    crowd, pair = beside_a_pair()
    crowd.cluster.put_pod(pair)
    with awaits_changes(crowd, "single") as bind:
        crowd.show(pair, 0, 1)
        assert bind.result(PATIENCE) == ""
    assert crowd.binds == 1


def test_a_bind_waits_while_its_own_promise_is_open() -> None:
    """A single pod on its way may get a GPU of the bridged two, or the third."""
    crowd, _ = beside_a_pair()
    single = PodRecord(PodUid("single"), "default", "single", NODE, SINGLE)
    crowd.cluster.put_pod(single)
    with awaits_changes(crowd, "pair", PAIR) as bind:
        crowd.show(single, 2)
        assert bind.result(PATIENCE) == ""
    assert crowd.binds == 1


@pytest.mark.parametrize("got", [0, 1])
def test_a_bind_whose_promise_cannot_be_withdrawn_is_rejected(got: int) -> None:
    crowd, _ = beside_a_pair()
    single = PodRecord(PodUid("single"), "default", "single", NODE, SINGLE)
    crowd.cluster.put_pod(single)
    crowd.show(single, got)
    assert "link=nvlink" in crowd.bind("pair", request=PAIR)
    assert crowd.binds == crowd.flying() == 0


def test_metrics_show_binds_that_wait_and_binds_that_were_given_up() -> None:
    crowd, pair = beside_a_pair()
    metrics = Metrics()
    metrics.show_limiter(crowd.limiter)

    def shown(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"gpu_topology_binds_{name}", labels)

    def look_while_it_waits() -> bool:
        if crowd.limiter.waiting(REPORT):
            assert (shown("waiting", awaits="report"), shown("waiting", awaits="kubelet")) == (
                1.0,
                0.0,
            )
            return True
        return False

    crowd.cluster.put_pod(pair)
    crowd.late = look_while_it_waits
    assert crowd.bind("single") == IN_PROGRESS.message
    assert (shown("waiting", awaits="report"), shown("late_for_report_total")) == (0.0, 1.0)
    assert shown("late_for_kubelet_total") == 0.0


def test_a_bind_waits_for_a_placement_until_it_is_late() -> None:
    crowd, pair = beside_a_pair()
    crowd.cluster.put_pod(pair)
    crowd.late = iter([False, False, True]).__next__
    assert crowd.bind("single") == IN_PROGRESS.message
    assert crowd.binds == crowd.flying() == 0
    assert not crowd.limiter.waiting(REPORT)


def test_an_allowed_bind_waits_for_a_placement_too() -> None:
    crowd, pair = beside_a_pair()

    def comes_meanwhile() -> bool:
        """After the decision, and before the bind is looked at again."""
        if crowd.flying() == 1 and crowd.cluster.pod(pair.uid) is None:
            crowd.cluster.put_pod(pair)
        elif crowd.limiter.waiting(REPORT) and crowd.cluster.pod(pair.uid) is not None:
            crowd.cluster.drop_pod(pair.uid)  # and its kubelet has nothing of it
        return False

    crowd.late = comes_meanwhile
    assert crowd.bind("single") == ""
    assert crowd.binds == 1


def test_an_allowed_bind_does_not_wait_for_one_that_waits_for_the_kubelet() -> None:
    """They would wait for each other: both turns are taken, and the pair is the third."""
    crowd, pair = beside_a_pair(gpus=5)
    with ThreadPoolExecutor(2) as threads:
        other = PodRecord(PodUid("other"), "default", "other", NODE, gpu_request(1))
        assert crowd.cluster.assume(NODE, other)
        assert crowd.limiter.wait(other, ending_when(crowd.late))
        third: list[Future[bool]] = []

        def comes_meanwhile() -> bool:
            if crowd.flying() == 2 and crowd.limiter._given[-1].uid == "single" and not third:
                assert crowd.cluster.assume(NODE, pair)
                third.append(threads.submit(crowd.limiter.wait, pair, ending_when(over.is_set)))
                eventually(lambda: bool(crowd.limiter.waiting(KUBELET)))
            return over.is_set()

        crowd.late, over = comes_meanwhile, threading.Event()
        try:
            assert threads.submit(crowd.bind, "single").result(PATIENCE) == IN_PROGRESS.message
            assert third[0].result(PATIENCE)
        finally:
            over.set()
    assert crowd.binds == 0


def test_the_number_of_binds_that_listen_for_changes_is_bounded() -> None:
    crowd, pair = beside_a_pair()
    crowd.cluster.put_pod(pair)
    with ExitStack() as others:
        for _ in range(MOST_WAITING):
            assert others.enter_context(crowd.limiter.joined(WaitingBind(REPORT, OTHER)))
        assert crowd.bind("single") == IN_PROGRESS.message
    assert not crowd.limiter.waiting(REPORT)


def test_a_listener_notices_a_change_while_another_goes() -> None:
    crowd, going = Crowd(), ExitStack()

    class LeavingEvent(threading.Event):
        def set(self) -> None:
            super().set()
            going.close()

    first, second = WaitingBind(REPORT, NODE, news=LeavingEvent()), WaitingBind(REPORT, NODE)
    going.enter_context(crowd.limiter.joined(first))
    with crowd.limiter.joined(second):
        crowd.cluster.put_report(NODE, Report("boot", 3, allocatable=FULL[1]))
        assert second.news.is_set()
        assert crowd.limiter.waiting(REPORT) == [second]


def test_some_threads_are_left_for_binds_that_wait_for_nothing() -> None:
    assert BIND_THREADS - 2 * MOST_WAITING >= MOST_WAITING, "for a turn, and for news of a node"


def test_a_fault_before_the_write_leaves_no_pod_assumed() -> None:
    crowd = Crowd()
    crowd.cluster.put_pod(PodRecord(PodUid("p"), "default", "p", None, gpu_request(1)))

    def broken() -> str:
        raise ZeroDivisionError

    args = BindingArgs("p", "default", "p", NODE)
    with pytest.raises(ZeroDivisionError):
        verbs.bind(crowd.cluster, crowd, args, broken, limiter=crowd.limiter)
    assert crowd.binds == crowd.flying() == 0
