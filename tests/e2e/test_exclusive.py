"""CPUs and memory that a real kubelet gives to pods for their own, and what the record says of it.

The record is held against what the kubelet's managers have noted for themselves (their
checkpoints), which is not what the agent reads.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.processors import Processors
from tests.e2e.realnodes import RealNode, RealNodes
from topology import codec
from topology.core.numa import Holding, MemoryBlock, NumaConfig, NumaNode, cpu_list, cpu_set
from topology.core.report import Report

pytestmark = pytest.mark.e2e
NODE = "static"
MIB = 1 << 20
PROCESSORS = Processors(sockets=2, cores=4, memory_kb=1 << 20)
RESERVED = 128 * MIB  # Memory of each NUMA node that is the system's
NODES = {
    NODE: RealNode(
        "dgx1-v100",
        processors=PROCESSORS,
        overrides={
            "topologyManagerPolicy": "restricted",
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"},
            "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "kubeReserved": {"memory": str(2 * RESERVED)},
            "reservedMemory": [
                {"numaNode": n, "limits": {"memory": str(RESERVED)}} for n in range(2)
            ],
        },
    )
}
NUMA = [cpu_set("0-3,8-11"), cpu_set("4-7,12-15")]


def create(
    nodes: RealNodes,
    name: str,
    *containers: Mapping[str, str],
    sidecar: Mapping[str, str] | None = None,
    init: Mapping[str, str] | None = None,
) -> str:
    """A pod whose containers have these limits; its UID, once it runs."""
    pod = gpu_pod(
        name, [0] * len(containers), node=NODE, sidecars=[0] * bool(sidecar), init=[0] * bool(init)
    )
    spec = pod["spec"]
    first = [limits for limits in (sidecar, init) if limits]
    for container, limits in zip(
        [*spec["initContainers"], *spec["containers"]], [*first, *containers], strict=True
    ):
        container["resources"] = {"limits": dict(limits)}
    uid: str = nodes.cluster.create(PODS, pod)["metadata"]["uid"]
    nodes.cluster.until(
        lambda: nodes.cluster.pod(name)["status"]["phase"] == "Running", f"{name} runs"
    )
    return uid


def report(nodes: RealNodes) -> Report:
    """The node's report as it stands."""
    found = codec.decode(nodes.cluster.record(NODE)).report
    assert found is not None
    return found


def holding_of(nodes: RealNodes, name: str) -> Holding | None:
    """What the record says that a pod has for its own."""
    found = report(nodes).holdings
    assert found is not None
    return next((h for h in found if h.pod == name), None)


def noted(nodes: RealNodes, name: str, uid: str) -> Holding:
    """What the kubelet's managers have noted of a pod."""
    kubelet = nodes.kubelets[NODE]
    cpus = 0
    for text in kubelet.checkpoint("cpu_manager_state").get("entries", {}).get(uid, {}).values():
        cpus |= cpu_set(text)
    memory = kubelet.checkpoint("memory_manager_state").get("entries", {}).get(uid, {})
    blocks = [
        MemoryBlock(block["type"], block["size"], tuple(sorted(block["numaAffinity"])))
        for blocks in memory.values()
        for block in blocks
    ]
    blocks.sort(key=lambda b: (b.type, b.nodes, b.amount))
    return Holding("default", name, cpu_set(cpu_list(cpus)), tuple(blocks))  # type: ignore[arg-type]


def settled(nodes: RealNodes, name: str, uid: str) -> Holding:
    """What the record says of a pod, once it says what the kubelet has noted."""
    nodes.cluster.until(
        lambda: holding_of(nodes, name) == noted(nodes, name, uid), f"{name} is in the record"
    )
    found = holding_of(nodes, name)
    assert found is not None
    return found


def on(holding: Holding) -> list[int]:
    """The NUMA nodes of a pod's CPUs."""
    return [number for number, cpus in enumerate(NUMA) if holding.cpus & cpus]


@pytest.fixture(autouse=True)
def _clear(real_nodes: RealNodes) -> Any:
    """Every test begins without pods of another one."""
    yield
    for pod in real_nodes.cluster.api.get(PODS).json()["items"]:
        real_nodes.cluster.remove_pod(pod["metadata"]["name"])
    real_nodes.cluster.until(lambda: report(real_nodes).holdings == (), "nobody has any")


