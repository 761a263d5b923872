"""Pods for GPUs that a DRA driver publishes, on kube-apiserver and kube-scheduler 1.37.

The driver is played: ResourceSlices with the attributes of NVIDIA's, in a chosen order. What is
allocated, kube-scheduler's own allocator decides.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
PAIRS_NEXT, MIXED = (2, 3, 0, 1), (3, 1, 0, 2)


@pytest.fixture(scope="module")
def real(dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Each test has nodes and pods of its own."""
    with gang_cluster(tmp_path_factory.mktemp("dra"), dra_binaries, None) as (found, _):
        found.create(f"{API}/deviceclasses", device_class())
        yield found


def only(*nodes: str) -> dict[str, Any]:
    """The affinity to some nodes."""
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [*nodes]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def ask(real: RealCluster, name: str, gpus: int, *nodes: str, linked: bool = True) -> None:
    real.add_pod(name, gpus, NVLINK if linked else {}, affinity=only(*nodes))


def test_a_pair_goes_where_the_next_two_devices_are_one(real: RealCluster) -> None:
    add_node(real, "ordered", PAIRS_NEXT)
    add_node(real, "scattered", MIXED)
    for name, gpus in ("pair-0", [2, 3]), ("pair-1", [0, 1]):
        ask(real, name, 2, "ordered", "scattered")
        assert real.node_of(name) == "ordered"
        assert claimed(real, name) == gpus
        written = placement(real, name)
        assert (written["verdict"], written["sets"]) == ("guaranteed", [gpus])
        answer = asked(main, "why", name, "--kubeconfig", real.control_plane.kubeconfig())
        assert answer.returncode == 0, answer.stderr
        assert f"GPUs {gpus[0]},{gpus[1]}" in answer.stdout


def test_a_pair_waits_until_the_next_two_are_one(real: RealCluster) -> None:
    """The pod is woken when a claim goes: nothing else shows that GPUs are free."""
    add_node(real, "full", PAIRS_NEXT)
    add_node(real, "mixed", MIXED)
    for name in "first", "second":
        ask(real, name, 2, "full")
        assert real.node_of(name) == "full"
    ask(real, "waits", 2, "full", "mixed")
    message = real.unschedulable("waits")
    assert "1 the next free GPUs do not meet link=nvlink" in message
    assert "1 cannot allocate all claims" in message, "kube-scheduler says so of the full node"
    done = asked(main, "why", "waits", "--kubeconfig", real.control_plane.kubeconfig())
    assert "1 GPU in place of 2" in done.stdout
    ask(real, "plain", 2, "full", "mixed", linked=False)
    assert real.node_of("plain") == "mixed"
    assert claimed(real, "plain") == [1, 3], "a plain pod takes what comes"
    gone = next(name for name in ("first", "second") if claimed(real, name) == [2, 3])
    free(real, gone)
    assert real.node_of("waits") == "full"
    assert placement(real, "waits")["sets"] == [[2, 3]]


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
        pod["spec"]["affinity"] = only("random")
        real.create(PODS, pod)
    assert [real.node_of(name) for name in ("one", "two")] == ["random", "random"]
    assert sorted(claimed(real, name) for name in ("one", "two")) == [[0, 1], [2, 3]]
    for name in ("one", "two"):
        written = placement(real, name)
        assert (written["verdict"], written["sets"]) == ("guaranteed", [claimed(real, name)])


def vetoes(real: RealCluster) -> float:
    metrics = real.metrics.get("/metrics").text
    return float(metrics.partition("\ngpu_topology_dra_vetoes_total ")[2].partition("\n")[0])


def add_claimant(
    real: RealCluster,
    name: str,
    *nodes: str,
    cel: str = "",
    each: int = 2,
    device_class: str = DRIVER,
) -> None:
    """A pod for one of some nodes whose annotation wants a pair, and whose claims ask for any two
    GPUs for which ``cel`` holds. ``each`` is how many one claim asks for."""
    selectors = [{"cel": {"expression": cel}}] if cel else []
    request = {"deviceClassName": device_class, "count": each, "selectors": selectors}
    devices = {"requests": [{"name": "any", "exactly": request}]}
    pod = yaml.safe_load(POD)
    pod["metadata"]["name"] = name
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 0
    pod["spec"]["affinity"] = only(*nodes)
    pod["spec"]["resourceClaims"] = []
    for claim in [name] if each == 2 else [f"{name}-0", f"{name}-1"]:
        body = {"kind": "ResourceClaim", "metadata": {"name": claim}, "spec": {"devices": devices}}
        real.create(CLAIMS, body)
        pod["spec"]["resourceClaims"].append({"name": claim, "resourceClaimName": claim})
    pod["spec"]["schedulingGates"] = [{"name": "example.com/heard"}]
    real.create(PODS, pod)
    real.until(lambda: claims_are_known(real, name), "the extender has heard of the claims")
    real.patch(f"{PODS}/{name}", {"spec": {"schedulingGates": None}})


