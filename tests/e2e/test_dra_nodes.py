"""A mixed cluster of 1.37: real kubelets with a DRA driver or NVIDIA's plugin, agents, extender."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cli import main
from tests.commands import asked
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
    "mover": RealNode(MACHINE, dra_seed=2, mover=True),
}


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


def ask(real: RealCluster, name: str, gpus: int, node: str, **asked: str) -> None:
    """Create a pod that may be on one node only; annotations come without our prefix."""
    pod: dict[str, Any] = gpu_pod(name, [gpus], annotations=asked)
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    real.create(PODS, pod)


def phase(real: RealCluster, pod: str) -> str:
    return str(real.pod(pod)["status"]["phase"])


def start(real: RealCluster, name: str, gpus: int, node: str, **asked: str) -> None:
    """A pod as by :func:`ask`, which runs at the end."""
    ask(real, name, gpus, node, **asked)
    real.until(lambda: phase(real, name) == "Running", f"{name} runs")


def driven(nodes: Mapping[str, Joined], name: str) -> DraKubelet:
    kubelet = nodes[name].kubelet
    assert isinstance(kubelet, DraKubelet)
    return kubelet


def held(nodes: Mapping[str, Joined], node: str, pod: str) -> list[int]:
    """The GPUs that the kubelet says that the pod has through claims."""
    devices = nodes[node].kubelet.pod_resources.claims()["default", pod]["c0"]
    return [int(name.removeprefix("gpu-")) for name in devices]


def placement(real: RealCluster, pod: str) -> tuple[str, list[list[int]]]:
    """The verdict on a pod, and the sets of GPUs that it may have."""
    found = json.loads(real.pod(pod)["metadata"]["annotations"]["gpu-topology.io/placement"])
    return found["verdict"], found["sets"]


def test_a_pair_is_guaranteed_where_the_next_two_are_one(
    real: RealCluster, nodes: Mapping[str, Joined]
) -> None:
    start(real, "pair", 2, "ordered", link="nvlink")
    assert held(nodes, "ordered", "pair") == [1, 0]
    assert placement(real, "pair") == ("guaranteed", [[0, 1]])


def test_a_pair_is_refused_where_the_next_two_are_none(
    real: RealCluster, nodes: Mapping[str, Joined]
) -> None:
    ask(real, "refused", 2, "mixed", link="nvlink")
    assert "the next free GPUs do not meet link=nvlink" in real.unschedulable("refused")
    real.remove_pod("refused")
    start(real, "plain", 2, "mixed")
    assert held(nodes, "mixed", "plain") == [3, 1]


def test_a_node_moves_from_plugin_to_driver(real: RealCluster, nodes: Mapping[str, Joined]) -> None:
    start(real, "before", 2, "mover", link="nvlink")
    assert held(nodes, "mover", "before") == []
    driven(nodes, "mover").move()
    real.until(
        lambda: real.record("mover")["status"]["allocatable"] == [],
        "the agent has seen that no plugin serves",
    )
    real.until_told("mover", lambda found: found["problem"])
    ask(real, "after", 2, "mover", link="nvlink")
    assert "topology record unusable" in real.unschedulable("after")
    done = asked(main, "node", "mover", "--kubeconfig", real.control_plane.kubeconfig())
    assert "but a pod holds it through a device plugin" in done.stdout + done.stderr
    real.remove_pod("before")
    real.until(lambda: phase(real, "after") == "Running", "after runs")
    assert held(nodes, "mover", "after") == [1, 0]
    assert placement(real, "after") == ("guaranteed", [[0, 1]])
