"""Nodes that hand out a sick GPU: surely, or maybe. Pods that require nothing mind it, too."""

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs import BindError
from scheduler_extender.verbs.assume import assume
from scheduler_extender.wire import Pod
from tests.dranodes import NODE, DraWorld, claim, raw, two_pairs
from tests.nodes import bridged, pod, record_of
from topology import codec
from topology.core.devices import DeviceId, GpuUuid, NodeName
from topology.core.placement.rejections import ALL_SICK
from topology.core.report import Condition, Health, MissingGpu, Report

SOFT = {"link": "nvlink", "policy": "preferred"}
HANGS = (Condition("Ready", status=False, reason="Hangs", message="calls hang"),)


def report(
    world: DraWorld, node: str, *sick: int, lost: bool, plugin: bool, **more: object
) -> None:
    """The agent of a node reports sick GPUs."""
    uuids = [f"GPU-{index}" for index in sick]
    everything = frozenset(DeviceId(f"GPU-{index}") for index in range(4))
    found = Report(
        "boot",
        2,
        allocatable=everything if plugin else frozenset(),
        health=tuple(Health(GpuUuid(uuid), False, "Lost" if lost else "Xid48") for uuid in uuids),
        missing=tuple(MissingGpu(uuid, counted=True) for uuid in uuids if lost),
        **more,  # type: ignore[arg-type]
    )
    if plugin:
        world.cluster.put_node(NodeName(node), NodeObject(exists=True))
    world.records.apply(raw(codec.encode(bridged(name=NodeName(node)), found)))


def wanted(count: int, annotations: dict[str, str] | None = None) -> Pod:
    manifest = pod(count, annotations or {}, name="a", uid="a")
    manifest["metadata"]["namespace"] = "ns"
    return msgspec.convert(manifest, Pod)


def refusal(world: DraWorld, asked: Pod) -> str:
    answered = verbs.filter_nodes(world.cluster, asked, [NODE])
    assert not answered.unresolvable, "the end of a pod may bring another GPU before it"
    return (answered.failed or {}).get(NODE, "")


@pytest.mark.parametrize("annotations", [{}, SOFT], ids=["plain", "preferred"])
@pytest.mark.parametrize("conditions", [(), HANGS], ids=["ready", "not ready"])
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "sick"])
def test_under_dra_the_next_gpu_is_looked_at(
    lost: bool, conditions: tuple[Condition, ...], annotations: dict[str, str]
) -> None:
    """No driver taints it by default, so kube-scheduler takes it next."""
    world = two_pairs()
    report(world, NODE, 3, lost=lost, plugin=False, conditions=conditions)
    seen = lost or not conditions
    assert refusal(world, wanted(1, annotations)) == (ALL_SICK.message if seen else "")
    world.claims.apply(claim("other", 3, pod="b"))
    assert refusal(world, wanted(1, annotations)) == ""


def test_under_dra_bind_refuses_a_claim_with_a_sick_gpu() -> None:
    world = two_pairs()
    report(world, NODE, 3, lost=True, plugin=False)
    record = record_of(wanted(1))
    world.cluster.put_pod(record)
    world.claims.apply(claim("c", 3, pod="a"))
    with pytest.raises(BindError, match=ALL_SICK.message):
        assume(world.cluster, record, NODE, lambda: "")
    world.claims.apply(claim("c", 1, pod="a"))
    assert assume(world.cluster, record, NODE, lambda: "") is not None


@pytest.mark.parametrize(("count", "why"), [(4, ALL_SICK.message), (3, "")])
def test_beside_a_plugin_a_gpu_that_surely_comes_is_looked_at(count: int, why: str) -> None:
    """As one that could not remap a row, of which the plugin says nothing."""
    world = DraWorld()
    report(world, NODE, 3, lost=False, plugin=True)
    assert refusal(world, wanted(count)) == why


@pytest.mark.parametrize("annotations", [{}, SOFT], ids=["plain", "preferred"])
def test_a_node_that_may_hand_out_a_sick_gpu_comes_last(annotations: dict[str, str]) -> None:
    world = DraWorld()
    report(world, NODE, 3, lost=False, plugin=True)
    report(world, "sound", lost=False, plugin=True)
    found = verbs.prioritize(world.cluster, wanted(2, annotations), [NODE, "sound"])
    sick, sound = (each.score for each in found)
    assert sick < sound
