"""Through scheduler and extender to kubelet and NVIDIA's plugin, machine by machine.

What the plugin hands out lies in what the extender foresaw, the agent publishes what the kubelet
shows, and required constraints hold.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import PodRequest, parse
from scheduler_extender.wire import Pod
from tests.e2e.catalogue import EVERY_MACHINE, ONE, versions
from tests.e2e.cluster import RealCluster
from tests.e2e.kubelet import Kubelet
from tests.e2e.nvidiastack import PluginSettings
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNode, RealNodes, joined
from topology import codec
from topology.core.placement import satisfies
from topology.machines import MACHINES

pytestmark = pytest.mark.e2e
NODES = {
    version.replace(".", "-"): RealNode(ONE, PluginSettings(version)) for version in versions()
}
LATER = tuple(name.replace(".", "-") for name in MACHINES)
STEPS = 12
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
NVLINK = {"link": "nvlink"}
CONSTRAINTS: tuple[dict[str, str], ...] = (
    {},
    NVLINK,
    {"link": "phb"},
    {"same-numa": "true"},
    {**NVLINK, "policy": "preferred"},
)


@pytest.fixture(autouse=True)
def _tidy(real_nodes: RealNodes) -> Iterator[None]:
    """No pod of one test is there in the next."""
    yield
    cluster = real_nodes.cluster
    for pod in cluster.api.get(PODS).json()["items"]:
        cluster.remove_pod(pod["metadata"]["name"])
    for node, kubelet in real_nodes.kubelets.items():
        cluster.until(
            lambda kubelet=kubelet: not held(kubelet),  # type: ignore[misc]
            f"nobody holds a GPU of {node}",
        )


@pytest.mark.parametrize("node", NODES)
def test_the_record_is_the_machine(real_nodes: RealNodes, node: str) -> None:
    record = codec.decode(real_nodes.cluster.record(node))
    played = real_nodes.kubelets[node].topology
    assert record.topology.gpus == played.gpus
    assert record.topology.allocator.policy == "best-effort"
    assert record.topology.allocator.plugin_version == NODES[node].plugin.version
    assert {(k.a, k.b): (k.pcie, k.nvlinks, k.via) for k in record.topology.links} == {
        (k.a, k.b): (k.pcie, k.nvlinks, k.via) for k in played.links
    }


@pytest.mark.parametrize("node", NODES)
def test_what_is_handed_out_was_predicted(real_nodes: RealNodes, node: str) -> None:
    outcome = go_through(real_nodes.cluster, node, real_nodes.kubelets[node])
    assert outcome["ran"] > STEPS / 3
    assert outcome[f"required {NVLINK}"] > 0


@pytest.mark.skipif(not EVERY_MACHINE, reason="by hand, with GPU_TOPOLOGY_EVERY_MACHINE=1")
@pytest.mark.parametrize("name", MACHINES if EVERY_MACHINE else [ONE])
def test_every_machine(
    real_nodes: RealNodes, node_binaries: Path, tmp_path: Path, name: str
) -> None:
    node = name.replace(".", "-")
    with joined(real_nodes.cluster, tmp_path, node_binaries, node, RealNode(name)) as found:
        outcome = go_through(real_nodes.cluster, node, found.kubelet)
    assert outcome["ran"] > 0


def test_a_replica_set_runs(real_nodes: RealNodes) -> None:
    """kube-controller-manager makes the pods; each has a pair that is joined by NVLink."""
    cluster = real_nodes.cluster
    cluster.control_plane.start_controllers()
    pod = gpu_pod("pairs", [2], annotations=NVLINK)
    spec = {k: v for k, v in pod["spec"].items() if k != "restartPolicy"}
    labels = {"app": "pairs"}
    replicas = 2 * len(NODES)
    cluster.create(
        REPLICA_SETS,
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "pairs"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]},
                    "spec": spec,
                },
            },
        },
    )

    def running() -> bool:
        return pods(cluster, lambda p: p["status"]["phase"] == "Running") == replicas

    cluster.until(running, f"{replicas} pods run")
    seen: set[str] = set()
    for kubelet in real_nodes.kubelets.values():
        for ids in held(kubelet).values():
            got = kubelet.positions(ids)
            link = next(k for k in kubelet.topology.links if (k.a, k.b) == got)
            assert link.nvlinks, got
            assert not seen.intersection(ids)
            seen.update(ids)
    assert len(seen) == 2 * replicas
    assert pods(cluster, lambda p: p["status"]["phase"] == "Failed") == 0
    cluster.patch(f"{REPLICA_SETS}/pairs", {"spec": {"replicas": 0}})
    cluster.until(lambda: pods(cluster) == 0, "the controller has removed all pods")


def pods(cluster: RealCluster, wanted: Callable[[Any], bool] = bool) -> int:
    """How many pods of the default namespace there are of a kind."""
    return sum(wanted(pod) for pod in cluster.api.get(PODS).json()["items"])


def held(kubelet: Kubelet) -> dict[str, tuple[str, ...]]:
    """Device ids by pod, as the kubelet shows them."""
    shown = kubelet.pod_resources.holdings()
    return {
        pod: ids
        for (_, pod), containers in shown.items()
        if (ids := tuple(i for found in containers.values() for i in found))
    }


def published(cluster: RealCluster, node: str) -> dict[str, tuple[str, ...]]:
    """Device ids by pod, as the agent publishes them."""
    report = codec.decode(cluster.record(node)).report
    found: dict[str, tuple[str, ...]] = {}
    for a in report.allocations if report else ():
        found[a.pod] = (*found.get(a.pod, ()), *a.device_ids)
    return found


def go_through(cluster: RealCluster, node: str, kubelet: Kubelet) -> Counter[str]:
    """Random pods for one node, one after the other; each is checked when it runs.

    The first is an NVLinked pair on an idle node. Returns what became of them, by kind.
    """
    random = Random(23)
    alive: list[str] = []
    outcome: Counter[str] = Counter()
    most = max(2, len(kubelet.topology.gpus) // 2)
    for step in range(STEPS):
        while alive and random.random() < 0.4:
            remove(cluster, node, alive.pop(random.randrange(len(alive))))
        name, wish = f"{node}-{step}", random.choice(CONSTRAINTS) if step else NVLINK
        count = random.choice([1, 1, 2, 2, 3, most]) if step else 2
        pod = gpu_pod(name, [count], annotations=wish)
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        cluster.until_heard(node)
        cluster.create(PODS, pod)
        cluster.until(lambda name=name: settled(cluster, name), f"{name} is settled")  # type: ignore[misc]
        found = cluster.pod(name)
        kubelet.heal_plugin()
        if found["status"]["phase"] != "Running":
            outcome["refused" if found["status"]["phase"] == "Failed" else "waits"] += 1
            cluster.remove_pod(name)
            continue
        alive.append(name)
        outcome["ran"] += 1
        check(cluster, node, kubelet, found)
        if wish and "policy" not in wish:
            outcome[f"required {wish}"] += 1
    print(f"{node}: {dict(outcome)}")
    metrics = cluster.metrics.get("/metrics").text
    assert 'gpu_topology_mispredictions_total{kind="outside-outcomes"} 0.0' in metrics
    assert 'gpu_topology_mispredictions_total{kind="promise-broken"} 0.0' in metrics
    for name in alive:
        cluster.remove_pod(name)
    return outcome


def remove(cluster: RealCluster, node: str, name: str) -> None:
    """Delete a pod, and wait until the record has forgotten it.

    Until then, and until the extender has heard of that, its GPUs are in no set that a placement
    foresees, and may be handed out already.
    """
    cluster.remove_pod(name)
    cluster.until(lambda: name not in published(cluster, node), f"{name} holds nothing")


def settled(cluster: RealCluster, name: str) -> bool:
    """Whether a pod runs, was refused by its kubelet, or fits nowhere."""
    status = cluster.pod(name)["status"]
    if status["phase"] != "Pending":
        return True
    return any(
        found["type"] == "PodScheduled" and found.get("reason") == "Unschedulable"
        for found in status.get("conditions", [])
    )


def check(cluster: RealCluster, node: str, kubelet: Kubelet, pod: dict[str, Any]) -> None:
    """A running pod has what was foreseen and what it requires, and the record says so."""
    name = pod["metadata"]["name"]
    ids = held(kubelet)[name]
    got = kubelet.positions(ids)
    cluster.until(
        lambda: sorted(published(cluster, node).get(name, ())) == sorted(ids),
        f"the record of {node} shows {name} with {ids}",
    )
    placement = json.loads(pod["metadata"]["annotations"]["gpu-topology.io/placement"])
    # A wish that this hardware can never grant comes without sets, though the pod runs.
    if "setsOmitted" not in placement and placement["verdict"] != "never":
        assert list(got) in placement["sets"], (name, got, placement)
    asks = parse(msgspec.convert(pod, Pod))
    assert isinstance(asks, PodRequest)
    request = asks.request
    if request.required:
        mask = sum(1 << p for p in got)
        assert satisfies(kubelet.topology.shape, request.constraints, mask), (name, got, placement)
