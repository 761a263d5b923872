"""Pods for GPUs that a DRA driver publishes, on kube-apiserver and kube-scheduler 1.37.

The driver is played: ResourceSlices with the attributes of NVIDIA's, in a chosen order. What is
allocated, kube-scheduler's own allocator decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.drakubelet import API, DRIVER, device, device_class
from tests.e2e.gangcluster import gang_cluster
from topology.core.report import Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
CLAIMS = f"{API}/namespaces/default/resourceclaims"
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


def add_node(real: RealCluster, name: str, order: Sequence[int]) -> None:
    """A node of two linked pairs without a device plugin; ``order`` is the one published."""
    topology = machine("a100-pcie-4-bridged").topology(name)
    real.add_node(name, 0)
    real.add_record(replace(topology, resources=()), Report("boot", 1))
    devices = [device(topology.gpus[index], "pci0000:00") for index in order]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    body = {"kind": "ResourceSlice", "metadata": {"name": f"{name}-{DRIVER}"}, "spec": spec}
    real.create(f"{API}/resourceslices", body)


def claimed(real: RealCluster, pod: str) -> list[int]:
    """The GPUs that the pod's claim has."""
    for claim in real.api.get(CLAIMS).json()["items"]:
        reserved = claim.get("status", {}).get("reservedFor") or ()
        if any(each["name"] == pod for each in reserved):
            results = claim["status"]["allocation"]["devices"]["results"]
            return sorted(int(each["device"].removeprefix("gpu-")) for each in results)
    return []


def free(real: RealCluster, pod: str) -> None:
    """End a pod, and its claim, as kube-controller-manager does once the kubelet has let go."""
    claims = [
        claim["metadata"]["name"]
        for claim in real.api.get(CLAIMS).json()["items"]
        if any(each["name"] == pod for each in claim.get("status", {}).get("reservedFor") or ())
    ]
    real.remove_pod(pod)
    for name in claims:
        real.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        real.api.delete(f"{CLAIMS}/{name}")


def placement(real: RealCluster, pod: str) -> dict[str, Any]:
    found = real.pod(pod)["metadata"]["annotations"]["gpu-topology.io/placement"]
    return json.loads(found)  # type: ignore[no-any-return]


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


def add_claimant(real: RealCluster, name: str, *selectors: str) -> None:
    """A pod whose annotation wants a pair, and whose claim asks for any two GPUs of these."""
    cel = [{"cel": {"expression": each}} for each in selectors]
    request = {"deviceClassName": DRIVER, "count": 2, "selectors": cel}
    devices = {"requests": [{"name": "any", "exactly": request}]}
    claim = {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": devices}}
    real.create(CLAIMS, claim)
    pod = yaml.safe_load(POD)
    pod["metadata"]["name"] = name
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 0
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
    real.create(PODS, pod)


def test_a_claim_that_would_get_the_wrong_devices_waits(real: RealCluster) -> None:
    add_node(real, "wrong", (0, 2, 1, 3))
    before = vetoes(real)
    add_claimant(real, "any")
    assert "the next free GPUs are without link=nvlink" in real.unschedulable("any")
    assert vetoes(real) == before


def test_a_claim_with_the_wrong_devices_is_freed(real: RealCluster) -> None:
    """Nobody can say which devices come: so filter lets the pod pass, and bind refuses it.

    kube-scheduler frees the claim if another node is tried, which has not its devices.
    """
    add_claimant(real, "unsaid", f'device.attributes["{DRIVER}"].uuid.matches("^GPU")')
    real.until(lambda: vetoes(real), "the bind is refused")
    real.until(lambda: vetoes(real) > 1, "the claim was freed, and had such devices again")
    assert "nodeName" not in real.pod("unsaid")["spec"]
