"""Nodes with MIG instances: what is free of them, what pods are promised, where they should go."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.answers.classes import MOST_RESOURCES
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.ledger import Ledger, ledger
from scheduler_extender.state.node.objects import contradiction
from scheduler_extender.state.node.verification import BROKEN, OUTSIDE, Misprediction
from scheduler_extender.verbs import filter_nodes, prioritize
from scheduler_extender.wire import Pod
from tests.nodes import pod, record_of
from tests.scheduler_extender.serving import Clock
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.placement import NOT_SERVED
from topology.core.report import Allocation, Health, Report
from topology.core.requests import GpuRequest
from topology.machines import machine
from topology.machines.mig import cut

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.6gb", "nvidia.com/mig-2g.12gb"
STOCK = AllocatorConfig("distributed", "v0.19.3")


def node(
    profiles: Sequence[str] = ("2g.12gb", "1g.6gb", "1g.6gb"), name: str = "node", **how: Any
) -> NodeTopology:
    found = cut(machine("a30-4-bridged").topology(name), profiles, **how)
    return replace(found, allocator=STOCK)


NODE = node()


def ids(topology: NodeTopology, gpu: int, *parts: int) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(topology.gpus[gpu].mig_instances[n].uuid) for n in parts)


def shows(uid: str, resource: str, *devices: DeviceId) -> Allocation:
    return Allocation(PodUid(uid), "default", uid, "main", resource, devices)


def asks(
    resource: str, count: int, annotations: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    found = pod(count, annotations or {}, **more)
    found["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    return found


def seen(report: Report, resource: str = SMALL, topology: NodeTopology = NODE) -> Ledger:
    return ledger(topology, report, (), resource)


# --- What is free ---------------------------------------------------------------------------------


def test_instances_are_counted_by_gpu() -> None:
    held = shows("a", SMALL, *ids(NODE, 1, 1)), shows("b", LARGE, *ids(NODE, 2, 0))
    report = Report("boot", 1, allocations=held)
    small, large = (seen(report, resource).availability for resource in (SMALL, LARGE))
    assert (small.free, small.width) == (pack((2, 1, 2, 2), 2), 2)
    assert (large.free, large.width) == (pack((1, 1, 0, 1), 1), 1)


def test_what_of_a_gpu_is_held_under_another_resource_is_known() -> None:
    report = Report("boot", 1, allocations=(shows("b", LARGE, *ids(NODE, 2, 0)),))
    assert seen(report).availability.beside == 0b0100
    assert seen(report, LARGE).availability.beside == 0


def test_a_gpus_fault_is_one_of_all_its_instances() -> None:
    sick = Health(NODE.gpus[3].uuid, healthy=False, reason="Xid94")
    assert seen(Report("boot", 1, health=(sick,))).availability.sick == 0b1000


def test_what_the_kubelet_does_not_hand_out_is_not_free() -> None:
    offered = frozenset((*ids(NODE, 0, 1, 2), *ids(NODE, 1, 0, 1)))
    now = seen(Report("boot", 1, allocatable=offered)).availability
    assert (now.free, now.withheld) == (pack((2, 1, 0, 0), 2), pack((0, 1, 2, 2), 2))


@pytest.mark.parametrize("resource", [SMALL, GPU])
def test_an_instance_that_the_hardware_does_not_name_is_a_contradiction(resource: str) -> None:
    """As just after a GPU was split again: the agent has not observed it yet."""
    topology = node(gpus=[0])
    stale = frozenset({DeviceId("MIG-of-before"), DeviceId(topology.gpus[1].uuid)})
    why = contradiction(topology, Report("boot", 1, allocatable=stale), resource) or ""
    assert "MIG-of-before is not among the" in why


def test_whole_gpus_beside_instances_are_the_others() -> None:
    topology = node(gpus=[0])
    offered = frozenset(
        (*ids(topology, 0, 0, 1, 2), *(DeviceId(gpu.uuid) for gpu in topology.gpus[1:]))
    )
    for report in (Report("boot", 1), Report("boot", 1, allocatable=offered)):
        now = seen(report, GPU, topology).availability
        assert (now.free, now.withheld, now.gone) == (0b1110, 0, 0)


def test_shares_of_instances_are_counted_by_instance() -> None:
    topology = node(("1g.6gb", "1g.6gb"), gpus=[0], replicas=3)
    (first,) = ids(topology, 0, 0)
    held = shows("a", SMALL, DeviceId(f"{first}::0"), DeviceId(f"{first}::2"))
    assert seen(Report("boot", 1, allocations=(held,)), SMALL, topology).availability.free == pack(
        (1, 3), 2
    )


# --- Promises -------------------------------------------------------------------------------------


def cluster_of(*topologies: NodeTopology) -> Cache:
    cluster = Cache(Clock())
    for topology in topologies:
        cluster.put_record(topology, Report("boot", 1))
    return cluster


def bound(uid: str, constraints: dict[str, str], count: int = 2) -> dict[str, Any]:
    promise = f'{{"verdict":"guaranteed","node":"node","uid":"{uid}"}}'
    return asks(
        SMALL, count, {**constraints, "placement": promise}, name=uid, uid=uid, node="node"
    )  # fmt: skip


def mispredictions(constraints: dict[str, str], *devices: DeviceId) -> list[str]:
    """What is said when the next report shows a pod with these devices."""
    cluster, found = cluster_of(NODE), list[Misprediction]()
    cluster.on_misprediction.append(found.append)
    cluster.put_pod(record_of(bound("u", constraints)))
    cluster.put_record(NODE, Report("boot", 2, allocations=(shows("u", SMALL, *devices),)))
    return [misprediction.kind for misprediction in found]


@pytest.mark.parametrize(
    ("constraints", "devices", "kinds"),
    [
        ({"min-gpu-memory": "5Gi"}, (*ids(NODE, 0, 1), *ids(NODE, 3, 2)), []),
        ({"same-gpu": "true"}, ids(NODE, 0, 1, 2), []),
        ({"same-gpu": "true"}, (*ids(NODE, 0, 1), *ids(NODE, 3, 2)), [BROKEN]),
        ({"spread-gpus": "true"}, (*ids(NODE, 0, 1), *ids(NODE, 3, 2)), []),
        ({"spread-gpus": "true"}, ids(NODE, 0, 1, 2), [BROKEN]),
    ],
    ids=["any two", "one GPU", "two GPUs for one", "spread", "one GPU for two"],
)
def test_instances_are_held_against_the_promise(
    constraints: dict[str, str], devices: tuple[DeviceId, ...], kinds: list[str]
) -> None:
    assert mispredictions(constraints, *devices) == kinds
    assert OUTSIDE not in kinds  # NVIDIA's plugin may hand out any


def test_an_assumed_pods_instances_are_not_free() -> None:
    cluster = cluster_of(NODE)
    request = record_of(asks(SMALL, 6)).request
    assert isinstance(request, GpuRequest)
    for i, passes in enumerate((True, True, True, False)):
        decision = answer(cluster.snapshot(), cluster.node_info(NodeName("node")), request)
        assert (decision.rejection is None) is passes
        cluster.put_pod(record_of(asks(SMALL, 1, name=f"p{i}", uid=f"u{i}", node="node")))


# --- Where pods should go -------------------------------------------------------------------------


def scores(cluster: Cache, manifest: dict[str, Any]) -> dict[str, int]:
    asked = msgspec.convert(manifest, Pod)
    passed = filter_nodes(cluster, asked, ["unused", "begun"]).node_names or []
    return {row.host: row.score for row in prioritize(cluster, asked, passed)}


@pytest.mark.parametrize("constraints", [{}, {"min-gpu-memory": "5Gi"}], ids=["plain", "required"])
def test_a_slice_goes_where_a_gpu_is_begun_on(constraints: dict[str, str]) -> None:
    """One node has used up three GPUs and begun on the fourth, the other is unused."""
    unused, begun = node(name="unused"), node(name="begun")
    cluster = cluster_of(unused, begun)
    devices = [device for gpu in range(3) for device in ids(begun, gpu, 1, 2)]
    devices += ids(begun, 3, 2)
    held = tuple(shows(f"u{i}", SMALL, device) for i, device in enumerate(devices))
    for i in range(len(held)):
        cluster.put_pod(
            record_of(asks(SMALL, 1, name=f"u{i}", uid=f"u{i}", node="begun", phase="Running"))
        )
    cluster.put_record(begun, Report("boot", 2, allocations=held))
    found = scores(cluster, asks(SMALL, 1, constraints))
    assert found["begun"] > found["unused"]


def test_nodes_cut_into_other_profiles_answer_for_themselves() -> None:
    """Equal hardware, equal resources, as many instances free: only what these are differs."""
    large = node(("2g.12gb", "2g.12gb"), name="large", strategy="single")
    small = node(("1g.6gb", "1g.6gb"), name="small", strategy="single")
    cluster = cluster_of(large, small)
    assert large.resources == small.resources
    asked = msgspec.convert(pod(1, {"min-gpu-memory": "8Gi"}), Pod)
    for _ in range(2):  # worked out, and remembered
        assert filter_nodes(cluster, asked, ["large", "small"]).node_names == ["large"]


# --- Names ----------------------------------------------------------------------------------------


def test_a_node_without_the_resource_is_one_state_whatever_is_on_it() -> None:
    first, second = node(name="first"), node(("4g.24gb",), name="second")
    cluster = cluster_of(first, second)
    keys = {cluster.node_info(NodeName(name)).key("nvidia.com/mig-7g.80gb") for name in ("first",
            "second")}  # fmt: skip
    assert len(keys) == 1


def test_the_number_of_cached_resource_names_is_bounded() -> None:
    cluster = cluster_of(NODE)
    for i in range(2 * MOST_RESOURCES):
        asked = msgspec.convert(asks(f"nvidia.com/mig-{i}g.1gb", 1), Pod)
        assert filter_nodes(cluster, asked, ["node"]).unresolvable == {"node": NOT_SERVED.message}
    assert cluster.answers.size().classes <= MOST_RESOURCES
