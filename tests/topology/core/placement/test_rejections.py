"""Refusals that are certain: the emulated kubelet refuses whenever we say so, and why in words."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.nodes import gpus
from topology.core.admission import DeviceManager, device_manager_of
from topology.core.availability import Availability, Holder
from topology.core.devices import Bytes, GpuResource, Mask, NodeName, PodUid
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import Link, LinkKind
from topology.core.placement import Verdict, assess
from topology.core.placement.rejections import ALL_SICK
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    Exclusive,
    GpuRequest,
    Policy,
    Role,
    gpu_request,
)
from topology.emulation import EmulatedKubelet, Refused
from topology.machines import machine

DGX = machine("dgx1-v100").topology("n")  # two NUMA nodes of four GPUs: 0 to 3 and 4 to 7
POLICIES = [
    AllocatorConfig("best-effort", None, policy, scope, "none", "None")
    for policy in ("best-effort", "restricted", "single-numa-node")
    for scope in ("container", "pod")
]
SINGLE_NODE = AllocatorConfig("best-effort", None, "single-numa-node", "container", "none", "None")
RESTRICTED = replace(SINGLE_NODE, topology_manager_policy="restricted")
GIB = 1 << 30
SPREAD = 0b0001_0011  # free: two GPUs on one NUMA node and one on the other


def containers(*counts: tuple[Role, int]) -> GpuRequest:
    made = (ContainerRequest(f"c{i}", n, role) for i, (role, n) in enumerate(counts))
    return GpuRequest("nvidia.com/gpu", tuple(made))


PODS = [
    containers((Role.APP, 2)),
    containers((Role.APP, 3)),
    containers((Role.APP, 5)),
    containers((Role.APP, 2), (Role.APP, 2)),
    containers((Role.INIT, 3), (Role.APP, 2)),
    containers((Role.SIDECAR, 1), (Role.INIT, 2), (Role.APP, 3)),
]


def emulated_refuses(config: AllocatorConfig, free: Mask, pod: GpuRequest, seed: int) -> bool:
    emulated = EmulatedKubelet(replace(DGX, allocator=config), random.Random(seed))
    emulated.sicken(p for p in range(8) if not free >> p & 1)
    try:
        emulated.admit(PodUid("u"), "default", "pod", pod)
    except Refused:
        return True
    return False


@pytest.mark.parametrize("config", POLICIES, ids=lambda f: f.topology_manager_policy)
def test_a_certain_refusal_comes_every_time(config: AllocatorConfig) -> None:
    """And one that does not is always taken at least once, where nothing is random."""
    rng = random.Random(str(config))
    kubelet = DeviceManager(DGX.shape, config)
    certain = taken = 0
    for pod in PODS:
        for _ in range(12):
            free = rng.randrange(1, 256)
            found = assess(kubelet, Availability(free), pod)
            if not found.fits:
                continue
            refused = [emulated_refuses(config, free, pod, seed) for seed in range(4)]
            if found.refusal is not None:
                certain += 1
                assert all(refused), (free, pod)
            else:
                taken += 1
                assert not all(refused), (free, pod)
    assert taken > 10
    assert certain > 5 or config.topology_manager_policy == "best-effort"


def words(config: AllocatorConfig, free: Mask, pod: GpuRequest) -> tuple[str, bool] | None:
    found = assess(DeviceManager(DGX.shape, config), Availability(free), pod).refusal
    return None if found is None else (found.message, found.resolvable)


def test_the_reason_names_policy_and_count() -> None:
    assert words(SINGLE_NODE, SPREAD, gpu_request(2)) is None
    assert words(SINGLE_NODE, SPREAD, gpu_request(3)) == (
        "Topology Manager single-numa-node: the node can never align 3 GPUs",
        False,  # what is not free here is not held by pods
    )
    assert words(RESTRICTED, SPREAD, gpu_request(3)) == (
        "Topology Manager restricted: the node can never align 3 GPUs",
        False,
    )


def test_evictions_help_where_running_pods_hold_what_is_missing() -> None:
    kubelet = DeviceManager(DGX.shape, SINGLE_NODE)
    held = Availability(SPREAD, running=(Holder(0xFF & ~SPREAD),))
    refused = assess(kubelet, held, gpu_request(3)).refusal
    assert refused is not None
    assert refused.message == "Topology Manager single-numa-node: no NUMA node has 3 GPUs free"
    assert refused.resolvable
    split = assess(DeviceManager(DGX.shape, RESTRICTED), held, gpu_request(3)).refusal
    assert split is not None
    assert split.message == (
        "Topology Manager restricted: the free devices for 3 GPUs are spread over too many NUMA "
        "nodes"
    )
    never = assess(kubelet, Availability(0xFF), gpu_request(5)).refusal
    assert never is not None
    assert not never.resolvable


@pytest.mark.parametrize("policy", [Policy.PREFERRED, Policy.REQUIRED])
def test_constraints_do_not_hide_it(policy: Policy) -> None:
    near = gpu_request(3, Constraints(link=LinkKind.NVLINK), policy)
    found = assess(DeviceManager(DGX.shape, SINGLE_NODE), Availability(SPREAD), near)
    assert found.refusal is not None
    far = gpu_request(3, Constraints(min_gpu_memory=2**40), policy)  # type: ignore[arg-type]
    found = assess(DeviceManager(DGX.shape, SINGLE_NODE), Availability(SPREAD), far)
    assert found.verdict is Verdict.NEVER
    assert (found.refusal is not None) == (policy is Policy.PREFERRED)


def test_what_the_kubelet_may_do_is_no_certain_refusal() -> None:
    """Other managers may have unknown hints."""
    unknown = replace(SINGLE_NODE, cpu_manager_policy=None)
    pinned = replace(gpu_request(2), exclusive=Exclusive.CPUS)
    found = assess(DeviceManager(DGX.shape, unknown), Availability(0xFF), pinned)
    assert found.hazards
    assert found.refusal is None


def test_the_plugin_may_be_what_fails() -> None:
    """Two GPUs count the links between them differently: NVIDIA's plugin ends with an error."""
    links = (Link(0, 1, LinkKind.SYS, 1, one_sided=True), Link(0, 2, LinkKind.SYS))
    topology = NodeTopology(NodeName("n"), gpus(3), (*links, Link(1, 2, LinkKind.SYS)))
    kubelet = DeviceManager(topology.shape, AllocatorConfig("best-effort"))
    found = assess(kubelet, Availability(0b111), gpu_request(2)).refusal
    assert found is not None
    assert "device plugin fails" in found.message
    assert assess(kubelet, Availability(0b111), gpu_request(1)).refusal is None


