"""The agent on a clock: when it asks the kubelet."""

import pytest

from tests.topology.agent.scriptednode import (
    Row,
    Story,
    bound,
    holds,
    listed,
    play,
    serves,
    silent,
    xid,
)
from topology.core.devices import DeviceId


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(map(DeviceId, names))


def test_it_says_when_the_kubelet_was_asked() -> None:
    node = play((Row(1, bound("1", "a")), Row(2.6, listed(holds("a", 0))), Row(2.8)))
    assert node.result.picture.report.observed_at == "2026-01-01T00:00:02Z"
    silent()(node)
    node.play_until(40)
    assert node.result.picture.report.observed_at <= "2026-01-01T00:00:04Z", "not observed since"


def test_after_an_xid_the_kubelet_is_asked_what_it_hands_out() -> None:
    rest = ids("GPU-0", "GPU-1", "GPU-3")
    asked_just_before = (Row(19.4, serves(*rest)), Row(19.5, xid(79, gpu=2)), Row(19.6))
    assert play(asked_just_before).result.picture.report.allocatable == rest
    plugin_is_slower = (Row(21, xid(79, gpu=2)), Row(21.5, serves(*rest)), Row(23))
    assert play(plugin_is_slower).result.picture.report.allocatable == rest


def test_a_plugin_that_comes_late_is_waited_for() -> None:
    node = play((Row(1, serves()), Row(15, bound("1", "a")), Row(16, serves("GPU-0", "GPU-1"))))
    listed(holds("a", 0))(node)
    node.play_until(18.5)
    assert node.holders() == {"1": (0,)}
    assert node.result.picture.report.allocatable == ids("GPU-0", "GPU-1")


def asked(story: Story, until: float) -> list[float]:
    """When the kubelet was asked from the last row on, in seconds from there."""
    node = play(story)
    began, before = node.now, len(node.asked)
    node.play_until(until)
    return [round(at - began, 2) for at in node.asked[before:]]


def test_the_kubelet_is_asked_often_for_an_expected_pod_and_rarely_without_changes() -> None:
    story = (Row(1, bound("1", "a")), Row(2, listed(holds("a", 0))), Row(30))
    assert asked(story, 38) == pytest.approx([2 * i - asked_late(story) for i in range(1, 5)])
    assert len(asked((Row(20, bound("1", "a")),), 25)) >= 49  # ten times a second
    assert 15 <= len(asked((Row(20, bound("1", "a")), Row(25.1)), 30.1)) <= 17  # later: every 0.3 s
    assert len(asked((Row(20, bound("1", "a")), Row(90)), 100)) == 5  # it may never come
    assert len(asked((Row(30),), 60)) == 3  # nobody holds anything


def asked_late(story: Story) -> float:
    """How long ago the kubelet was asked when a story ends."""
    node = play(story)
    return round(node.now - node.asked[-1], 2)
