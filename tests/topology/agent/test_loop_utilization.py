"""The agent on a clock: use of GPUs that no pod holds, and idle pods."""

from typing import Any

from tests.topology.agent.scriptednode import (
    Row,
    ScriptedNode,
    bound,
    holds,
    listed,
    play,
    serves,
    shows,
)

BUSY = shows(0, 1, 2, 3, gpu2={"processes": ((4711, 1 << 28),)})
OBSERVATIONS = (Row(21, BUSY), Row(22, BUSY), Row(23, BUSY), Row(23.1))


def unaccounted(node: ScriptedNode) -> str:
    conditions = node.result.picture.report.conditions
    return next(c.message for c in conditions if c.type == "UnaccountedUse")


def test_use_of_a_gpu_without_a_pod_is_reported_after_three_observations() -> None:
    assert unaccounted(play((*OBSERVATIONS[:2], Row(23)))) == ""
    node = play(OBSERVATIONS)
    assert unaccounted(node) == "GPU 2"
    bound("1", "a")(node)
    listed(holds("a", 2))(node)
    node.play_until(24)
    BUSY(node)
    node.play_until(25)
    assert (node.holders(), unaccounted(node)) == ({"1": (2,)}, "")


def test_use_is_not_counted_while_a_pod_is_expected() -> None:
    assert unaccounted(play((Row(20, bound("1", "a")), *OBSERVATIONS))) == ""


def test_use_is_counted_again_once_the_holders_are_known() -> None:
    node = play((Row(1, serves("nvidia0")), *OBSERVATIONS))
    assert unaccounted(node) == ""
    serves("GPU-0", "GPU-1", "GPU-2", "GPU-3")(node)
    node.play_until(40)
    assert (unaccounted(node), node.result.picture.unknown) == ("", 0)
    for seconds in (41, 42, 43):
        assert unaccounted(node) == ""
        BUSY(node)
        node.play_until(seconds)
    assert unaccounted(node) == "GPU 2"


ALL_WORK: dict[str, Any] = {f"gpu{n}": {"utilisation": 0.5} for n in range(4)}
ALL_REST: dict[str, Any] = {f"gpu{n}": {"utilisation": 0.0} for n in range(4)}
WORKS = shows(0, 1, 2, 3, **ALL_WORK)
RESTS = shows(0, 1, 2, 3, **ALL_REST)
COMES = (Row(1, bound("1", "a")), Row(2, listed(holds("a", 0))))


def resting(begin: int, end: int) -> tuple[Row, ...]:
    """A look every minute that shows no use."""
    return tuple(Row(at, RESTS) for at in range(begin, end, 60))


def test_an_idle_pod_causes_two_writes_an_hour() -> None:
    node = play((*COMES, *resting(1200, 1260)))
    records = [node.result.picture.report.idle]
    for at in range(1260, 2 * 3600, 60):
        node.play_until(at)
        (WORKS if at == 3600 else RESTS)(node)
        node.play_until(at + 1)
        if node.result.picture.report.idle != records[-1]:
            records.append(node.result.picture.report.idle)
    assert [bool(each) for each in records] == [False, True, False, True]