@pytest.mark.parametrize(
    ("policy", "free", "count", "certain"),
    [
        pytest.param("best-effort", 0b0001, 1, True, id="no other GPU is free"),
        pytest.param("best-effort", 0b1111, 4, True, id="all free ones are asked for"),
        pytest.param("best-effort", 0b0011, 1, False, id="another may come"),
        pytest.param("best-effort", 0b1110, 2, False, id="it is in use"),
        pytest.param("dra", 0b1111, 1, True, id="it is the next under DRA"),
        pytest.param("dra", 0b1110, 1, False, id="it is not the next"),
    ],
)
@pytest.mark.parametrize("policy_of", [Policy.REQUIRED, Policy.PREFERRED])
@pytest.mark.parametrize("wanted", [Constraints(), Constraints(min_gpu_memory=Bytes(1))])
def test_a_sick_gpu_that_surely_comes_refuses_every_pod(
    policy: str, free: Mask, count: int, certain: bool, policy_of: Policy, wanted: Constraints
) -> None:
    config = AllocatorConfig(policy, published=(0, 1, 2, 3) if policy == "dra" else ())
    node = (
        machine("a100-pcie-4-bridged").topology("n").served(GpuResource("nvidia.com/gpu"), config)
    )
    kubelet = device_manager_of(node, node.resources[0])
    request = replace(gpu_request(count, wanted), policy=policy_of)
    assessed = assess(kubelet, Availability(free, sick=0b0001), request)
    assert (assessed.refusal == ALL_SICK) == certain
    if certain and wanted != Constraints():
        assert assessed.rejection == ALL_SICK


@pytest.mark.parametrize(
    ("count", "wanted", "possible"),
    [
        pytest.param(2, {"link": LinkKind.NVLINK, "min_gpu_memory": 20 * GIB}, True, id="linked"),
        pytest.param(
            2, {"link": LinkKind.NVLINK, "min_gpu_memory": 30 * GIB}, False, id="the larger are not"
        ),
        pytest.param(4, {"min_gpu_memory": 30 * GIB}, True, id="all shares of the two larger"),
        pytest.param(5, {"min_gpu_memory": 30 * GIB}, False, id="more shares than of these two"),
        pytest.param(2, {"min_gpu_memory": 60 * GIB, "exclusive_gpus": True}, True, id="whole"),
        pytest.param(6, {"min_gpu_memory": 60 * GIB, "exclusive_gpus": True}, False, id="3 whole"),
    ],
)
@pytest.mark.parametrize("free", [0, 2])
def test_what_shares_can_never_meet_is_no_matter_of_time(
    count: int, wanted: dict[str, Any], possible: bool, free: int
) -> None:
    """Two linked GPUs have 40 GiB each and two others 80, in two shares each."""
    shape = machine("a100-pcie-4-bridged").topology("n").shape
    links = tuple(
        tuple(
            link if {a, b} == {0, 1} or a == b else shape.links[0][2] for b, link in enumerate(row)
        )
        for a, row in enumerate(shape.links)
    )
    memory = tuple(Bytes(each * GIB) for each in (40, 40, 80, 80))
    kubelet = DeviceManager(replace(shape, links=links, memory=memory), replicas=2)
    now = Availability(pack([free] * 4, kubelet.width), width=kubelet.width)
    found = assess(kubelet, now, gpu_request(count, Constraints(**wanted)))
    assert (found.verdict is not Verdict.NEVER) == possible
    assert found.rejection is None or possible or not found.rejection.resolvable
