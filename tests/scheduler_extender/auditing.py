"""Three clusters to audit: clean, with trap nodes, fragmented. test_audit has the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from tests.nodes import pod
from topology import codec
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, RefusedPod, Report
from topology.machines import machine

GPU = "nvidia.com/gpu"
AFFINITY = "TopologyAffinityError"
H100, PAIRS = "dgx-h100", "a100-pcie-4-bridged"
Object = dict[str, Any]


def node(
    kind: str,
    name: str,
    held: Mapping[str, Sequence[int]],
    *,
    policy: str = "none",
    history: Sequence[tuple[str, int, str]] = (),
) -> list[Object]:
    """A node, and its running pods with the positions of their GPUs.

    ``history`` has the pods that it refused: the name, the GPUs and the hour of each.
    """
    machine_kind = machine(kind)
    kubelet = replace(machine_kind.topology("n").allocator, topology_manager_policy=policy)
    topology = machine_kind.topology(NodeName(name), allocator=kubelet)
    allocations = tuple(
        Allocation(PodUid(who), "default", who, "main", GPU, tuple(
            DeviceId(topology.gpus[p].uuid) for p in gpus
        ))
        for who, gpus in held.items()
    )  # fmt: skip
    refused = tuple(
        RefusedPod(PodUid(who), "default", who, GPU, gpus, AFFINITY, at(hour))
        for who, gpus, hour in history
    )
    report = Report("boot", 1, None, allocations, history=refused, observed_at=at("12:00"))
    pods = [
        {**pod(len(gpus), name=who, uid=who, node=name, phase="Running"), "kind": "Pod"}
        for who, gpus in held.items()
    ]
    return [codec.encode(topology, report), *pods]


def at(hour: str) -> str:
    return f"2026-06-01T{hour}:00Z"


def waits(name: str, gpus: int) -> Object:
    return {**pod(gpus, name=name, uid=name), "kind": "Pod"}


def failed(name: str, gpus: int, node: str, hour: str, reason: str = AFFINITY) -> Object:
    manifest = pod(gpus, name=name, uid=name, node=node, phase="Failed", reason=reason)
    manifest["status"]["startTime"] = at(hour)
    return {**manifest, "kind": "Pod"}


def event(about: str, node: str, hour: str, reason: str = AFFINITY, message: str = "") -> Object:
    involved = {"kind": "Pod", "namespace": "default", "name": about, "uid": about}
    return {
        "kind": "Event",
        "metadata": {"name": f"{about}.1", "namespace": "default"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": involved,
        "source": {"component": "kubelet", "host": node},
        "lastTimestamp": at(hour),
    }


CLEAN = [
    *node(H100, "a", {"half": (0, 1, 2, 3)}),
    *node(H100, "b", {"whole": range(8)}),
]
# Under single-numa-node a pod has GPUs of one NUMA node, which has four. On `spread` each has lost
# one, so four are free on none of them; on `packed` NUMA node 0 has all four.
TRAPS = [
    *node(
        H100,
        "spread",
        {"lint": (0,), "docs": (4,)},
        policy="single-numa-node",
        history=[("old", 4, "09:00"), ("again", 4, "11:00"), ("long-ago", 4, "03:00")],
    ),
    *node(H100, "packed", {"unit": (4,), "fuzz": (5,)}, policy="single-numa-node"),
    *node(H100, "free", {"any": range(8)}),
    failed("again", 4, "spread", "11:00"),
    failed("broken", 1, "packed", "11:30", "UnexpectedAdmissionError"),
    event("again", "spread", "11:00"),
    event("out", "packed", "11:40", "OutOfnvidia.com/gpu", "Node didn't have enough resource"),
    event("perhaps", "spread", "11:50"),
    event("elsewhere", "cpu-only", "11:50"),
    waits("four", 4),
    waits("eight", 8),
]
# Each node has the pairs 0-1 and 2-3, and each pair is on a NUMA node of its own.
FRAGMENTED = [
    *node(PAIRS, "crossed", {"across": (0, 2)}),
    *node(PAIRS, "good", {"pair": (0, 1)}),
    *node(PAIRS, "full", {"quad": (0, 1, 2, 3)}),
    waits("three", 3),
]


def text(objects: Sequence[Object]) -> str:
    return yaml.safe_dump({"kind": "List", "items": list(objects)})
