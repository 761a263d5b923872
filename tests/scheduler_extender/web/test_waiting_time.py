"""The page of waiting pods stops where its time is up."""

import sys
from types import FrameType
from typing import Any

from scheduler_extender.deadline import Deadline
from scheduler_extender.explain.nodeanswers import miss_of
from scheduler_extender.web.waiting import ASKED, waiting_queues
from tests.scheduler_extender.web.cluster import NVLINK, Building
from topology.core.requests import NO_CONSTRAINTS

NODES = 10


def test_no_more_misses_are_worked_out_than_there_is_time_for() -> None:
    made = Building()
    for number in range(NODES):
        node = made.node("dgx-a100", f"n{number}")
        made.report(node, [(made.pod(f"holds-{number}", 7, node), tuple(range(7)))])
    for number in range(ASKED):
        made.pod(f"waits-{number}", 2 + number % 7, None, (NVLINK, NO_CONSTRAINTS)[number // 7])
    looked = 0

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal looked
        looked += event == "call" and frame.f_code is miss_of.__code__

    snapshot = made.cluster.snapshot()
    # The clock goes on by one with each node that is looked at: there is time for half a queue.
    deadline = Deadline(lambda: float(looked), NODES / 2)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found, _ = waiting_queues(snapshot, deadline)
    finally:
        sys.setprofile(before)
    assert len(found) >= ASKED
    assert looked <= 2 * NODES  # one queue that was begun in time, and what would help it
