"""The agent on a clock: what it publishes, time by time, of a node that is played as values.

A story is a table. Each row says what happens at a time, or what is published at that time. Times
are in
seconds; the kubelet is asked once a second in the first ten, and more often while news of a pod
is due.
"""

from dataclasses import replace
from typing import Any

import pytest
import structlog

from tests.topology.agent.scriptednode import (
    Row,
    ScriptedNode,
    Story,
    agent_restarted,
    answers,
    bound,
    busy,
    deleted,
    holds,
    listed,
    play,
    plugin_started,
    restarted,
    serves,
    shows,
    silent,
)
from topology.agent.model.devicepolicy import REFUSED
from topology.agent.model.nodecontext import Plugin
from topology.agent.model.observations import NvmlState
from topology.core.devices import GpuUuid, PodUid
from topology.core.report import READY, Condition, RefusedPod, Report

PODS: dict[str, Story] = {
    "a pod comes and goes": (
        Row(1, bound("1", "a", 2)),
        Row(2, listed(holds("a", 0, 3))),
        Row(2.2, holders={"1": (0, 3)}, not_ready=""),
        Row(20, bound("1", "a", 2, ended=True)),
        Row(21, listed()),
        Row(21.2, holders={}),
    ),
    "half a pod is published, and followed until it is whole": (
        Row(1, bound("1", "a", 2)),
        Row(2, listed(holds("a", 0))),
        Row(2.2, holders={"1": (0,)}, not_ready=""),
        Row(4, listed(holds("a", 0, 3))),
        Row(4.2, holders={"1": (0, 3)}),
    ),
    "a kubelet may let go before the API server hears of it": (
        Row(1, bound("1", "a", acknowledged=True)),
        Row(1, listed(holds("a", 0))),
        Row(30, listed()),
        Row(32.1, holders={}),
    ),
    "pods of one name are told apart": (
        Row(1, bound("old", "a")),
        Row(1, listed(holds("a", 0))),
        Row(20, deleted("old")),
        Row(20, bound("new", "a")),
        Row(21, holders={"old": (0,)}),
        Row(22, listed(holds("a", 0), holds("a", 2))),
        Row(22.2, holders={"old": (0,), "new": (2,)}),
        Row(23, listed(holds("a", 2))),
        Row(23.2, holders={"new": (2,)}, not_ready=""),
    ),
    "a list with devices of a pod that nobody knows is kept back for a second": (
        Row(1, bound("1", "a")),
        Row(1, listed(holds("a", 0))),
        Row(2, holders={"1": (0,)}),
        Row(20, listed(holds("a", 0), holds("b", 1))),
        Row(20, bound("3", "plain", 0)),  # news: the kubelet is asked now
        Row(20.9, holders={"1": (0,)}),
        Row(21.2, holders={"1": (0,), "?": (1,)}),
        Row(24, bound("2", "b", acknowledged=True)),
        Row(24.2, holders={"1": (0,), "2": (1,)}),
    ),
    "a list that was kept back counts once the API server has told of the pod": (
        Row(20, listed(holds("a", 0))),
        Row(30.1, holders={}),
        Row(30.5, bound("1", "a", acknowledged=True)),
        Row(30.7, holders={"1": (0,)}),
    ),
    "a new agent knows whose devices the former one saw": (
        Row(1, bound("old", "a")),
        Row(1, listed(holds("a", 0))),
        Row(20, deleted("old")),  # by force: the kubelet is slower
        Row(20, bound("new", "a")),
        Row(20.5, agent_restarted()),
        Row(21, holders={"old": (0,)}, not_ready=""),
    ),
    "a list says nothing before the pods of the node are known": (
        Row(0, lambda node: node.know(synced=False)),
        Row(0.1, agent_restarted("boot-2")),
        Row(1, listed(holds("a", 0))),
        Row(5, holders={}, not_ready="the node's pods are not known yet"),
        Row(6, lambda node: node.know(synced=True)),
        Row(6, bound("1", "a", acknowledged=True)),
        Row(6.2, holders={"1": (0,)}, not_ready=""),
    ),
}
KUBELET: dict[str, Story] = {
    "a kubelet that restarts releases nobody": (
        Row(1, bound("1", "a", 2, acknowledged=True)),
        Row(1, listed(holds("a", 0, 3))),
        Row(20, restarted()),
        Row(23, holders={"1": (0, 3)}, not_ready=""),
        Row(23, bound("2", "b")),
        Row(24, listed(holds("b", 2))),
        Row(24.2, holders={"1": (0, 3), "2": (2,)}),  # who comes is not held up by who is missing
        Row(25, listed(holds("a", 0, 3), holds("b", 2))),
        Row(60, holders={"1": (0, 3), "2": (2,)}, not_ready=""),
    ),
    "a kubelet that starts has no devices until the plugin has registered": (
        Row(1, bound("1", "a", acknowledged=True)),
        Row(1, listed(holds("a", 0))),
        Row(20, serves()),
        Row(20, restarted(holds("a", 0))),
        Row(23, holders={"1": (0,)}, not_ready="the kubelet has started and offers no GPUs yet"),
        Row(24, serves("GPU-0", "GPU-1", "GPU-2", "GPU-3")),
        Row(25.5, holders={"1": (0,)}, not_ready=""),
    ),
    "a plugin that does not come back is believed to be gone": (
        Row(20, serves()),
        Row(20, restarted()),
        Row(31, not_ready="the kubelet has started and offers no GPUs yet"),
        Row(45, not_ready=""),
    ),
    "a pod that is not shown after ten seconds makes the record not Ready, and keeps its GPU": (
        Row(1, bound("1", "a", acknowledged=True)),
        Row(1, listed(holds("a", 0))),
        Row(20, restarted()),
        Row(30, holders={"1": (0,)}, not_ready=""),
        Row(34, holders={"1": (0,)}, not_ready="the kubelet does not show pods that are alive"),
        Row(50, bound("1", "a", acknowledged=True, ended=True)),
        Row(50.2, holders={}, not_ready=""),
    ),
    "devices that somebody else has are let go": (
        Row(1, bound("1", "a", acknowledged=True)),
        Row(1, listed(holds("a", 0))),
        Row(20, restarted()),
        Row(23, bound("2", "b")),
        Row(24, listed(holds("b", 0))),
        Row(24.2, holders={"2": (0,)}, not_ready=""),
    ),
    "a silent kubelet is no empty node": (
        Row(1, bound("1", "a")),
        Row(1, listed(holds("a", 0))),
        Row(20, silent()),
        Row(26, holders={"1": (0,)}, not_ready="kubelet.sock"),  # it may come back with others
        Row(34, holders={"1": (0,)}, not_ready="kubelet.sock"),
        Row(35, answers),
        Row(35.4, holders={"1": (0,)}, not_ready=""),
    ),
    "a kubelet that never answers is said at once": (
        Row(0, silent()),
        Row(0.1, agent_restarted("boot-2")),
        Row(0.2, not_ready="kubelet.sock"),
    ),
    "a busy kubelet is asked again a moment later": (
        Row(1, bound("1", "a")),
        Row(1.1, busy),
        Row(1.2, listed(holds("a", 0))),
        Row(1.3, answers),
        Row(1.6, holders={"1": (0,)}, not_ready=""),
    ),
    "a kubelet that stays busy is a silent one": (
        Row(1, busy),
        Row(10, not_ready=""),
        Row(13, not_ready="RESOURCE_EXHAUSTED"),
        Row(14, answers),
        Row(14.5, not_ready=""),
    ),
}
DEVICE_IDS: dict[str, Story] = {
    "a plugin that is mended makes the record Ready": (
        Row(1, serves("nvidia0", "nvidia1")),
        Row(12, not_ready="nvidia0"),
        Row(13, serves("GPU-0", "GPU-1")),
        Row(24, not_ready=""),
    ),
    "too many shares are said to be, and end well": (
        Row(1, serves(*(f"GPU-{i}::{n}" for i in range(4) for n in range(1100)))),
        Row(12, not_ready="4,400 device ids to hand out"),
        Row(13, serves(*(f"GPU-{i}::{n}" for i in range(4) for n in range(10)))),
        Row(24, not_ready=""),
    ),
}


