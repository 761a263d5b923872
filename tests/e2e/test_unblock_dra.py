"""Evictions for a pod with claims of its own, on kube-apiserver, kube-scheduler and
kube-controller-manager 1.37. The driver and the kubelet are played, as in ``test_dra.py``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.drakubelet import API, DRIVER, device_class
from tests.e2e.draslices import CLAIMS, add_node, claimed, placement
from tests.e2e.gangcluster import gang_cluster
from tests.e2e.test_dra import POD
from tests.e2e.unblockcommand import unblock, until_reserved

pytestmark = pytest.mark.e2e
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture(scope="module")
def real(dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A node of the pairs 0-1 and 2-3."""
    with gang_cluster(tmp_path_factory.mktemp("dra"), dra_binaries, None) as (found, _):
        found.control_plane.start_controllers(["resourceclaim-controller"])
        found.create(f"{API}/deviceclasses", device_class())
        found.add_priority_classes(low=1, middle=500, high=1000)
        add_node(found, "pairs", (0, 2, 1, 3))
        yield found


def add_sharers(real: RealCluster, *names: str) -> None:
    """Pods that require nothing, and share a claim for one GPU."""
    request = {"name": "any", "exactly": {"deviceClassName": DRIVER}}
    body = {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}}
    real.create(CLAIMS, {"kind": "ResourceClaim", **body})
    for name in names:
        claims = [{"name": "gpu", "resourceClaimName": "shared"}]
        main = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "0"}}}
        spec = {"containers": [main], "resourceClaims": claims, "priorityClassName": "low"}
        real.create(PODS, {"kind": "Pod", "metadata": {"name": name}, "spec": spec})
        assert real.node_of(name) == "pairs"


def add_waiting(real: RealCluster, folder: Path) -> None:
    """A pod whose claim names the pairs, as ``gpu-topology claim`` writes it."""
    file = folder / "pod.yaml"
    file.write_text(POD)
    done = asked(main, "claim", file, "--kubeconfig", real.control_plane.kubeconfig())
    assert done.returncode == 0, done.stderr
    template, pod = yaml.safe_load_all(done.stdout)
    real.create(TEMPLATES, template)
    pod["metadata"]["name"] = "waits"
    pod["spec"]["priorityClassName"] = "middle"
    real.create(PODS, pod)


def waiting(real: RealCluster) -> dict[str, float]:
    """The pods that the extender counts as waiting, by reason."""
    lines = real.metrics.get("/metrics").text.splitlines()
    found = (line.split() for line in lines if line.startswith("gpu_topology_waiting_pods{"))
    return {name.split('"')[1]: float(n) for name, n in found if float(n)}


def plan(real: RealCluster) -> dict[str, Any] | None:
    return json.loads(unblock(real, "waits", "--output", "json")[1])["plan"]  # type: ignore[no-any-return]


def test_a_shared_claim_is_freed_and_the_pod_runs(real: RealCluster, tmp_path: Path) -> None:
    add_sharers(real, "one", "two")
    real.add_pod("number", 1, priorityClassName="high")
    assert real.node_of("number") == "pairs"
    assert [claimed(real, name) for name in ("one", "number")] == [[0], [2]]
    add_waiting(real, tmp_path)
    assert "cannot allocate all claims" in real.unschedulable("waits")
    real.until(lambda: waiting(real) == {"claims": 1.0}, "it is counted")

    def answer() -> list[str]:
        found = [e for e in real.api.get(EVENTS).json()["items"] if "message" in e]
        ours = (e for e in found if e["reason"] == "GPUPlacementWaits")
        return [e["message"] for e in ours if e["involvedObject"]["name"] == "waits"]

    real.until(answer, "it is told why it waits")
    assert "no free devices of the node match the pod's claims (1 node)" in answer()[0]
    real.until(lambda: plan(real), "there is a plan")
    found = plan(real)
    assert found is not None
    assert sorted(step["pod"] for step in found["steps"]) == ["one", "two"], (
        "not number: it is high"
    )

    kubeconfig = str(real.control_plane.kubeconfig("admin"))
    code, _, errors = unblock(real, "waits", "--evict", "--kubeconfig", kubeconfig)
    assert code == 0, errors
    for name in ("one", "two"):
        assert real.pod(name)["metadata"]["deletionTimestamp"]
    until_reserved(real, "pairs")
    # Two others come first: the place is not theirs.
    real.add_pod("thief", 1)
    assert "reserved for another pod until" in real.unschedulable("thief")
    real.remove_pod("one")  # as its kubelet does
    assert "nodeName" not in real.pod("waits")["spec"]
    real.remove_pod("two")
    assert real.node_of("waits") == "pairs"
    assert claimed(real, "waits") == [0, 1]
    written = placement(real, "waits")
    assert (written["verdict"], written["sets"]) == ("guaranteed", [[0, 1]])
    assert real.node_of("thief") == "pairs"
    real.until(lambda: waiting(real) == {}, "nobody waits")
