"""The agent on a clock: what it publishes of GPUs, links and sysfs, and when."""

from itertools import pairwise

import pytest

from tests.topology.agent.scriptednode import (
    Row,
    ScriptedNode,
    Story,
    agent_forgotten,
    agent_restarted,
    counts,
    play,
    plugin_started,
    restarted,
    serves,
    shows,
    xid,
)
from topology.agent.model.nodecontext import KubeletConfig
from topology.agent.model.observations import NvmlState, PciTree, Processors, Unseen
from topology.core.numa import cpu_set

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


@pytest.mark.parametrize("story", [pytest.param(s, id=name) for name, s in HARDWARE.items()])
def test_hardware(story: Story) -> None:
    play(story)


def links_of(node: ScriptedNode) -> dict[tuple[int, int], int]:
    topology = node.result.picture.topology
    return {(k.a, k.b): k.nvlinks for k in topology.links if k.nvlinks} if topology else {}


def test_links_and_lost_gpus_stay_in_the_topology() -> None:
    node = play((Row(1, shows(0, 1, 3)), Row(1.1)))
    topology = node.result.picture.topology
    assert topology is not None
    assert [(g.index, g.uuid) for g in topology.gpus] == [(i, f"GPU-{i}") for i in range(4)]
    assert links_of(node) == {(0, 1): 1, (2, 3): 1}
    down: dict[str, object] = {"active_links": frozenset()}
    node = play((Row(1, shows(0, 1, 2, 3, gpu0=down, gpu1=down)), Row(1.1)))
    assert links_of(node) == {(2, 3): 1}


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


@pytest.mark.parametrize("energy", [1000, None], ids=["counts energy", "counts none"])
def test_a_flapping_gpu_does_not_cause_a_write_at_every_observation(energy: int | None) -> None:
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
    assert node.result.picture.report.missing == ()


def record(node: ScriptedNode) -> object:
    """What would be written."""
    picture = node.result.picture
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
    assert "NUMA" in str(node.result.picture.unseen)
    node.processors = Processors((cpu_set("0-3"),), (0,), tuple(cpu_set(str(n)) for n in range(4)))
    node.pci = PciTree(numa_distances=((10,),))
    node.play_until(2000)
    topology = node.result.picture.topology
    assert topology is not None
    assert topology.allocator.numa_distances == ((10,),)
    assert "CPUs by NUMA node" not in str(node.result.picture.unseen)
    before = {part: len(read) for part, read in node.read.items()}
    node.play_until(3000)
    assert {part: len(read) for part, read in node.read.items()} == before