@pytest.mark.parametrize("story", [pytest.param(s, id=name) for name, s in PODS.items()])
def test_pods(story: Story) -> None:
    play(story)


@pytest.mark.parametrize("story", [pytest.param(s, id=name) for name, s in KUBELET.items()])
def test_kubelet(story: Story) -> None:
    play(story)


@pytest.mark.parametrize("story", [pytest.param(s, id=name) for name, s in DEVICE_IDS.items()])
def test_device_ids(story: Story) -> None:
    play(story)


def test_a_sync_result_says_what_others_have_to_do() -> None:
    """It tells the driver's watch and the Node's watch nothing itself."""
    node = play((Row(1, restarted()), Row(3)))
    assert node.result.expected_gpus == 4
    assert node.result.kubelet_restarts == 1
    node = play((Row(1, silent()), Row(2, answers), Row(3, shows(0, 1)), Row(4)))
    assert node.result.kubelet_restarts == 1
    assert node.result.kubelet_failures >= 1
    assert node.result.expected_gpus == 4, "two are lost, and ought to come back"
    assert node.result.expected_links[GpuUuid("GPU-0")] == 1


def test_no_pod_is_expected_before_the_driver_was_observed() -> None:
    node = ScriptedNode()
    node.nvml = NvmlState(problem="Driver Not Loaded", asked=True)
    node.agent = node.new_agent()
    turn = node.sync()
    assert turn.expected_gpus is None
    assert turn.picture.topology is None
    assert "Driver Not Loaded" in turn.picture.report.not_ready


