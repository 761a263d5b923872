"""A GPU that does not answer its driver: NVIDIA's plugin then refuses pods of whole GPUs."""

import pytest

from tests.nodes import gpus
from topology.core.admission import DeviceManager, admissions, device_manager_of
from topology.core.allocators.nvidia import MISSING, Outage
from topology.core.availability import Availability
from topology.core.devices import GpuResource, NodeName
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import Link, LinkKind
from topology.core.placement import Assessment, Reason, Verdict, assess
from topology.core.report import MissingGpu
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    GpuRequest,
    Policy,
    Role,
    gpu_request,
)

LOST = (MissingGpu("GPU-2", counted=True),)
GONE = (MissingGpu("GPU-2", counted=False),)
NAMELESS = (MissingGpu("GPU 2", counted=True),)
OFFERED, WITHHELD = 0b1111, 0b1011  # what is free: all four GPUs, and all but the missing one
CLOSE = Constraints(link=LinkKind.NODE)


def node(config: AllocatorConfig, *resources: GpuResource) -> NodeTopology:
    """Four GPUs, two on each NUMA node, and every pair on one host bridge."""
    links = tuple(Link(a, b, LinkKind.PHB) for a in range(4) for b in range(a + 1, 4))
    return NodeTopology(
        NodeName("n"), gpus(4), links, resources=resources or (GpuResource(),), allocator=config
    )


def kubelet(
    version: str | None, missing: tuple[MissingGpu, ...], policy: str = "none"
) -> DeviceManager:
    config = AllocatorConfig("best-effort", version, policy, "container", "none", "None")
    return device_manager_of(node(config), GpuResource(), missing)


def assessed(
    version: str | None,
    missing: tuple[MissingGpu, ...],
    free: int,
    request: GpuRequest | None = None,
) -> Assessment:
    return assess(kubelet(version, missing), Availability(free, sick=0b0100), request or plain(1))


def plain(count: int) -> GpuRequest:
    return gpu_request(count)


WHERE_ALL_ARE_REFUSED = [
    # the plugin's version, the missing GPUs, what is free, whether a pod is surely refused
    ("0.7.0", LOST, OFFERED, True),
    ("v0.17.4", LOST, OFFERED, True),
    ("v0.18.2", LOST, WITHHELD, True),
    ("v0.19.3", LOST, WITHHELD, True),
    ("v0.20.0", LOST, OFFERED, True),
    ("v0.19.3", NAMELESS, WITHHELD, True),
    ("v0.19.3", GONE, OFFERED, True),
    ("v0.19.3", GONE, WITHHELD, False),
    ("v0.20.1", LOST, OFFERED, False),
    ("v0.6.0", LOST, OFFERED, False),
    (None, LOST, OFFERED, False),
    (None, GONE, WITHHELD, False),
]


@pytest.mark.parametrize(
    ("version", "missing", "free", "refused"),
    [
        pytest.param(*row, id=f"{row[0]} {row[1][0].name} counted={row[1][0].counted} {row[2]:b}")
        for row in WHERE_ALL_ARE_REFUSED
    ],
)
def test_where_a_pod_is_surely_refused(
    version: str | None, missing: tuple[MissingGpu, ...], free: int, refused: bool
) -> None:
    """However many GPUs it asks for; where it is not sure, nothing is promised. If the plugin hands
    out the GPU that does not answer, a pod for all free GPUs surely gets it."""
    for count in range(1, free.bit_count() + 1):
        found = assessed(version, missing, free, plain(count))
        gets_it = not refused and free == OFFERED and count == free.bit_count()
        assert (found.refusal is not None) == (refused or gets_it)
        assert (found.refusal is not None and found.refusal.reason is Reason.SICK) == gets_it
        assert found.hazards == (MISSING,)
        assert found.sets == () if refused else found.sets
        wanted = gpu_request(count, CLOSE, Policy.REQUIRED)
        assert not assessed(version, missing, free, wanted).verdict.holds


def test_all_is_as_before_where_all_answer() -> None:
    found = assessed("v0.19.3", (), WITHHELD)
    assert (found.refusal, found.hazards, found.verdict) == (None, (), Verdict.GUARANTEED)
    assert kubelet("v0.19.3", ()).answers_at_once


def test_the_reason_names_plugin_and_gpu() -> None:
    refusal = assessed("v0.19.3", LOST, OFFERED).refusal
    assert refusal is not None
    assert refusal.message == (
        "NVIDIA's device plugin 0.19.3 refuses every pod with whole GPUs while GPU-2 does not "
        "answer"
    )
    assert not refusal.resolvable, "no eviction brings the GPU back"
    several = assessed("v0.19.3", (*GONE, *NAMELESS), OFFERED).refusal
    assert several is not None
    assert several.message.endswith("while GPU-2 and 1 more do not answer")


@pytest.mark.parametrize("strategy", ["time-slicing", "mps", "mig"])
def test_shares_are_chosen_without_the_driver(strategy: str) -> None:
    config = AllocatorConfig("distributed", "v0.19.3")
    shared = GpuResource("nvidia.com/gpu.shared", strategy, 2)
    whole = GpuResource()
    topology = node(config, shared, whole)
    assert not isinstance(device_manager_of(topology, shared, LOST).allocator, Outage)
    beside = device_manager_of(topology, whole, LOST).allocator
    assert isinstance(beside, Outage), "whole GPUs beside them are not"


@pytest.mark.parametrize("strategy", ["time-slicing", "mps"])
def test_a_plugin_that_gives_one_share_at_most_says_so(strategy: str) -> None:
    """Nothing was evicted for that, and it is not said that GPUs are short."""
    shared = GpuResource("nvidia.com/gpu", strategy, 2, refuses_several=True)
    topology = node(AllocatorConfig("distributed", "v0.20.0"), shared)
    idle = Availability(pack([2] * 4, 2), width=2)
    found = assess(device_manager_of(topology, shared), idle, gpu_request(2))
    assert found.refusal is not None
    assert found.refusal.message.endswith("refuses a container that requests more than one share")
    assert not found.refusal.resolvable
    one_each = GpuRequest("nvidia.com/gpu", tuple(ContainerRequest(c, 1) for c in "ab"))
    assert assess(device_manager_of(topology, shared), idle, one_each).refusal is None


def test_the_kubelet_does_not_ask_where_it_has_no_choice() -> None:
    """All free GPUs of a NUMA node, and what an init container has left."""
    aligned = kubelet("v0.19.3", LOST, "single-numa-node")
    assert admissions(aligned, OFFERED, ((Role.APP, 2),)).sets == (0b0011,)
    assert admissions(aligned, OFFERED, ((Role.APP, 1),)).sets == ()
    one_left = admissions(aligned, 0b0101, ((Role.APP, 1),))
    assert (one_left.sets, one_left.hazards) == ((0b0001,), ())
    reused = admissions(aligned, 0b0011, ((Role.INIT, 2), (Role.APP, 1)))
    assert reused.sets == (0b0001, 0b0010)


def test_what_is_aligned_in_an_unknown_way_may_be_refused() -> None:
    config = AllocatorConfig("best-effort", "v0.19.3", "restricted", sees_topology=False)
    found = assess(
        device_manager_of(node(config), GpuResource(), LOST), Availability(OFFERED), gpu_request(1)
    )
    assert found.refusal is None
    assert MISSING in found.hazards
