"""A crowd of binds to one node: no more are written than its kubelet has answered, but for two."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from scheduler_extender import verbs
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Refusals, Settings, refusing
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.refusal import Refusal
from scheduler_extender.verbs import BindError, Binding, Turns
from scheduler_extender.verbs.binding import NO_ANSWER
from scheduler_extender.verbs.turns import AT_ONCE, MOST_WAITING
from scheduler_extender.wire import BindingArgs
from tests.nodes import switched
from tests.scheduler_extender.serving import Clock
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.core.devices import NodeName, PodUid
from topology.core.placement.rejections import BUSY
from topology.core.report import Report
from topology.core.requests import gpu_request

NODE, OTHER = NodeName("switched"), NodeName("other")
ERROR = "UnexpectedAdmissionError"


class Crowd:
    """Pods that are bound to nodes all at once, and kubelets that answer when the test says so."""

    def __init__(self, longest: float = FOREVER, settings: Settings = Settings()) -> None:
        self.cluster = Cluster(Clock(), settings)
        for name in (NODE, OTHER):
            self.cluster.put_record(switched(16, name), Report("boot", 1))
        self.turns = Turns(self.cluster, longest)
        self.written: queue.Queue[PodRecord] = queue.Queue()
        self.binds = 0
        self.late: Callable[[], bool] = lambda: False
        self._lock = threading.Lock()

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return self.cluster.pod(uid)

    def write(self, binding: Binding) -> None:
        found = self.cluster.pod(binding.uid)
        assert found is not None
        bound = replace(found, node=binding.node)
        with self._lock:
            self.binds += 1
        self.cluster.put_pod(bound)
        self.written.put(bound)

    def bind(self, uid: str, node: NodeName = NODE) -> str:
        """The error of a bind; empty where it was written."""
        pod = PodRecord(PodUid(uid), "default", uid, None, gpu_request(1))
        self.cluster.put_pod(pod)
        args = BindingArgs(uid, "default", uid, node)
        try:
            verbs.bind(self.cluster, self, args, lambda: "now", self.late, self.turns)
        except BindError as error:
            return str(error)
        return ""

    @contextmanager
    def bound(self, *wanted: tuple[int, NodeName]) -> Iterator[list[Future[str]]]:
        """Binds at one time, so many to each node. A test that fails gives them up."""
        names = [(f"{node}-{i}", node) for count, node in wanted for i in range(count)]
        with ThreadPoolExecutor(len(names)) as threads:
            try:
                yield [threads.submit(self.bind, uid, node) for uid, node in names]
            except BaseException:
                self.late = lambda: True
                raise

    def answer(self, *, refused: bool) -> None:
        """The kubelet answers the oldest bind that was written."""
        bound = self.written.get(timeout=PATIENCE)
        if refused:
            bound = replace(bound, phase="Failed", refusal=Refusal(ERROR))
        self.cluster.put_pod(replace(bound, admitted=not refused))

    def flying(self, node: NodeName = NODE) -> int:
        """Binds that are reserved and not written."""
        return len(self.cluster.facts(node).in_flight)


def test_of_a_crowd_that_is_refused_two_are_lost() -> None:
    crowd = Crowd()
    with crowd.bound((8, NODE)) as binds:
        eventually(lambda: crowd.binds == AT_ONCE and crowd.flying() == 8 - AT_ONCE)
        crowd.answer(refused=True)
        crowd.answer(refused=True)
        errors = [bind.result(PATIENCE) for bind in binds]
    assert crowd.binds == AT_ONCE
    assert errors.count("") == AT_ONCE
    assert set(errors) == {"", refusing(ERROR, alike=True).reason}
    assert crowd.flying() == 0


def test_a_bind_that_has_waited_is_decided_by_what_is_known_then() -> None:
    crowd = Crowd()
    with crowd.bound((3, NODE)) as binds:
        eventually(lambda: crowd.binds == AT_ONCE and crowd.flying() == 1)
        somebody = PodRecord(PodUid("other"), "default", "other", NODE, gpu_request(14))
        crowd.cluster.put_pod(somebody)
        crowd.answer(refused=False)
        errors = [bind.result(PATIENCE) for bind in binds]
    assert sorted(errors) == ["", "", BUSY.reason]
    assert crowd.flying() == 0


def test_a_crowd_that_is_admitted_gets_in() -> None:
    crowd = Crowd()
    with crowd.bound((8, NODE)) as binds:
        for done in range(8):
            eventually(lambda done=done: crowd.binds == min(8, done + AT_ONCE))  # type: ignore[misc]
            crowd.answer(refused=False)
        assert {bind.result(PATIENCE) for bind in binds} == {""}


def test_other_nodes_are_not_waited_for() -> None:
    crowd = Crowd()
    with crowd.bound((4, NODE)), crowd.bound((2, OTHER)) as others:
        assert {bind.result(PATIENCE) for bind in others} == {""}
        for _ in range(6):
            crowd.answer(refused=False)


def test_a_kubelet_that_does_not_answer_holds_nobody_up() -> None:
    crowd = Crowd(longest=0.05)
    with crowd.bound((5, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}
    assert crowd.binds == 5


def test_who_waits_for_too_long_is_tried_again() -> None:
    """And what was reserved for it is free again."""
    crowd = Crowd()
    with crowd.bound((AT_ONCE, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}
    crowd.late = iter([False, False, True, True]).__next__
    assert crowd.bind("patient") == NO_ANSWER
    assert crowd.flying() == 0
    crowd.late = lambda: False
    crowd.answer(refused=False)
    assert crowd.bind("patient") == ""


def test_nobody_waits_where_refusals_are_ignored() -> None:
    crowd = Crowd(settings=Settings(refusals=Refusals.IGNORE))
    with crowd.bound((5, NODE)) as binds:
        assert {bind.result(PATIENCE) for bind in binds} == {""}


def test_no_more_wait_than_threads_can_be_spared() -> None:
    """Whoever comes when many wait is written at once."""
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