def claims_are_known(real: RealCluster, pod: str) -> bool:
    answer = real.admin.get(f"/v1/explain/default/{pod}")
    return answer.is_success and "a claim does not exist yet" not in answer.text


# Nobody says which devices come.
UNREADABLE_SELECTOR = f'device.attributes["{DRIVER}"].uuid.substring(0, 3) == "GPU"'


def test_a_claim_that_would_get_the_wrong_devices_waits(real: RealCluster) -> None:
    add_node(real, "wrong", (0, 2, 1, 3))
    before = vetoes(real)
    add_claimant(real, "any", "wrong")
    assert "the next free GPUs do not meet link=nvlink" in real.unschedulable("any")
    assert vetoes(real) == before


def test_a_claim_with_the_wrong_devices_is_freed(real: RealCluster) -> None:
    """Filter lets the pod pass, since its devices are unknown, and bind rejects it.

    kube-scheduler frees the claim if another node is tried, which has not its devices.
    """
    for name in "here", "there":
        add_node(real, name, (0, 2, 1, 3))
    before = vetoes(real)
    add_claimant(real, "unsaid", "here", "there", cel=UNREADABLE_SELECTOR)
    real.until(lambda: vetoes(real) > before, "the bind is refused")
    real.until(lambda: vetoes(real) > before + 1, "the claim was freed, and had such devices again")
    assert "nodeName" not in real.pod("unsaid")["spec"]
    free(real, "unsaid")


def test_a_claim_on_a_node_whose_record_is_unusable_is_freed(real: RealCluster) -> None:
    """bind would never say yes there, and the claim would keep its GPUs though another node is
    free."""
    add_node(real, "spoilt", (0, 2, 1, 3))
    before = vetoes(real)
    add_claimant(real, "kept", "spoilt", "sound", cel=UNREADABLE_SELECTOR)
    real.until(lambda: vetoes(real) > before, "the bind is refused, and the claim has two GPUs")
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": "GPU-of-nobody"}}
    other = {"name": "stranger", "attributes": attributes}
    add_slice(real, "spoilt", DRIVER, other)
    real.until_told("spoilt", lambda found: found["problem"])
    real.patch(f"{PODS}/kept", {"metadata": {"annotations": {"example.com/look": "again"}}})
    real.until(lambda: "unusable" in real.unschedulable("kept"), "its record is unusable")
    add_node(real, "sound", (3, 2, 0, 1))
    assert real.node_of("kept") == "sound"
    assert claimed(real, "kept") == [2, 3]


def test_a_pod_whose_claims_get_no_gpus_waits(real: RealCluster) -> None:
    add_node(real, "nics", PAIRS_NEXT)
    driver = "nics.example.com"
    add_slice(real, "nics", driver, {"name": "nic-0"}, {"name": "nic-1"})
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    of_nics = {
        "kind": "DeviceClass",
        "metadata": {"name": "nic"},
        "spec": {"selectors": [selector]},
    }
    real.create(f"{API}/deviceclasses", of_nics)
    add_claimant(real, "without", "nics", device_class="nic")
    assert "the pod's claims get no GPUs on this node" in real.unschedulable("without")


def add_slice(real: RealCluster, node: str, driver: str, *devices: dict[str, Any]) -> None:
    """A pool of some devices more, on a node."""
    pool = {"name": f"{node}-more", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [*devices]}
    body = {"kind": "ResourceSlice", "metadata": {"name": f"{node}-more"}, "spec": spec}
    real.create(f"{API}/resourceslices", body)


def test_two_claims_of_one_gpu_each_are_predicted_together(real: RealCluster) -> None:
    add_node(real, "apart", (0, 2, 1, 3))
    add_node(real, "linked", (3, 2, 0, 1))
    before = vetoes(real)
    add_claimant(real, "parted", "apart", each=1)
    assert "the next free GPUs do not meet link=nvlink" in real.unschedulable("parted")
    add_claimant(real, "joined", "linked", each=1)
    assert real.node_of("joined") == "linked"
    assert claimed(real, "joined") == [2, 3]
    written = placement(real, "joined")
    assert (written["verdict"], written["sets"]) == ("guaranteed", [[2, 3]])
    assert vetoes(real) == before


def test_two_claims_of_one_gpu_each_are_proven_together(real: RealCluster) -> None:
    """Only bind knows the devices, since filter cannot predict them."""
    add_node(real, "unproven", (0, 2, 1, 3))
    add_node(real, "proven", (3, 2, 0, 1))
    before = vetoes(real)
    add_claimant(real, "one-by-one", "unproven", cel=UNREADABLE_SELECTOR, each=1)
    real.until(lambda: vetoes(real) > before, "the bind is refused")
    assert "nodeName" not in real.pod("one-by-one")["spec"]
    add_claimant(real, "together", "proven", cel=UNREADABLE_SELECTOR, each=1)
    assert real.node_of("together") == "proven"
    assert placement(real, "together")["sets"] == [[2, 3]]
    free(real, "one-by-one")
