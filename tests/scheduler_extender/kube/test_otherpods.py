"""What pods without GPUs ask for on a node, as the API server tells it."""

from pathlib import Path
from typing import Any

from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.reading import other_pods
from tests.fakes.apiserver import FakeApiServer
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiServer

NODE = NodeName("train-01")


def pod(name: str, node: str, *asks: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    """A pod with a container for each of ``asks``."""
    containers = [{"name": f"c{i}", "resources": {"requests": a}} for i, a in enumerate(asks)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": node, "containers": containers},
        "status": {"phase": phase},
    }


def test_the_pods_of_the_node_that_run_and_have_no_gpus_are_added_up(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        for found in (
            pod("web", NODE, {"cpu": "500m", "memory": "1Gi"}, {"cpu": "1"}),
            pod("cache", NODE, {"memory": "2Gi"}, phase="Pending"),
            pod("idle", NODE, {}),
            pod("train", NODE, {"cpu": "8", "nvidia.com/gpu": "2"}),  # the extender knows it
            pod("done", NODE, {"cpu": "32"}, phase="Succeeded"),
            pod("elsewhere", "train-02", {"cpu": "64"}),
        ):
            fake.put("/api/v1/pods", found)
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        assert other_pods(api, MANAGED, NODE) == (
            ("cpu", 1500),
            ("memory", 3 * 2**30 * 1000),
            ("pods", 3000),
        )
        assert other_pods(api, MANAGED, NodeName("empty")) == ()


def test_an_api_server_that_does_not_answer_leaves_it_unknown(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        fake.refuse(403, None)
        assert other_pods(api, MANAGED, NODE) is None
