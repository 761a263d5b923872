"""Claims for GPUs on a real node of 1.37: scheduled, prepared by a driver, shown, given back.

Each test begins with a node whose GPUs are all free, and may run alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import NEWER_DRA, OLDER_DRA
from tests.e2e.controlplane import SCHEDULER, ControlPlane
from tests.e2e.drakubelet import API, DRIVER, DraKubelet, device_class
from tests.e2e.kubelet import kubelet_users
from tests.e2e.pods import PODS, gpu_pod
from tests.waiting import eventually
from topology.machines import machine

pytestmark = pytest.mark.e2e
NODE = "bridged"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
RULES = f"{API}/devicetaintrules"


@pytest.fixture(scope="module")
def control_plane(
    dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """No extender."""
    plane = ControlPlane(tmp_path_factory.mktemp("dra"), dra_binaries, kubelet_users([NODE]))
    # From 1.37 on kube-apiserver announces no address of this machine's own to others.
    plane.apiserver_flags = ["--endpoint-reconciler-type=none"]
    with plane:
        flags = (f"--kubeconfig={plane.kubeconfig(SCHEDULER)}", "--leader-elect=false")
        plane.start_scheduler_with(*flags, "--secure-port=0")
        plane.start_controllers(["resourceclaim-controller", "device-taint-eviction-controller"])
        yield plane


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[httpx.Client]:
    with control_plane.client() as client:
        create(client, f"{API}/deviceclasses", device_class())
        requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
        spec = {"spec": {"devices": {"requests": requests}}}
        template = {"metadata": {"name": "one"}, "spec": spec}
        create(client, f"{API}/namespaces/default/resourceclaimtemplates", template)
        yield client


@pytest.fixture(scope="module")
def kubelet(
    control_plane: ControlPlane, dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DraKubelet]:
    kind, logs = machine("a100-pcie-4-bridged"), tmp_path_factory.mktemp("logs")
    node = DraKubelet(control_plane, kind.topology(NODE), dra_binaries, logs, machine=kind)
    with node:
        yield node


@pytest.fixture
def node(api: httpx.Client, kubelet: DraKubelet) -> Iterator[DraKubelet]:
    """The node; after the test no pod, no claim and no taint is left."""
    yield kubelet
    for path in (PODS,) if OLDER_DRA else (PODS, RULES):
        api.delete(path).raise_for_status()
    eventually(lambda: not api.get(PODS).json()["items"], "the pods are gone", every=0.1)
    eventually(lambda: not api.get(CLAIMS).json()["items"], "the claims are gone", every=0.1)
    eventually(lambda: not kubelet.prepared(), "the driver gave all back", every=0.1)


def create(api: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = api.post(path, json=body)
    assert answer.is_success, answer.text


def allocated(api: httpx.Client) -> dict[str, list[str]]:
    """The devices of each claim, by the claim's UID."""
    return {
        claim["metadata"]["uid"]: [each["device"] for each in given["devices"]["results"]]
        for claim in api.get(CLAIMS).json()["items"]
        if (given := claim.get("status", {}).get("allocation"))
    }


def runs(api: httpx.Client, name: str) -> None:
    def running() -> bool:
        return bool(api.get(f"{PODS}/{name}").json()["status"]["phase"] == "Running")

    eventually(running, f"{name} runs", every=0.1)


def run_claimant(api: httpx.Client, name: str) -> None:
    """A pod with one GPU by a claim of its own, which runs at the end."""
    pod = gpu_pod(name, [0])
    pod["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "one"}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    create(api, PODS, pod)
    runs(api, name)


def test_a_pod_for_gpus_gets_a_claim_and_gives_it_back(api: httpx.Client, node: DraKubelet) -> None:
    create(api, PODS, gpu_pod("pair", [2]))
    runs(api, "pair")
    [(claim, devices)] = allocated(api).items()
    assert devices == node.published()[:2]
    assert node.prepared() == [claim]
    assert node.pod_resources.claims()["default", "pair"] == {"c0": tuple(devices)}
    assert node.pod_resources.holdings()["default", "pair"] == {"c0": ()}
    api.delete(f"{PODS}/pair").raise_for_status()
    eventually(lambda: not node.prepared(), "the driver gave the claim back", every=0.1)
    eventually(lambda: not allocated(api), "the claim is gone", every=0.1)


def test_a_template_makes_a_claim_for_each_pod(api: httpx.Client, node: DraKubelet) -> None:
    for name in ("first", "second"):
        run_claimant(api, name)
    held = node.pod_resources.claims()
    assert [held["default", name]["c0"] for name in ("first", "second")] == [
        (device,) for device in node.published()[:2]
    ]
    assert node.prepared() == sorted(allocated(api))


@NEWER_DRA
def test_a_tainted_device_loses_its_pod_and_gets_none(api: httpx.Client, node: DraKubelet) -> None:
    """Only a pod with a claim of its own is evicted: not one that asks for a number of GPUs."""
    bad, *healthy = node.published()
    run_claimant(api, "first")
    assert node.pod_resources.claims()["default", "first"] == {"c0": (bad,)}
    selected = {"driver": DRIVER, "pool": NODE, "device": bad}
    taint = {"key": "example.com/sick", "effect": "NoExecute"}
    rule = {"metadata": {"name": "sick"}, "spec": {"deviceSelector": selected, "taint": taint}}
    create(api, RULES, rule)
    eventually(lambda: not allocated(api), "first is evicted, its claim gone", every=0.1)
    create(api, PODS, gpu_pod("second", [2]))
    runs(api, "second")
    assert node.pod_resources.claims()["default", "second"] == {"c0": tuple(healthy[:2])}
