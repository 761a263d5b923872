"""An extender's picture of one node under DRA, fed by the sinks of its reflectors, and objects for
it."""

import json
from typing import Any

import msgspec

from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.sinks import RecordSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.node.objects import NodeObject
from tests.nodes import bridged
from topology import codec
from topology.core.devices import NodeName
from topology.core.report import Report

DRIVER = "gpu.nvidia.com"
NODE = NodeName("node")
PUBLISHED = (3, 1, 0, 2)
STALE_AFTER = 60.0
IS_GPU = f"device.driver == \"{DRIVER}\" && device.attributes['{DRIVER}'].type == 'gpu'"
Json = dict[str, Any]


class DraWorld:
    """An extender's picture, fed by the sinks of its reflectors."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cluster = Cache(lambda: self.now, Settings(stale_after=STALE_AFTER))
        self.cluster.put_node(NODE, NodeObject(exists=True, advertises_none=True))
        self.nodes = DraNodes(self.cluster)
        self.records = RecordSink(self.cluster, lambda: 0.0, self.nodes)
        sinks = self.nodes.sinks.values()
        self.classes, self.slices, self.claims, self.rules = sinks
        self.speak(1)

    def speak(self, sequence: int, node: NodeName = NODE) -> None:
        """The agent of a node reports."""
        report = Report("boot", sequence, allocatable=frozenset())
        self.records.apply(raw(codec.encode(bridged(name=node), report)))

    @property
    def offer(self) -> Any:
        """What the node offers."""
        return self.cluster.node_info(NODE).offer("nvidia.com/gpu")

    @property
    def problem(self) -> str:
        """Why its record cannot be used."""
        return self.cluster.node_info(NODE).record.problem or ""


def two_pairs() -> DraWorld:
    """A node of two pairs, 0-1 and 2-3, whose GPUs are published as 3, 1, 0, 2."""
    world = DraWorld()
    world.classes.apply(device_class())
    world.slices.apply(a_slice(*map(device, PUBLISHED)))
    return world


def order(world: DraWorld) -> tuple[int, ...]:
    assert isinstance(world.offer, Offer), (world.offer, world.problem)
    return world.offer.topology.allocator.published


def raw(obj: Json) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(obj).encode())


def device_class(name: str = DRIVER, expression: str = IS_GPU, made: str = "1") -> msgspec.Raw:
    spec: Json = {
        "selectors": [{"cel": {"expression": expression}}],
        "extendedResourceName": "nvidia.com/gpu",
    }
    return raw({"metadata": {"name": name, "creationTimestamp": made}, "spec": spec})


def device(index: int, kind: str = "gpu", **fields: Any) -> Json:
    attributes: Json = {"type": {"string": kind}, "uuid": {"string": f"GPU-{index}"}}
    attributes |= {"number": {"int": index}, "pair": {"string": f"pair-{index // 2}"}}
    return {
        "name": f"{kind}-{index}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
        **fields,
    }


def a_slice(
    *devices: Json, name: str = "s", generation: int = 1, count: int = 1, pool: str = NODE
) -> msgspec.Raw:
    return slice_of(NODE, *devices, name=name, pool=pool, generation=generation, count=count)


def slice_of(
    node: str, *devices: Json, name: str, pool: str, generation: int = 1, count: int = 1
) -> msgspec.Raw:
    of_pool = {"name": pool, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": node, "pool": of_pool, "devices": list(devices)}
    return raw({"metadata": {"name": name}, "spec": spec})


def claim(
    name: str, *gpus: int, pod: str = "", pods: tuple[str, ...] = (), **result: Any
) -> msgspec.Raw:
    results = [
        {"request": "r", "driver": DRIVER, "pool": NODE, "device": f"gpu-{gpu}", **result}
        for gpu in gpus
    ]
    status: Json = {"allocation": {"devices": {"results": results}}} if gpus else {}
    holders = (pod, *pods) if pod else pods
    if holders:
        status["reservedFor"] = [{"resource": "pods", "name": p, "uid": p} for p in holders]
    return raw({"metadata": {"namespace": "ns", "name": name, "uid": name}, "status": status})


def asking(name: str, *requests: Json, alike: str = "") -> msgspec.Raw:
    """A claim that has no devices yet."""
    constraints = [{"matchAttribute": alike}] if alike else []
    devices = {"requests": list(requests), "constraints": constraints}
    return raw({"metadata": {"namespace": "ns", "name": name}, "spec": {"devices": devices}})


def exactly(count: int, expression: str = "", **fields: Any) -> Json:
    """A request for so many GPUs."""
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {
        "name": "r",
        "exactly": {
            "deviceClassName": DRIVER,
            "selectors": selectors,
            "allocationMode": "ExactCount",
            "count": count,
            **fields,
        },
    }