def test_the_record_says_what_the_machine_has(real_nodes: RealNodes) -> None:
    config = codec.decode(real_nodes.cluster.record(NODE)).topology.allocator
    memory = (("memory", PROCESSORS.memory_kb * 1024 - RESERVED),)
    assert config.numa == NumaConfig(
        nodes=(NumaNode(NUMA[0], 0, memory), NumaNode(NUMA[1], 1, memory)),
        allocatable=cpu_set("1-15"),
        whole_cores=cpu_set("1-7,9-15"),
        threads=2,
        socket_aligned=False,
    )
    assert config.numa_distances == ((10, 21), (21, 10))
    assert report(real_nodes).holdings == ()


def test_a_pod_with_gpus_has_its_cpus_beside_them(real_nodes: RealNodes) -> None:
    limits = {"nvidia.com/gpu": "2", "cpu": "4", "memory": "256Mi"}
    found = settled(real_nodes, "gpus", create(real_nodes, "gpus", limits))
    assert found.cpus.bit_count() == 4
    assert len(on(found)) == 1
    assert found.memory == (MemoryBlock("memory", 256 * MIB, tuple(on(found))),)
    (allocation,) = report(real_nodes).allocations
    kubelet = real_nodes.kubelets[NODE]
    numa = {kubelet.topology.gpus[p].numa_node for p in kubelet.positions(allocation.device_ids)}
    assert numa == set(on(found))


def test_pods_without_gpus_are_reported_too(real_nodes: RealNodes) -> None:
    plain = create(real_nodes, "plain", {"cpu": "2", "memory": "64Mi"})
    fraction = create(real_nodes, "fraction", {"cpu": "500m", "memory": "64Mi"})
    create(real_nodes, "burstable", {"cpu": "2"})
    found = settled(real_nodes, "plain", plain)
    assert found.cpus.bit_count() == 2
    found = settled(real_nodes, "fraction", fraction)
    assert found.cpus == 0, "it shares CPUs"
    assert [(block.type, block.amount) for block in found.memory] == [("memory", 64 * MIB)]
    assert holding_of(real_nodes, "burstable") is None


def test_memory_of_two_numa_nodes_is_one_block(real_nodes: RealNodes) -> None:
    uid = create(real_nodes, "wide", {"cpu": "500m", "memory": "1200Mi"})
    assert settled(real_nodes, "wide", uid).memory == (MemoryBlock("memory", 1200 * MIB, (0, 1)),)


def test_containers_of_a_pod_are_reported_together(real_nodes: RealNodes) -> None:
    """The sidecar too. What an ordinary init container had, the kubelet does not show.

    The app containers take its CPUs over as far as they need them. The rest stays taken until the
    pod ends: here one of the two. Its memory is free as soon as the next container has started.
    """
    one = {"cpu": "1", "memory": "64Mi"}
    two = {"cpu": "2", "memory": "32Mi"}
    uid = create(real_nodes, "several", one, two, sidecar=one, init=two | {"memory": "16Mi"})
    real_nodes.cluster.until(
        lambda: (found := holding_of(real_nodes, "several")) is not None and len(found.memory) == 3,
        "three containers have memory",
    )
    found = holding_of(real_nodes, "several")
    assert found is not None
    held = noted(real_nodes, "several", uid)
    assert found.cpus.bit_count() == 4
    assert (held.cpus & ~found.cpus).bit_count() == 1
    assert sorted(b.amount for b in found.memory) == [32 * MIB, 64 * MIB, 64 * MIB]
    assert found.memory == held.memory


def test_cpus_are_free_again_when_a_pod_has_ended(real_nodes: RealNodes) -> None:
    settled(real_nodes, "a", create(real_nodes, "a", {"cpu": "2", "memory": "64Mi"}))
    real_nodes.cluster.remove_pod("a")
    real_nodes.cluster.until(lambda: holding_of(real_nodes, "a") is None, "the record has lost it")


def test_a_kubelet_that_restarts_takes_nobodys_cpus(real_nodes: RealNodes) -> None:
    """For a moment after its start it lists no pods, and says that it gives no CPUs to any."""
    uid = create(real_nodes, "a", {"cpu": "2", "memory": "64Mi"})
    has = settled(real_nodes, "a", uid)
    before = len(real_nodes.reports(NODE))
    for name in ("b", "c", "d"):
        real_nodes.kubelets[NODE].restart_kubelet()
        later = create(real_nodes, name, {"cpu": "2", "memory": "64Mi"})
        settled(real_nodes, name, later)
    since = real_nodes.reports(NODE)[before:]
    assert len(since) >= 3
    assert all(has in (found.holdings or ()) for found in since)
    assert codec.decode(real_nodes.cluster.record(NODE)).topology.allocator.numa is not None