def test_it_says_which_pods_it_knew_of_when_the_list_was_taken_for_true() -> None:
    node = play((Row(20, lambda n: n.know(pods_version="7", deletions=3)), Row(20.2)))
    assert (node.result.picture.report.pods_version, node.result.picture.deletions) == ("7", 3)
    listed(holds("stranger", 1))(node)
    node.know(pods_version="8", deletions=4)
    node.play_until(20.5)
    assert (node.result.picture.report.pods_version, node.result.picture.deletions) == ("7", 3)


def test_an_unchanged_picture_reports_the_same() -> None:
    """So that nothing is written but heartbeats; only the time of the look moves on."""
    node = play((Row(1, bound("1", "a")), Row(2, listed(holds("a", 0))), Row(20)))
    before = node.result.picture
    node.play_until(200)
    after = node.result.picture
    assert after.report.observed_at > before.report.observed_at
    assert replace(after, report=before.report) == before
    assert replace(after.report, observed_at="") == replace(before.report, observed_at="")


def test_what_was_learnt_of_several_shares_outlives_the_agent() -> None:
    node = ScriptedNode()
    plugin = Plugin("v0.19.3", {}, "2026-01-01T00:00:00Z")
    node.know(plugin=plugin, labels={"kubernetes.io/hostname": "n"})
    serves("GPU-0::0", "GPU-0::1")(node)
    bound("1", "a", 2, acknowledged=True, ended=True, started="2026-01-01T00:00:05Z",
          refusal=f"Allocate failed: {REFUSED}; found 2")(node)  # fmt: skip
    node.play_until(20)
    assert refused(node) is True
    deleted("1")(node)
    agent_restarted()(node)
    node.play_until(40)
    assert refused(node) is True
    plugin_started("2026-01-01T00:00:41Z")(node)
    node.play_until(42)
    assert refused(node) is None


def refused(node: ScriptedNode) -> bool | None:
    """Whether a container is refused several shares, as published."""
    topology = node.result.picture.topology
    assert topology is not None
    return topology.resources[0].refuses_several


def test_a_record_without_holders_is_not_trusted() -> None:
    """The record was refused, and a bare one stands there: the kubelet tells again."""
    node = ScriptedNode()
    refused = Condition(READY, False, "RecordRefused", "the API server rejects the record: 422", "")
    topology = node.result.picture.topology
    assert topology is not None
    listed(holds("a", 0))(node)
    bound("new", "a")(node)
    for conditions, expected in (((), {"new": (0,)}), ((refused,), {})):
        node.agent = node.new_agent()
        node.agent.remember(topology, Report("boot-1", 7, None, conditions=conditions))
        node.sync()
        assert node.holders() == expected, "the entry may be of a pod that has left already"


def test_refusals_outlive_a_boot() -> None:
    node = ScriptedNode()
    topology = node.result.picture.topology
    assert topology is not None
    at = "2026-01-01T00:00:00Z"
    refused = RefusedPod(PodUid("u"), "ns", "p", "nvidia.com/gpu", 2, "TopologyAffinityError", at)
    node.agent = node.new_agent()
    node.agent.remember(topology, Report("boot-0", 7, history=(refused,)))
    node.sync()
    assert node.result.picture.report.history == (refused,)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        pytest.param(
            (Row(1, silent()), Row(3), Row(5, answers), Row(6), Row(7, silent()), Row(9)),
            [("kubelet does not answer", "kubelet.sock: No such file")] * 2,
            id="each time the kubelet falls silent",
        ),
        pytest.param(
            (Row(1, serves("nvidia0")), Row(20, bound("1", "a")), Row(40)),
            [("record not ready", "1 device id is not of a known GPU of this node, such as "
              "'nvidia0' of nvidia.com/gpu, so the holders of the GPUs are unknown")],
            id="once, why a record cannot be relied on",
        ),
    ],
)  # fmt: skip
def test_what_is_logged(story: Story, expected: list[tuple[str, str]]) -> None:
    with structlog.testing.capture_logs() as logs:
        play(story)
    entries: list[Any] = [(entry["event"], entry["cause"]) for entry in logs]
    assert entries == expected
