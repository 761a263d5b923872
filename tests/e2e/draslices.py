"""Nodes whose GPUs a DRA driver publishes, in a chosen order; the driver and the kubelet are
played. And which GPUs pods have through claims there."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.e2e.cluster import RealCluster
from tests.e2e.drakubelet import API, DRIVER, device
from topology.core.report import Report
from topology.machines import machine

CLAIMS = f"{API}/namespaces/default/resourceclaims"


def add_node(real: RealCluster, name: str, order: Sequence[int]) -> None:
    """A node of two linked pairs without a device plugin: GPUs 0 and 1 are joined by NVLink, and 2
    and 3; ``order`` is the one published."""
    topology = machine("a100-pcie-4-bridged").topology(name)
    real.add_node(name, 0)
    real.add_record(replace(topology, resources=()), Report("boot", 1))
    devices = [device(topology.gpus[index], "pci0000:00") for index in order]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    body = {"kind": "ResourceSlice", "metadata": {"name": f"{name}-{DRIVER}"}, "spec": spec}
    real.create(f"{API}/resourceslices", body)
    real.until_told(name, lambda found: "free" in found)


def claims_of(real: RealCluster, pod: str) -> list[dict[str, Any]]:
    """The claims that are reserved for a pod."""
    return [
        claim
        for claim in real.api.get(CLAIMS).json()["items"]
        if any(each["name"] == pod for each in claim.get("status", {}).get("reservedFor") or ())
    ]


def claimed(real: RealCluster, pod: str) -> list[int]:
    """The GPUs that the pod's claims have."""
    return sorted(
        int(each["device"].removeprefix("gpu-"))
        for claim in claims_of(real, pod)
        for each in claim["status"]["allocation"]["devices"]["results"]
    )


def free(real: RealCluster, pod: str) -> None:
    """End a pod, and its claims, as kube-controller-manager does once the kubelet has let go."""
    claims = claims_of(real, pod)
    real.remove_pod(pod)
    for claim in claims:
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        real.patch(path, {"metadata": {"finalizers": None}})
        real.api.delete(path)


def placement(real: RealCluster, pod: str) -> dict[str, Any]:
    """The placement annotation of a pod."""
    found = real.pod(pod)["metadata"]["annotations"]["gpu-topology.io/placement"]
    return json.loads(found)  # type: ignore[no-any-return]
