"""Pods for GPUs that a DRA driver publishes, on kube-apiserver and kube-scheduler 1.37.

The driver is played: ResourceSlices with the attributes of NVIDIA's, in a chosen order. What is
allocated, kube-scheduler's own allocator decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.drakubelet import API, DRIVER, device_class
from tests.e2e.draslices import CLAIMS, add_node, claimed, free, placement
from tests.e2e.gangcluster import gang_cluster

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
POD = """
apiVersion: v1
kind: Pod
metadata: {name: pod, annotations: {gpu-topology.io/link: nvlink}}
spec:
  containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 2}}}]
"""
# GPUs 0 and 1 are joined by NVLink, and 2 and 3.
ORDERS = {"ordered": (2, 3, 0, 1), "mixed": (3, 1, 0, 2)}


@pytest.fixture(scope="module")
def real(gang_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with gang_cluster(tmp_path_factory.mktemp("dra"), gang_binaries, None) as (found, _):
        found.create(f"{API}/deviceclasses", device_class())
        for name, order in ORDERS.items():
            add_node(found, name, order)
        yield found


@pytest.mark.parametrize(("name", "gpus"), [("pair-0", [2, 3]), ("pair-1", [0, 1])])
def test_a_pair_goes_where_the_next_two_devices_are_one(
    real: RealCluster, name: str, gpus: list[int]
) -> None:
    real.add_pod(name, 2, NVLINK)
    assert real.node_of(name) == "ordered"
    assert claimed(real, name) == gpus
    written = placement(real, name)
    assert (written["verdict"], written["sets"]) == ("guaranteed", [gpus])
    told = asked(main, "why", name, "--kubeconfig", real.control_plane.kubeconfig())
    assert told.returncode == 0, told.stderr
    assert f"GPUs {gpus[0]},{gpus[1]}" in told.stdout


def test_a_pair_waits_where_the_next_two_are_none(real: RealCluster) -> None:
    real.add_pod("pair-2", 2, NVLINK)
    message = real.unschedulable("pair-2")
    assert "1 the next free GPUs are without link=nvlink" in message
    assert "1 cannot allocate all claims" in message, "kube-scheduler says so of the full node"
    done = asked(main, "why", "pair-2", "--kubeconfig", real.control_plane.kubeconfig())
    assert "1 GPU in place of 2" in done.stdout


def test_a_plain_pod_takes_what_comes(real: RealCluster) -> None:
    real.add_pod("plain", 2)
    assert real.node_of("plain") == "mixed"
    assert claimed(real, "plain") == [1, 3]


def test_a_pair_comes_once_the_devices_before_it_are_free(real: RealCluster) -> None:
    """The waiting pair is woken when the claim goes; nobody else says that GPUs are free."""
    free(real, "pair-0")
    assert real.node_of("pair-2") == "ordered"
    assert placement(real, "pair-2")["sets"] == [[2, 3]]


def test_a_compiled_claim_names_the_pairs_whatever_comes_next(
    real: RealCluster, tmp_path: Path
) -> None:
    add_node(real, "random", (0, 2, 1, 3))
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    done = asked(main, "claim", file, "--kubeconfig", real.control_plane.kubeconfig())
    assert (done.returncode, done.stderr) == (0, "")
    template, pod = yaml.safe_load_all(done.stdout)
    real.create(f"{API}/namespaces/default/resourceclaimtemplates", template)
    for name in ("one", "two"):  # as the controller of claims does with the template
        claim = {"kind": "ResourceClaim", "metadata": {"name": name}, **template["spec"]}
        real.create(CLAIMS, claim)
        pod["metadata"]["name"] = name
        pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
        real.create(PODS, pod)
    assert [real.node_of(name) for name in ("one", "two")] == ["random", "random"]
    assert sorted(claimed(real, name) for name in ("one", "two")) == [[0, 1], [2, 3]]
    for name in ("one", "two"):
        written = placement(real, name)
        assert (written["verdict"], written["sets"]) == ("guaranteed", [claimed(real, name)])


def vetoes(real: RealCluster) -> float:
    metrics = real.admin.get("/metrics").text
    return float(metrics.partition("\ngpu_topology_dra_vetoes_total ")[2].partition("\n")[0])


def add_claimant(real: RealCluster, name: str, *cel: str, each: int = 2, on: str = "") -> None:
    """A pod whose annotation wants a pair, and whose claims ask for any two GPUs of these.

    ``each`` is how many one claim asks for; ``on`` is the only node that the pod may have.
    """
    selectors = [{"cel": {"expression": text}} for text in cel]
    request = {"deviceClassName": DRIVER, "count": each, "selectors": selectors}
    devices = {"requests": [{"name": "any", "exactly": request}]}
    pod = yaml.safe_load(POD)
    pod["metadata"]["name"] = name
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 0
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on} if on else {}
    pod["spec"]["resourceClaims"] = []
    for claim in [name] if each == 2 else [f"{name}-0", f"{name}-1"]:
        body = {"kind": "ResourceClaim", "metadata": {"name": claim}, "spec": {"devices": devices}}
        real.create(CLAIMS, body)
        pod["spec"]["resourceClaims"].append({"name": claim, "resourceClaimName": claim})
    real.create(PODS, pod)


def test_a_claim_that_would_get_the_wrong_devices_waits(real: RealCluster) -> None:
    add_node(real, "wrong", (0, 2, 1, 3))
    before = vetoes(real)
    add_claimant(real, "any")
    assert "the next free GPUs are without link=nvlink" in real.unschedulable("any")
    assert vetoes(real) == before
    free(real, "any")


def test_a_claim_with_the_wrong_devices_is_freed(real: RealCluster) -> None:
    """Nobody can say which devices come: so filter lets the pod pass, and bind refuses it.

    kube-scheduler frees the claim if another node is tried, which has not its devices.
    """
    add_claimant(real, "unsaid", f'device.attributes["{DRIVER}"].uuid.matches("^GPU")')
    real.until(lambda: vetoes(real), "the bind is refused")
    real.until(lambda: vetoes(real) > 1, "the claim was freed, and had such devices again")
    assert "nodeName" not in real.pod("unsaid")["spec"]
    free(real, "unsaid")


def test_two_claims_of_one_gpu_each_are_foreseen_together(real: RealCluster) -> None:
    add_node(real, "apart", (0, 2, 1, 3))
    add_node(real, "linked", (3, 2, 0, 1))
    before = vetoes(real)
    add_claimant(real, "parted", each=1, on="apart")
    assert "the next free GPUs are without link=nvlink" in real.unschedulable("parted")
    real.remove_pod("parted")
    add_claimant(real, "joined", each=1, on="linked")
    assert real.node_of("joined") == "linked"
    assert claimed(real, "joined") == [2, 3]
    written = placement(real, "joined")
    assert (written["verdict"], written["sets"]) == ("guaranteed", [[2, 3]])
    assert vetoes(real) == before


def test_two_claims_of_one_gpu_each_are_proven_together(real: RealCluster) -> None:
    """As nobody can say which devices come, bind has them both before it."""
    before = vetoes(real)
    unsaid = f'device.attributes["{DRIVER}"].uuid.matches("^GPU")'
    add_claimant(real, "unproven", unsaid, each=1, on="apart")
    real.until(lambda: vetoes(real) > before, "the bind is refused")
    assert "nodeName" not in real.pod("unproven")["spec"]
    add_claimant(real, "proven", unsaid, each=1, on="linked")
    assert real.node_of("proven") == "linked"
    assert placement(real, "proven")["sets"] == [[0, 1]]
