"""When the kubelet is asked next: tables of moments."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from tests.topology.agent.entries import entry
from topology.agent.model.podentries import Entry, NodePod
from topology.agent.model.polling import AllocatablePolling, KubeletPolling, PollIntervals
from topology.core.devices import DeviceId, PodUid

DUE = frozenset({PodUid("1")})
Change = Callable[[KubeletPolling, float], object]


class PollingStep(NamedTuple):
    """At ``at`` seconds this happens; seen from there, the next question is due at ``next``."""

    at: float
    does: Change
    next: float
    doubtful: bool = False
    holders: bool = False


def answered(polling: KubeletPolling, now: float) -> None:
    polling.ask(now)
    polling.answered(0)


def another_socket(polling: KubeletPolling, now: float) -> None:
    polling.ask(now)
    polling.answered(1)


def busy(polling: KubeletPolling, now: float) -> None:
    polling.ask(now)
    polling.failed("busy", busy=True)


def down(polling: KubeletPolling, now: float) -> None:
    polling.ask(now)
    polling.failed("down")


def due(polling: KubeletPolling, now: float) -> None:
    polling.wait_for(DUE, now)


def due_and_answered(polling: KubeletPolling, now: float) -> None:
    due(polling, now)
    answered(polling, now)


def none_due(polling: KubeletPolling, now: float) -> None:
    polling.wait_for(frozenset(), now)


def change(polling: KubeletPolling, now: float) -> None:
    polling.news(now)


def fault(polling: KubeletPolling, now: float) -> None:
    polling.fault(now)


def nothing(polling: KubeletPolling, now: float) -> None:
    """Time passes."""


TABLES: dict[str, Sequence[PollingStep]] = {
    "after its own start the agent watches closely for ten seconds": [
        PollingStep(0, nothing, float("-inf")),
        PollingStep(0, answered, 1),
        PollingStep(9, answered, 10),
        PollingStep(10, answered, 20),
        PollingStep(20, answered, 22, holders=True),
    ],
    "a pod that is to come: ten times a second, then slower": [
        PollingStep(20, due_and_answered, 20.1),
        PollingStep(24.9, answered, 25.0),
        PollingStep(25, answered, 25.3),
        PollingStep(79.9, answered, 80.2),
        PollingStep(80, answered, 82),
        PollingStep(81, none_due, 90),
        PollingStep(81, none_due, 82, holders=True),
    ],
    "another pod that is to come starts the haste anew": [
        PollingStep(20, due_and_answered, 20.1),
        PollingStep(90, answered, 92),
        PollingStep(91, lambda p, now: p.wait_for(DUE | {PodUid("2")}, now), 90.1),
        PollingStep(92, answered, 92.1),
        PollingStep(93, due, 92.1),  # one of the two is reported: no news
        PollingStep(98, answered, 98.3),
    ],
    "what is not taken for true yet is like a pod that is to come": [
        PollingStep(20, answered, 30),
        PollingStep(20, change, 20.05, doubtful=True),
        PollingStep(20.05, answered, 20.15, doubtful=True),
        PollingStep(26, answered, 26.3, doubtful=True),
    ],
    "news is asked after at once": [
        PollingStep(20, answered, 30),
        PollingStep(20.01, change, 20.05),
        PollingStep(20.05, answered, 30.05),
    ],
    "a kubelet that does not answer is asked three times a second": [
        PollingStep(20, down, 20.3),
        PollingStep(20.3, down, 20.6),
        PollingStep(20.4, due, 20.6),
    ],
    "one that has come back is watched closely": [
        PollingStep(20, down, 20.3),
        PollingStep(20.3, answered, 21.3),
        PollingStep(30.2, answered, 31.2),
        PollingStep(30.3, answered, 40.3),
    ],
    "so is one with another socket": [
        PollingStep(20, another_socket, 21),
        PollingStep(29.9, another_socket, 30.9),
        PollingStep(30, another_socket, 40),
    ],
    "a busy kubelet is left alone for a moment, and news waits as long": [
        PollingStep(20, answered, 30),
        PollingStep(20.1, change, 20.05),
        PollingStep(20.1, busy, 20.4),
        PollingStep(20.4, busy, 20.7),
        PollingStep(20.7, answered, 30.7),
    ],
    "a GPU's fault: at once, then closely for ten seconds": [
        PollingStep(20, answered, 30),
        PollingStep(21, fault, 20.05),
        PollingStep(21, answered, 22),
        PollingStep(30.9, answered, 31.9),
        PollingStep(31, answered, 41),
    ],
}


@pytest.mark.parametrize("table", [pytest.param(t, id=name) for name, t in TABLES.items()])
def test_when_the_kubelet_is_asked_next(table: Sequence[PollingStep]) -> None:
    polling = KubeletPolling(PollIntervals(), 0.0)
    for moment in table:
        moment.does(polling, moment.at)
        found = polling.next_question(moment.at, doubtful=moment.doubtful, holders=moment.holders)
        assert found == pytest.approx(moment.next), f"at {moment.at} s"


def test_how_long_silence_is_passed_over() -> None:
    polling = KubeletPolling(PollIntervals(), 0.0)
    assert (polling.silent, polling.cause) == (False, "the kubelet has not answered yet")
    answered(polling, 1)
    assert (polling.silent, polling.cause) == (False, "")
    polling.ask(20)
    assert polling.failed("gone"), "the silence begins"
    polling.ask(25)
    assert not polling.failed("busy", busy=True), "it goes on"
    assert (polling.silent, polling.cause, polling.failures) == (True, "busy", 1)
    table = [(20.0, False), (30.0, False), (30.1, True)]
    assert [(at, polling.silent_too_long(at)) for at, _ in table] == table
    answered(polling, 31)
    assert not polling.silent_too_long(100)


def test_how_often_it_has_come_back() -> None:
    polling = KubeletPolling(PollIntervals(), 0.0)
    counted = []
    for at, does in enumerate([answered, down, down, answered, busy, answered, another_socket]):
        does(polling, float(at))
        counted.append(polling.restarts)
    assert counted == [0, 0, 0, 1, 1, 1, 2], "to be busy is not to be away"


# --- what it hands out from -------------------------------------------------------------------

A, B = [entry("a", "G1")], [entry("b", "G2")]
SERVED = {"nvidia.com/gpu": frozenset({DeviceId("G1")})}


def polled(at: float = 100.0) -> AllocatablePolling:
    """One that was answered at that time, after the list A."""
    found = AllocatablePolling(PollIntervals())
    found.answered(at, SERVED)
    found.listed(A)
    return found


def test_it_is_asked_before_anything_is_known() -> None:
    assert AllocatablePolling(PollIntervals()).is_due(0, [], [], watchful=False)


@pytest.mark.parametrize(
    ("at", "entries", "served", "watchful", "expected"),
    [
        pytest.param(101, A, True, False, False, id="nothing has changed"),
        pytest.param(101, B, True, False, True, id="somebody came or went"),
        pytest.param(109.9, A, True, False, False, id="ten seconds later: not yet"),
        pytest.param(110, A, True, False, True, id="ten seconds later"),
        pytest.param(100.9, A, True, True, False, id="after a restart: not yet"),
        pytest.param(101, A, True, True, True, id="after a restart: each second"),
        pytest.param(100.9, A, False, False, False, id="a plugin is waited for: not yet"),
        pytest.param(101, A, False, False, True, id="a plugin is waited for: each second"),
    ],
)
def test_it_is_asked_anew_where_the_answer_may_be_another(
    at: float, entries: list[Entry], served: bool, watchful: bool, expected: bool
) -> None:
    resource = "nvidia.com/gpu" if served else "nvidia.com/mig-1g.5gb"
    waited_for = NodePod(PodUid("1"), "ns", "a", {("main", resource): 1})
    assert polled().is_due(at, entries, [waited_for], watchful=watchful) is expected


def test_the_kubelet_is_asked_once_on_request() -> None:
    polling = polled()
    polling.want()
    assert polling.is_due(100.1, A, [], watchful=False)
    polling.answered(100.1, SERVED)
    assert not polling.is_due(100.2, A, [], watchful=False)


def test_a_list_without_an_answer_to_both_counts_as_unseen() -> None:
    polling = polled()
    polling.answered(100.1, SERVED)  # after the list B, of which nothing came
    assert polling.is_due(100.2, B, [], watchful=False)
