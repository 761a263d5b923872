"""A mixed cluster of 1.37: real kubelets with a DRA driver or NVIDIA's plugin, agents, extender."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import agentidentity
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.drakubelet import API, DraKubelet, device_class
from tests.e2e.kubelet import kubelet_users
from tests.e2e.pods import gpu_pod
from tests.e2e.realnodes import Joined, RealNode, joined

pytestmark = pytest.mark.e2e
MACHINE = "a100-pcie-4-bridged"  # GPUs 0 and 1 are joined by NVLink, and 2 and 3
NODES = {
    "ordered": RealNode(MACHINE, dra_seed=2),
    "mixed": RealNode(MACHINE, dra_seed=6),
    "plugin": RealNode(MACHINE),
}
ORDERS = {"ordered": [1, 0, 2, 3], "mixed": [3, 1, 0, 2]}


@pytest.fixture(scope="module")
def real(dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    cluster = RealCluster(tmp_path_factory.mktemp("dra"), dra_binaries, kubelet_users([*NODES]))
    # From 1.37 on kube-apiserver announces no address of this machine's own to others.
    cluster.control_plane.apiserver_flags = ["--endpoint-reconciler-type=none"]
    with cluster:
        agentidentity.install(cluster.control_plane)
        cluster.create(f"{API}/deviceclasses", device_class())
        cluster.control_plane.start_controllers(["resourceclaim-controller"])
        yield cluster


@pytest.fixture(scope="module")
def nodes(
    real: RealCluster, dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Joined]]:
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(joined(real, folder, dra_binaries, name, wanted))
            for name, wanted in NODES.items()
        }


def start(real: RealCluster, name: str, gpus: int, node: str | None = None, **asked: str) -> str:
    """A pod that runs at the end; ``node`` is the only one where it may. Returns where it runs."""
    pod: dict[str, Any] = gpu_pod(name, [gpus], annotations=asked)
    if node is not None:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    real.create(PODS, pod)
    real.until(lambda: real.pod(name)["status"]["phase"] == "Running", f"{name} runs")
    return real.node_of(name)


def held(nodes: Mapping[str, Joined], node: str, pod: str) -> list[int]:
    """The GPUs that the kubelet says that the pod has through claims."""
    devices = nodes[node].kubelet.pod_resources.claims()["default", pod]["c0"]
    return [int(name.removeprefix("gpu-")) for name in devices]


def test_the_drivers_publish_in_their_order(nodes: Mapping[str, Joined]) -> None:
    for name, order in ORDERS.items():
        kubelet = nodes[name].kubelet
        assert isinstance(kubelet, DraKubelet)
        assert kubelet.published() == [f"gpu-{index}" for index in order]


def test_a_pair_is_guaranteed_where_the_next_two_are_one(
    real: RealCluster, nodes: Mapping[str, Joined]
) -> None:
    assert start(real, "pair", 2, "ordered", link="nvlink") == "ordered"
    assert held(nodes, "ordered", "pair") == [1, 0]
    written = json.loads(real.pod("pair")["metadata"]["annotations"]["gpu-topology.io/placement"])
    assert (written["verdict"], written["sets"]) == ("guaranteed", [[0, 1]])
