"""What is answered belongs to one moment: facts and answers together, before a change or after it.

Each test names the mix-up of two moments that it would show.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from scheduler_extender.explain.answers import answers_to
from scheduler_extender.framework.equivalence import ask
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers import answercache, classes
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster import cache
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node import nodeinfo as node
from scheduler_extender.state.node import transitions
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.transitions import (
    MOST_TERMINATED,
    note_terminated,
    with_pod,
    with_record,
    without_pod,
)
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import bridged, offered, pcie, shown, switched, waiting
from topology.core.devices import NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.placement import IN_PROGRESS, Verdict
from topology.core.report import Report
from topology.core.requests import Constraints, Policy, gpu_request

NAME = NodeName("switched")
GPU = "nvidia.com/gpu"
NVLINK = Constraints(link=LinkKind.NVLINK)


def record(uid: str, count: int = 2, **how: Any) -> PodRecord:
    return replace(PodRecord(PodUid(uid), "default", uid, NAME, gpu_request(count)), **how)


# A reader beside a writer.


@contextmanager
def between_lines(files: set[str], look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` before every line of these files that this thread runs inside the block."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            look()
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(former)


def test_no_reader_sees_a_report_without_its_answers() -> None:
    """Else an answer of the former report would be given out beside the new one."""
    found = Cache(lambda: 0.0)
    found.put_record(switched(), Report("boot", 1))
    request = gpu_request(4, NVLINK)
    ask(found.snapshot(), request, [NAME])
    read: list[tuple[NodeInfo, Verdict | None]] = []

    def look() -> None:
        if not found.lock.acquire(blocking=False):
            return  # the writer has it
        try:
            info = found.node_info(NAME)
            ((_, decision),) = ask(found.snapshot(), request, [NAME]).each()
        finally:
            found.lock.release()
        assert decision is not None
        assert decision == decide(info, request, Settings())
        read.append((info, None if decision.assessment is None else decision.assessment.verdict))

    with ThreadPoolExecutor(1) as reader:

        def look_beside() -> None:
            reader.submit(look).result(timeout=600)

        files = {
            str(module.__file__) for module in (cache, answercache, classes, node, transitions)
        }
        with between_lines(files, look_beside):
            found.put_report(NAME, Report("boot", 2, allocations=(shown("a", 0),)))
        ask(found.snapshot(), request, [NAME])
        look_beside()
    assert [verdict for _, verdict in read[:1]] == [Verdict.GUARANTEED], "it has read before"
    assert read[-1][1] is Verdict.NOT_NOW, "and after"


def test_an_explanation_is_of_its_snapshot() -> None:
    """Else a row would have the score of before a report and the reason of after it."""
    known = Cache(lambda: 0.0)
    for topology in (switched(), bridged(), pcie()):
        known.put_record(topology, Report("boot", 1))
    for request in (gpu_request(2, NVLINK), gpu_request(4, NVLINK, Policy.PREFERRED)):
        seen = known.snapshot()
        then = answers_to(seen, waiting(request))
        known.put_pod(record("other", 3))
        assert answers_to(seen, waiting(request)) == then
        now = answers_to(known.snapshot(), waiting(request))
        assert [row.node for row in now] == [row.node for row in then]
        assert now != then
        known.drop_pod(PodUid("other"))


def test_a_pod_is_explained_with_the_nodes_of_the_same_snapshot() -> None:
    """Its own bind between two looks would count it against itself."""
    known = Cache(lambda: 0.0)
    known.put_record(switched(), Report("boot", 1))
    pod = record("whole", 4, node=None)
    known.put_pod(pod)
    known.assume(NAME, pod)
    for _ in range(2):  # in flight, then bound
        seen = known.snapshot()
        asking = seen.pod_named(pod.namespace, pod.name)
        assert asking is not None
        (row,) = answers_to(seen, asking)
        assert (row.decision.verdict, row.message, row.score) == ("guaranteed", "", None)
        (row,) = answers_to(seen, waiting(pod.request))  # type: ignore[arg-type]
        assert row.message == "not enough free GPUs"
        known.put_pod(replace(pod, node=NAME))


# What a decision was taken on, and what it is held against when the bind goes in flight.


def _crowded(promise: Constraints) -> NodeInfo:
    """More pods than can be followed came and went beside one; another runs and is not shown."""
    info = with_record(NodeInfo(NAME), switched(), Report("boot", 1), "")
    info = with_pod(info, record("stays", 1))
    info = with_pod(info, record("runs", 1, phase="Running", promised=promise))
    for number in range(MOST_TERMINATED + 1):
        pod = record(f"u{number}", 1)
        info = note_terminated(with_pod(info, pod), replace(pod, phase="Succeeded"))
        info = without_pod(info, pod.uid)
    assert info.pods.too_many_terminated
    return info


def test_nodes_with_one_key_have_one_answer_where_too_many_pods_have_terminated() -> None:
    """Where nobody decides, an outstanding promise alone says whether a plain pod passes."""
    promised, plain = _crowded(NVLINK), _crowded(Constraints())
    decisions = [decide(info, gpu_request(1), Settings()) for info in (promised, plain)]
    assert [d.rejection for d in decisions] == [IN_PROGRESS, None]
    assert offered(promised).availability == offered(plain).availability
    assert promised.key(GPU) != plain.key(GPU)


def test_a_bind_that_is_repeated_is_held_against_the_node_without_the_pod() -> None:
    """The pod may turn up in a report where another one was while an equal one is bound: the node
    looks as before, and offers the pod something else."""
    known = Cache(lambda: 0.0, Settings(stale_after=None))
    known.put_record(bridged(name=NAME), Report("boot", 1))
    known.put_pod(record("there", phase="Running"))
    known.put_report(NAME, Report("boot", 2, allocations=(shown("there", 0, 1),)))
    ours = record("ours", node=None)
    known.put_pod(ours)
    known.assume(NAME, ours)
    seen = known.node_info(NAME)

    def again() -> PodRecord | None:
        return known.assume(NAME, ours, seen=seen)

    assert again() is not None, "nothing has changed"
    known.drop_pod(PodUid("there"))
    known.put_pod(record("equal"))
    known.put_report(NAME, Report("boot", 3, allocations=(shown("ours", 0, 1),)))
    now = known.node_info(NAME)
    assert now.key(GPU) == seen.key(GPU)
    gone = frozenset({ours.uid})
    assert now.without(gone).key(GPU) != seen.without(gone).key(GPU)
    assert again() is None
