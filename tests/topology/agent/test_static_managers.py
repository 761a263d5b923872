"""The agent on a clock, on a node whose kubelet gives CPUs and memory to pods for their own."""

from dataclasses import replace

import pytest

from tests.topology.agent.entries import pod
from tests.topology.agent.scriptednode import (
    Change,
    ScriptedNode,
    agent_restarted,
    holds,
    listed,
    restarted,
)
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.nodecontext import KubeletConfig
from topology.agent.model.observations import Processors, Unseen
from topology.agent.model.podentries import Entry
from topology.core.devices import PodUid
from topology.core.numa import MemoryBlock, cpu_list, cpu_set

NONE = KubeletConfig("restricted", "container", "none", "None", False, False, False)
STATIC = replace(NONE, cpu_manager_policy="static", memory_manager_policy="Static")
MACHINE = Processors(
    (cpu_set("0-3"), cpu_set("4-7")),
    (0, 1),
    tuple(cpu_set(f"{2 * i}-{2 * i + 1}") for i in range(4)),
)
GIVEN = Allocatable(cpu_set("1-7"), {(0, "memory"): 100, (1, "memory"): 100})
BLOCK = MemoryBlock("memory", 5, (1,))


def static_node(kubelet: KubeletConfig = STATIC) -> ScriptedNode:
    """A node of two sockets; the kubelet has reported its exclusive resources."""
    node = ScriptedNode()
    node.exclusive, node.processors = GIVEN, MACHINE
    node.restarts += 1  # so that the kubelet is asked all of it once more
    node.know(kubelet=kubelet)
    node.play_until(15)
    return node


def owning(name: str, cpus: str, *gpus: int) -> Entry:
    """An entry of the kubelet's list: a pod with CPUs, memory and maybe GPUs."""
    return replace(holds(name, *gpus), cpus=cpu_set(cpus), memory=(BLOCK,))


def bound(name: str, cpus: int, gpus: int = 0, **fields: bool) -> Change:
    """The API server has a pod that gets so many CPUs, and memory for one container."""

    def change(node: ScriptedNode) -> None:
        found = replace(pod(name, name, gpus, **fields), own_cpus=cpus, own_memory=1)
        node.know(pods={**node.context.pods, PodUid(name): found})

    return change


def own(node: ScriptedNode) -> dict[str, str] | None:
    """CPUs by pod, as published."""
    found = node.result.picture.report.holdings
    return None if found is None else {h.pod: cpu_list(h.cpus) for h in found}


def test_the_record_has_the_resources_and_their_holders() -> None:
    node = static_node()
    topology = node.result.picture.topology
    assert topology is not None
    assert topology.allocator.numa is not None
    assert [cpu_list(n.cpus) for n in topology.allocator.numa.nodes] == ["0-3", "4-7"]
    assert cpu_list(topology.allocator.numa.whole_cores) == "2-7"
    assert own(node) == {}
    for change in (bound("plain", 2), bound("gpus", 1, gpus=1)):
        change(node)
    listed(owning("plain", "2-3"), owning("gpus", "4", 0))(node)
    node.play_until(16)
    assert own(node) == {"plain": "2-3", "gpus": "4"}
    assert node.holders() == {"gpus": (0,)}
    holdings = node.result.picture.report.holdings
    assert holdings is not None
    assert [h.memory for h in holdings] == [(BLOCK,), (BLOCK,)]


def test_without_static_managers_nothing_is_read_reported_or_waited_for() -> None:
    node = static_node(NONE)
    usual = ScriptedNode()
    usual.know(kubelet=NONE)
    usual.play_until(15)
    bound("plain", 2)(node)
    asked = len(node.asked)
    node.play_until(16)
    usual.play_until(16)
    assert replace(node.result.picture.report, observed_at="") == replace(
        usual.result.picture.report, observed_at=""
    )
    assert node.result.picture.topology == usual.result.picture.topology
    assert node.result.picture.due == frozenset()
    assert len(node.asked) - asked <= 2


@pytest.mark.parametrize("gpus", [0, 1], ids=["without GPUs", "with one"])
def test_the_kubelet_is_asked_often_until_a_pod_has_all_it_gets(gpus: int) -> None:
    node = static_node()
    bound("a", 2, gpus=gpus)(node)
    node.play_until(16)
    listed(holds("a", *range(gpus)))(node)
    node.play_until(16.2)
    assert node.result.picture.due == {"a"}, "its CPUs come a moment after its GPUs"
    listed(owning("a", "2-3", *range(gpus)))(node)
    node.play_until(16.4)
    assert (own(node), node.result.picture.due) == ({"a": "2-3"}, frozenset())
    bound("a", 2, gpus=gpus, ended=True)(node)
    node.play_until(30)
    listed()(node)
    node.play_until(30.5)
    assert (own(node), node.result.picture.due) == ({}, frozenset())


def test_a_kubelet_that_has_just_started_reports_nothing_of_the_machine() -> None:
    node = static_node()
    bound("a", 1, acknowledged=True)(node)
    listed(owning("a", "2"))(node)
    node.play_until(30)
    before = node.result.picture
    node.exclusive = Allocatable()
    restarted()(node)
    node.play_until(33)
    assert node.result.picture.topology == before.topology
    assert own(node) == {"a": "2"}
    node.exclusive = replace(GIVEN, cpus=cpu_set("2-7"))  # its configuration is another one now
    node.play_until(36)
    assert node.result.picture.topology is not None
    numa = node.result.picture.topology.allocator.numa
    assert numa is not None
    assert numa.allocatable == cpu_set("2-7")


def test_a_new_agent_goes_on_from_the_record() -> None:
    node = static_node()
    bound("a", 1, acknowledged=True)(node)
    listed(owning("a", "2"))(node)
    node.play_until(30)
    listed()(node)  # the kubelet, too, has restarted
    agent_restarted()(node)
    node.play_until(31)
    assert own(node) == {"a": "2"}


def test_processors_are_read_once_for_each_kubelet() -> None:
    node = static_node()
    assert node.result.picture.topology is not None
    known = node.result.picture.topology.allocator.numa
    node.processors = Unseen("CPUs by NUMA node", "no such file")
    node.play_until(100)
    assert node.result.picture.topology is not None
    assert node.result.picture.topology.allocator.numa == known
    restarted()(node)
    node.play_until(120)
    assert node.result.picture.topology is not None
    assert node.result.picture.topology.allocator.numa is None
    complete = next(c for c in node.result.picture.report.conditions if c.type == "Complete")
    assert complete.message == "CPUs by NUMA node: no such file"
    assert own(node) == {}, "who has what is told all the same"
