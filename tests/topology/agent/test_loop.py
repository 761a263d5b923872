"""The agent on a clock: what it publishes, moment by moment, of a node that is played as values.

A story is a table. Each row says what happens at a time, or what is published at that time. Times
are in seconds; the kubelet is asked once a second in the first ten, and more often while news of a
pod is due.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import structlog

from tests.topology.agent.scriptednode import (
    Row,
    ScriptedNode,
    agent_forgotten,
    agent_restarted,
    answers,
    bound,
    busy,
    counts,
    deleted,
    holds,
    listed,
    play,
    plugin_started,
    restarted,
    serves,
    shows,
    silent,
    xid,
)
from topology.agent.model.devicepolicy import REFUSED
from topology.agent.model.nodecontext import KubeletConfig, Plugin
from topology.agent.model.observations import NvmlState, PciTree, Processors, Unseen
from topology.core.devices import DeviceId, GpuUuid, PodUid
from topology.core.numa import cpu_set
from topology.core.report import READY, Condition, RefusedPod, Report

Story = tuple[Row, ...]

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

LOST: dict[str, object] = {"lost": True, "active_links": None}
HANGS: dict[str, object] = {"hung": True, "active_links": None}

HARDWARE: dict[str, Story] = {
    "a critical Xid makes a GPU sick until it is reset": (
        Row(1, xid(79, gpu=2)),
        Row(1.1, sick={2: "Xid79"}, not_ready=""),
        Row(60, shows(0, 1, 2, 3)),
        Row(60, sick={2: "Xid79"}),
        Row(61, shows(0, 1, 2, 3, gpu2={"energy": 1})),
        Row(61.1, sick={}),
    ),
    "a sick GPU stays sick over an agent's restart, and not over a reboot": (
        Row(1, xid(79, gpu=2)),
        Row(2, agent_restarted()),
        Row(3, sick={2: "Xid79"}),
        Row(4, agent_restarted("boot-2")),
        Row(5, sick={}, not_ready=""),
    ),
    "a lost GPU is lost and not free": (
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(1.1, sick={3: "Lost"}, missing={"GPU-3": True}, not_ready=""),
    ),
    "a lost GPU that answers again is missing no more, and sick until its reset": (
        Row(0.5, shows(0, 1, 2, 3, gpu3={"energy": 100})),
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(2, shows(0, 1, 2, 3, gpu3={"energy": 200})),
        Row(2.1, sick={3: "Lost"}, missing={}),
        Row(3, shows(0, 1, 2, 3, gpu3={"energy": 1})),
        Row(3.1, sick={}, missing={}),
    ),
    "a lost GPU goes on being missing where NVML is opened anew": (
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(31, shows(0, 1, 2, nameless=(3,))),
        Row(31.1, sick={3: "Lost"}, missing={"GPU-3": True}),
        Row(61, shows(0, 1, 2)),
        Row(61.1, sick={3: "Lost"}, missing={"GPU-3": False}),
        Row(91, shows(0, 1, 2, 3)),
        Row(91.1, missing={}),
    ),
    "a GPU that is gone is missing until a plugin has started without it": (
        Row(1, plugin_started("2026-01-01T00:00:00Z")),
        Row(2, shows(0, 1, 3)),
        Row(3, missing={"GPU-2": False}),
        Row(4, agent_restarted()),
        Row(5, missing={"GPU-2": False}),
        Row(6, plugin_started("2026-01-01T00:00:06Z")),
        Row(6.5, missing={"GPU-2": False}),  # the kubelet hands it out still
        Row(7, serves("GPU-0", "GPU-1", "GPU-3")),
        Row(17.5, missing={}, sick={2: "Lost"}),
    ),
    "a plugin that looks for GPUs anew in the same container does not miss the one that is gone": (
        Row(1, plugin_started("2026-01-01T00:00:00Z")),
        Row(2, shows(0, 1, 3)),
        Row(3, serves("GPU-0", "GPU-1", "GPU-3")),
        Row(3, restarted()),
        Row(20, counts(4, 3, "2026-01-01T00:00:10Z")),
        Row(21, missing={"GPU-2": False}),
        Row(22, counts(3, 3, "2026-01-01T00:00:22Z")),
        Row(22.5, missing={}, sick={2: "Lost"}),
    ),
    "a GPU that went before its plugin started, while the agent was away, is not missed": (
        Row(60, shows(0, 1, 3)),
        Row(60, plugin_started("2026-01-01T00:00:50Z")),
        Row(60, serves("GPU-0", "GPU-1", "GPU-3")),
        Row(60, counts(3, 3, "2026-01-01T00:00:55Z")),
        Row(71, missing={"GPU-2": False}),  # the kubelet may have said so before the loss
        Row(90, counts(3, 3, "2026-01-01T00:01:30Z")),
        Row(90.5, missing={}, sick={2: "Lost"}),
    ),
    "a GPU over which calls hang is missing, and sick until it answers": (
        Row(1, shows(0, 1, 2, 3, gpu2=HANGS)),
        Row(1.1, sick={2: "Hangs"}, missing={"GPU-2": True}, not_ready=""),
        Row(2, agent_restarted()),
        Row(3, sick={2: "Hangs"}, missing={"GPU-2": True}),
        Row(4, shows(0, 1, 2, 3)),
        Row(4.1, sick={}, missing={}),
    ),
    "a GPU that falls silent a second time has to answer for a while": (
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(1.1, missing={"GPU-3": True}),
        Row(11, shows(0, 1, 2, 3)),
        Row(11.1, missing={}),  # the first time it counts at once
        Row(21, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(31, shows(0, 1, 2, 3)),
        Row(60.9, shows(0, 1, 2, 3)),
        Row(60.95, missing={"GPU-3": True}, not_ready=""),
        Row(61, shows(0, 1, 2, 3)),
        Row(61.1, missing={}),
    ),
    "one that is silent again in that time has to answer anew": (
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(11, shows(0, 1, 2, 3)),
        Row(21, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(31, shows(0, 1, 2, 3)),
        Row(41, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(46, shows(0, 1, 2, 3)),
        Row(75, shows(0, 1, 2, 3)),
        Row(75.1, missing={"GPU-3": True}),
        Row(76, shows(0, 1, 2, 3)),
        Row(76.1, missing={}),
    ),
    "a GPU that was silent long ago answers again at once": (
        Row(1, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(11, shows(0, 1, 2, 3)),
        Row(602, shows(0, 1, 2, 3, gpu3=LOST)),
        Row(612, shows(0, 1, 2, 3)),
        Row(612.1, missing={}),
    ),
    "a GPU that was lost before any agent came has no name": (
        Row(0, shows(0, 1, 2, nameless=(3,))),
        Row(0, agent_forgotten),
        Row(1, missing={"GPU 3": True}, sick={}),
    ),
    "a GPU that is gone while the agent is away is lost": (
        Row(1, shows(0, 1, 3)),
        Row(1, agent_restarted()),
        Row(1.1, sick={2: "Lost"}, missing={"GPU-2": False}),
        Row(9, shows(0, 1, 2, 3, gpu2={"energy": 1})),
        Row(9.1, sick={}, not_ready=""),
    ),
    "a dropped link does not count again after an agent's restart": (
        Row(1, shows(0, 1, 2, 3, gpu1={"active_links": frozenset()})),
        Row(1.1, sick={1: "NVLinkDown"}, not_ready=""),
        Row(2, shows(0, 1, 2, 3)),
        Row(2, agent_restarted()),
        Row(3, sick={1: "NVLinkDown"}),
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


@pytest.mark.parametrize("story", [pytest.param(s, id=name) for name, s in HARDWARE.items()])
def test_hardware(story: Story) -> None:
    play(story)


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(map(DeviceId, names))


def links_of(node: ScriptedNode) -> dict[tuple[int, int], int]:
    topology = node.turn.picture.topology
    return {(k.a, k.b): k.nvlinks for k in topology.links if k.nvlinks} if topology else {}


def test_links_and_lost_gpus_stay_in_the_topology() -> None:
    node = play((Row(1, shows(0, 1, 3)), Row(1.1)))
    topology = node.turn.picture.topology
    assert topology is not None
    assert [(g.index, g.uuid) for g in topology.gpus] == [(i, f"GPU-{i}") for i in range(4)]
    assert links_of(node) == {(0, 1): 1, (2, 3): 1}
    down: dict[str, object] = {"active_links": frozenset()}
    node = play((Row(1, shows(0, 1, 2, 3, gpu0=down, gpu1=down)), Row(1.1)))
    assert links_of(node) == {(2, 3): 1}


def test_what_a_turn_says_for_others_to_do() -> None:
    """It tells the driver's watch and the Node's watch nothing itself."""
    node = play((Row(1, restarted()), Row(3)))
    assert node.turn.expected_gpus == 4
    assert node.turn.kubelet_restarts == 1
    node = play((Row(1, silent()), Row(2, answers), Row(3, shows(0, 1)), Row(4)))
    assert node.turn.kubelet_restarts == 1
    assert node.turn.kubelet_failures >= 1
    assert node.turn.expected_gpus == 4, "two are lost, and ought to come back"
    assert node.turn.expected_links[GpuUuid("GPU-0")] == 1


def test_nobody_is_expected_before_the_driver_was_looked_at() -> None:
    node = ScriptedNode()
    node.nvml = NvmlState(problem="Driver Not Loaded", asked=True)
    node.agent = node.new_agent()
    turn = node.sync()
    assert turn.expected_gpus is None
    assert turn.picture.topology is None
    assert "Driver Not Loaded" in turn.picture.report.not_ready


def test_a_driver_that_goes_leaves_the_hardware_as_it_was() -> None:
    node = ScriptedNode()
    node.nvml = NvmlState(node.nvml.seen, node.nvml.vitals, 1, "a call hangs", asked=True)
    picture = node.sync().picture
    assert picture.topology is not None
    assert len(picture.topology.gpus) == 4
    assert "a call hangs" in picture.report.not_ready


def test_hardware_of_another_boot_is_not_taken_over() -> None:
    node = ScriptedNode()
    node.nvml = NvmlState(problem="it has not answered yet")
    agent_restarted("boot-2")(node)
    assert node.sync().picture.topology is None


def test_it_says_when_the_kubelet_was_asked() -> None:
    node = play((Row(1, bound("1", "a")), Row(2.6, listed(holds("a", 0))), Row(2.8)))
    assert node.turn.picture.report.observed_at == "2026-01-01T00:00:02Z"
    silent()(node)
    node.play_until(40)
    assert node.turn.picture.report.observed_at <= "2026-01-01T00:00:04Z", "nobody has looked since"


def test_it_says_which_pods_it_knew_of_when_the_list_was_taken_for_true() -> None:
    node = play((Row(20, lambda n: n.know(pods_version="7", deletions=3)), Row(20.2)))
    assert (node.turn.picture.report.pods_version, node.turn.picture.deletions) == ("7", 3)
    listed(holds("stranger", 1))(node)
    node.know(pods_version="8", deletions=4)
    node.play_until(20.5)
    assert (node.turn.picture.report.pods_version, node.turn.picture.deletions) == ("7", 3)


def test_after_an_xid_the_kubelet_is_asked_what_it_hands_out() -> None:
    rest = ids("GPU-0", "GPU-1", "GPU-3")
    asked_just_before = (Row(19.4, serves(*rest)), Row(19.5, xid(79, gpu=2)), Row(19.6))
    assert play(asked_just_before).turn.picture.report.allocatable == rest
    plugin_is_slower = (Row(21, xid(79, gpu=2)), Row(21.5, serves(*rest)), Row(23))
    assert play(plugin_is_slower).turn.picture.report.allocatable == rest


def test_a_plugin_that_comes_late_is_waited_for() -> None:
    node = play((Row(1, serves()), Row(15, bound("1", "a")), Row(16, serves("GPU-0", "GPU-1"))))
    listed(holds("a", 0))(node)
    node.play_until(18.5)
    assert node.holders() == {"1": (0,)}
    assert node.turn.picture.report.allocatable == ids("GPU-0", "GPU-1")


BUSY = shows(0, 1, 2, 3, gpu2={"processes": ((4711, 1 << 28),)})
LOOKS = (Row(21, BUSY), Row(22, BUSY), Row(23, BUSY), Row(23.1))


def unaccounted(node: ScriptedNode) -> str:
    conditions = node.turn.picture.report.conditions
    return next(c.message for c in conditions if c.type == "UnaccountedUse")


def test_use_of_a_gpu_that_no_pod_holds_is_said_after_three_looks() -> None:
    assert unaccounted(play((*LOOKS[:2], Row(23)))) == ""
    node = play(LOOKS)
    assert unaccounted(node) == "GPU 2"
    bound("1", "a")(node)
    listed(holds("a", 2))(node)
    node.play_until(24)
    BUSY(node)
    node.play_until(25)
    assert (node.holders(), unaccounted(node)) == ({"1": (2,)}, "")


def test_use_is_not_counted_while_a_pod_is_to_come() -> None:
    assert unaccounted(play((Row(20, bound("1", "a")), *LOOKS))) == ""


def test_use_is_counted_anew_once_it_can_be_told_who_holds_which_gpu() -> None:
    node = play((Row(1, serves("nvidia0")), *LOOKS))
    assert unaccounted(node) == ""
    serves("GPU-0", "GPU-1", "GPU-2", "GPU-3")(node)
    node.play_until(40)
    assert (unaccounted(node), node.turn.picture.unknown) == ("", 0)
    for seconds in (41, 42, 43):
        assert unaccounted(node) == ""
        BUSY(node)
        node.play_until(seconds)
    assert unaccounted(node) == "GPU 2"


def test_a_picture_without_news_says_the_same() -> None:
    """So that nothing is written but heartbeats; only the time of the look moves on."""
    node = play((Row(1, bound("1", "a")), Row(2, listed(holds("a", 0))), Row(20)))
    before = node.turn.picture
    node.play_until(200)
    after = node.turn.picture
    assert after.report.observed_at > before.report.observed_at
    assert replace(after, report=before.report) == before
    assert replace(after.report, observed_at="") == replace(before.report, observed_at="")


@pytest.mark.parametrize("energy", [1000, None], ids=["counts energy", "counts none"])
def test_a_gpu_that_comes_and_goes_does_not_make_a_write_at_every_look(energy: int | None) -> None:
    """Ten minutes in which it is silent at every second look: its calls fail, or they hang."""
    node = play((Row(1, shows(0, 1, 2, 3, gpu3={"energy": energy})), Row(1.1)))
    records = [record(node)]
    for look in range(120):
        now = 5.0 * (look + 1)
        if look % 2:
            shows(0, 1, 2, 3, gpu3={"energy": energy})(node)
        elif look % 4:
            shows(0, 1, 2, 3, gpu3=LOST)(node)
        else:
            shows(0, 1, 2, 3, gpu3=HANGS)(node)
        node.play_until(now)
        node.sync()
        if record(node) != records[-1]:
            records.append(record(node))
    assert len(records) <= 5, "silent, answering, silent, and once for the other kind of silence"
    for look in range(7):
        shows(0, 1, 2, 3, gpu3={"energy": energy})(node)
        node.play_until(605.0 + 5 * look)
        node.sync()
    assert node.turn.picture.report.missing == ()


def record(node: ScriptedNode) -> object:
    """What would be written."""
    picture = node.turn.picture
    return picture.topology, picture.report, picture.unseen


def test_what_of_sysfs_could_not_be_read_is_read_again_ever_more_rarely() -> None:
    node = ScriptedNode()
    static = KubeletConfig("none", cpu_manager_policy="static", memory_manager_policy="None")
    node.processors = Unseen("CPUs by NUMA node", "core_id: No such file")
    node.pci = PciTree()
    node.agent = node.new_agent()
    node.read = {"processors": [], "pci": []}
    node.know(kubelet=static)
    node.play_until(1600)
    for part, read in node.read.items():
        pauses = [b - a for a, b in pairwise(read)]
        # A turn comes every ten seconds at least.
        assert [pauses[0] // 10, pauses[1] // 10, pauses[2] // 10] == [1, 2, 4], part
        assert all(300 <= pause <= 320 for pause in pauses[5:]), part
        assert len(read) <= 12, part
    assert "NUMA" in str(node.turn.picture.unseen)
    node.processors = Processors((cpu_set("0-3"),), (0,), tuple(cpu_set(str(n)) for n in range(4)))
    node.pci = PciTree(numa_distances=((10,),))
    node.play_until(2000)
    topology = node.turn.picture.topology
    assert topology is not None
    assert topology.allocator.numa_distances == ((10,),)
    assert "CPUs by NUMA node" not in str(node.turn.picture.unseen)
    before = {part: len(read) for part, read in node.read.items()}
    node.play_until(3000)
    assert {part: len(read) for part, read in node.read.items()} == before


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
    topology = node.turn.picture.topology
    assert topology is not None
    return topology.resources[0].refuses_several


def test_a_record_that_left_out_who_holds_what_is_not_believed() -> None:
    """The record was refused, and a bare one stands there: the kubelet tells again."""
    node = ScriptedNode()
    refused = Condition(READY, False, "RecordRefused", "the API server rejects the record: 422", "")
    topology = node.turn.picture.topology
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
    topology = node.turn.picture.topology
    assert topology is not None
    at = "2026-01-01T00:00:00Z"
    refused = RefusedPod(PodUid("u"), "ns", "p", "nvidia.com/gpu", 2, "TopologyAffinityError", at)
    node.agent = node.new_agent()
    node.agent.remember(topology, Report("boot-0", 7, history=(refused,)))
    node.sync()
    assert node.turn.picture.report.history == (refused,)


def asked(story: Story, until: float) -> list[float]:
    """When the kubelet was asked from the last row on, in seconds from there."""
    node = play(story)
    began, before = node.now, len(node.asked)
    node.play_until(until)
    return [round(at - began, 2) for at in node.asked[before:]]


def test_the_kubelet_is_asked_often_for_a_pod_that_is_to_come_and_rarely_with_no_news() -> None:
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
    said: list[Any] = [(entry["event"], entry["cause"]) for entry in logs]
    assert said == expected


ALL_WORK: dict[str, Any] = {f"gpu{n}": {"utilisation": 0.5} for n in range(4)}
ALL_REST: dict[str, Any] = {f"gpu{n}": {"utilisation": 0.0} for n in range(4)}
WORKS = shows(0, 1, 2, 3, **ALL_WORK)
RESTS = shows(0, 1, 2, 3, **ALL_REST)
COMES = (Row(1, bound("1", "a")), Row(2, listed(holds("a", 0))))


def resting(begin: int, end: int) -> tuple[Row, ...]:
    """A look every minute that shows no use."""
    return tuple(Row(at, RESTS) for at in range(begin, end, 60))


def test_an_idle_pod_makes_two_writes_an_hour_and_not_one_at_every_look() -> None:
    node = play((*COMES, *resting(1200, 1260)))
    records = [node.turn.picture.report.idle]
    for at in range(1260, 2 * 3600, 60):
        node.play_until(at)
        (WORKS if at == 3600 else RESTS)(node)
        node.play_until(at + 1)
        if node.turn.picture.report.idle != records[-1]:
            records.append(node.turn.picture.report.idle)
    assert [bool(each) for each in records] == [False, True, False, True]
