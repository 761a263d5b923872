"""The places on a node are taken, one after the other, whatever GPUs each pod gets."""

import random

import pytest

from scheduler_extender.framework.nodedecision import decide, pod_capacity
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import AgentRecord
from scheduler_extender.state.node.transitions import without_record
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.emulation import EmulatedKubelet
from topology.machines import machine

SETTINGS = Settings()
NVLINK = Constraints(link=LinkKind.NVLINK)
KINDS = ("dgx1-v100", "dgx1-p100", "a100-pcie-4-bridged", "hgx-h100-8", "l40s-4")


def info_of(kubelet: EmulatedKubelet, kind: str) -> NodeInfo:
    """What a report of this moment tells of the node."""
    record = AgentRecord(machine(kind).topology("n"), kubelet.report(), boot_id="b")
    return NodeInfo(NodeName("n"), record=record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("constraints", [Constraints(), NVLINK, Constraints(same_numa=True)])
def test_as_many_pods_as_the_capacity_are_promised_what_they_ask(
    kind: str, gpus: int, constraints: Constraints
) -> None:
    request = gpu_request(gpus, constraints)
    rng = random.Random(f"{kind} {gpus} {constraints.text}")
    node = machine(kind).topology("n")
    for taken in range(len(node.gpus) - 1):
        kubelet = EmulatedKubelet(node, rng)
        for i in range(taken):
            admit(kubelet, f"first-{i}", gpu_request(1))
        count = pod_capacity(info_of(kubelet, kind), request, SETTINGS, 8)
        for i in range(count):
            decision = decide(info_of(kubelet, kind), request, SETTINGS)
            assert decision.rejection is None, (taken, i, count)
            admit(kubelet, f"pod-{i}", request)
        alone = decide(info_of(EmulatedKubelet(node, rng), kind), request, SETTINGS)
        if not taken:
            assert bool(count) == (alone.rejection is None)


def admit(kubelet: EmulatedKubelet, name: str, request: GpuRequest) -> None:
    """Let the kubelet admit a pod."""
    for _ in kubelet.admission(PodUid(name), "default", name, request):
        pass


@pytest.mark.parametrize(
    ("free", "gpus", "expected"),
    [
        pytest.param(range(8), 2, 4, id="four pairs"),
        pytest.param(range(8), 4, 2, id="two quads"),
        pytest.param((1, 2, 3, 4), 2, 1, id="the second pair may not be linked"),
        pytest.param(range(6), 3, 1, id="nor the second triple"),
        pytest.param((0, 6), 2, 0, id="no pair"),
    ],
)
def test_the_pod_capacity_of_a_cube_mesh(
    free: range | tuple[int, ...], gpus: int, expected: int
) -> None:
    node = machine("dgx1-v100").topology("n")
    ids = tuple(DeviceId(g.uuid) for p, g in enumerate(node.gpus) if p not in free)
    held = Allocation(PodUid("x"), "default", "x", "main", "nvidia.com/gpu", ids)
    report = Report("b", 1, allocations=(held,) if ids else ())
    info = NodeInfo(NodeName("n"), record=AgentRecord(node, report))
    request = gpu_request(gpus, NVLINK)
    assert pod_capacity(info, request, SETTINGS, 8) == expected
    assert pod_capacity(info, request, SETTINGS, 1) == min(1, expected)
    assert pod_capacity(without_record(info), request, SETTINGS, 8) == 0
