"""ResourceSlices that NVIDIA's DRA driver published on NVIDIA's mock of the driver."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.sinks import RecordSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.node.objects import NodeObject
from tests import recorded
from tests.dranodes import device_class, raw
from topology import codec
from topology.core.devices import Bytes, Gpu, GpuUuid, NodeName
from topology.core.graph import NodeTopology
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.placement import Rejection
from topology.core.report import Report
from topology.core.requests import Constraints, gpu_request

NODE = NodeName("n1")
GIB = 1 << 30
NVLINK = Constraints(link=LinkKind.NVLINK)
PAIRS = [(0, 1), (2, 3)]


def slices(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        recorded.recorded(f"dra-driver/{name}.json").read_text()
    )
    return found


def published(name: str) -> list[Mapping[str, Any]]:
    """The devices in the order of the slices' names, which is kube-scheduler's."""
    by_name = sorted(slices(name), key=lambda each: str(each["metadata"]["name"]))
    return [device for each in by_name for device in each["spec"].get("devices", ())]


def value(device: Mapping[str, Any], name: str) -> str:
    return str(device["attributes"][name]["string"])


def machine_of(
    devices: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[int, int]]
) -> NodeTopology:
    """The machine, as its agent sees it: the driver's numbers are in the devices' names."""
    gpus = [
        Gpu(
            int(device["name"].removeprefix("gpu-")),
            GpuUuid(value(device, "uuid")),
            value(device, "productName"),
            Bytes(int(device["capacity"]["memory"]["value"].removesuffix("Gi")) * GIB),
            0,
            value(device, "resource.kubernetes.io/pciBusID"),
        )
        for device in devices
    ]
    links = tuple(Link(a, b, LinkKind.PIX, 12, Via.DIRECT, GBps(25.0)) for a, b in pairs)
    return NodeTopology(NODE, tuple(gpus), links)


def read(name: str, topology: NodeTopology) -> NodeInfo:
    """What the extender's reflectors make of a node with this record, and of the slices."""
    cluster = Cache(lambda: 0.0, Settings())
    cluster.put_node(NODE, NodeObject(exists=True, advertises_none=True))
    nodes = DraNodes(cluster)
    report = Report("boot", 1, allocatable=frozenset())
    RecordSink(cluster, lambda: 0.0, nodes).apply(raw(codec.encode(topology, report)))
    classes, its_slices, *_ = nodes.sinks.values()
    classes.apply(device_class())
    its_slices.replace([raw(each) for each in slices(name)], "1")
    return cluster.node_info(NODE)


WHOLE = ["a100", "h100", "gb300", "dgx1v", "bridged4", "bridged4_claims",
         "bridged4_DRAListTypeAttributes", "h100_DynamicMIG"]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_driver_publishes_is_handed_out_in_its_order(name: str) -> None:
    devices = published(name)
    info = read(name, machine_of(devices, PAIRS))
    offer = info.offer("nvidia.com/gpu")
    assert isinstance(offer, Offer), (offer, info.record.problem)
    order = [int(device["name"].removeprefix("gpu-")) for device in devices]
    assert list(offer.topology.allocator.published) == order
    assert offer.availability.free.bit_count() == len(devices)
    # A pair of the first two that the driver published is promised, and no other.
    found = decide(info, gpu_request(2, NVLINK), Settings())
    assert (found.rejection is None) == (tuple(sorted(order[:2])) in PAIRS)


def test_a_driver_that_shares_gpus_is_not_followed() -> None:
    devices = published("bridged4_ConsumableShares")
    info = read("bridged4_ConsumableShares", machine_of(devices, PAIRS))
    assert isinstance(info.offer("nvidia.com/gpu"), Rejection)
    assert info.record.problem


def test_a_driver_that_publishes_nothing_serves_nothing() -> None:
    info = read("mig-all-enabled", machine_of(published("h100"), PAIRS))
    assert isinstance(info.offer("nvidia.com/gpu"), Rejection)
