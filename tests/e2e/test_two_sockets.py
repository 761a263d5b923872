"""A kubelet that aligns pods to NUMA nodes, with NVIDIA's plugin: two sockets, static CPUs."""

from typing import Any

import pytest

from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.processors import Processors
from tests.e2e.realnodes import RealNode, RealNodes

pytestmark = pytest.mark.e2e
NODE = "aligned"
PROCESSORS = Processors(sockets=2, cores=16)
NODES = {
    NODE: RealNode(
        "dgx1-v100",
        processors=PROCESSORS,
        overrides={
            "topologyManagerPolicy": "single-numa-node",
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
        },
    )
}


def create(nodes: RealNodes, name: str, gpus: int, cpus: int) -> None:
    """A pod with CPUs of its own: integer limits that are its requests, memory, too."""
    pod = gpu_pod(name, [gpus], node=NODE)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"cpu": str(cpus), "memory": "64Mi"}
    nodes.cluster.create(PODS, pod)


def status(nodes: RealNodes, name: str) -> dict[str, Any]:
    """A pod's status, once its kubelet has decided."""
    found: dict[str, Any] = {}

    def decided() -> bool:
        found.update(nodes.cluster.pod(name)["status"])
        return found["phase"] in ("Running", "Failed")

    nodes.cluster.until(decided, f"the kubelet has decided about {name}")
    return found


def test_pods_are_aligned_or_refused(real_nodes: RealNodes) -> None:
    """Three of the four GPUs of each socket go; two are left then, and no pod gets both."""
    kubelet = real_nodes.kubelets[NODE]
    for name in ("first", "second"):
        create(real_nodes, name, 3, 4)
        assert status(real_nodes, name)["phase"] == "Running"
        (ids,) = kubelet.pod_resources.holdings()["default", name].values()
        numa = {kubelet.topology.gpus[p].numa_node for p in kubelet.positions(ids)}
        assert len(numa) == 1, ids
    create(real_nodes, "across", 2, 2)
    found = status(real_nodes, "across")
    assert (found["phase"], found["reason"]) == ("Failed", "TopologyAffinityError")
    create(real_nodes, "single", 1, 2)
    assert status(real_nodes, "single")["phase"] == "Running"
