"""Preemption by a real kube-scheduler: nobody is evicted for nothing.

Its dry run counts GPUs. On a node whose pods hold GPUs across the bridges, evicting one frees two
GPUs without a link; on a node whose pods hold bridged pairs, it frees a pair.
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.cluster import PODS, RealCluster
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import AllocatorFacts
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
UNMODELLED = AllocatorFacts("any")
QUIET = 4.0


@pytest.fixture(scope="module", autouse=True)
def _classes(real: RealCluster) -> None:
    real.add_priority_classes(low=1, high=1000)


def _full_node(real: RealCluster, name: str, *sets: tuple[int, int]) -> list[str]:
    """A node with two bridges whose four GPUs are held by low-priority pods, pair by pair."""
    node = machine("a100-pcie-4-bridged").topology(name, allocator=UNMODELLED)
    pods, held = [], []
    for i, gpus in enumerate(sets):
        found = real.add_pod(f"{name}-{i}", 2, nodeName=name, priorityClassName="low")
        ids = tuple(DeviceId(node.gpus[p].uuid) for p in gpus)
        uid = PodUid(found["metadata"]["uid"])
        held.append(Allocation(uid, "default", f"{name}-{i}", "main", "nvidia.com/gpu", ids))
        pods.append(f"{name}-{i}")
    real.add_machine(node, Report("boot", 1, allocations=tuple(held)))
    return pods


def _evicted(real: RealCluster, pods: list[str]) -> list[str]:
    return [p for p in pods if real.pod(p)["metadata"].get("deletionTimestamp")]


def test_only_an_eviction_that_helps_takes_place(real: RealCluster) -> None:
    across = _full_node(real, "across", (0, 2), (1, 3))
    real.add_pod("wants-a-pair", 2, NVLINK, priorityClassName="high")
    real.until(lambda: real.calls("preempt") > 0, "the scheduler asks whom to evict")
    until = time.monotonic() + QUIET
    while time.monotonic() < until:
        assert _evicted(real, across) == []
        time.sleep(0.2)
    assert not real.pod("wants-a-pair")["spec"].get("nodeName")
    assert "nominatedNodeName" not in real.pod("wants-a-pair")["status"]

    pairs = _full_node(real, "pairs", (0, 1), (2, 3))
    real.until(lambda: _evicted(real, pairs), "a pod that holds a pair is evicted")
    (victim,) = _evicted(real, pairs)
    # Its kubelet lets it end and reports what is left.
    node = machine("a100-pcie-4-bridged").topology("pairs", allocator=UNMODELLED)
    left = next(p for p in pairs if p != victim)
    gpus = (0, 1) if left == "pairs-0" else (2, 3)
    uid = PodUid(real.pod(left)["metadata"]["uid"])
    ids = tuple(DeviceId(node.gpus[p].uuid) for p in gpus)
    real.remove_pod(victim)
    allocation = Allocation(uid, "default", left, "main", "nvidia.com/gpu", ids)
    real.put_report("pairs", Report("boot", 2, allocations=(allocation,)))
    assert real.node_of("wants-a-pair") == "pairs"
    assert _evicted(real, across) == []
    assert {item["metadata"]["name"] for item in real.api.get(PODS).json()["items"]} == {
        *across,
        left,
        "wants-a-pair",
    }
