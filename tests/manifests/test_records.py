"""Which GPUTopology objects the schema takes: all that we write, and nothing that is bad."""

from typing import Any

import pytest

from tests.crd import faults
from tests.manifests.building import (
    Object,
    example,
)
from topology import codec

MIG = {"uuid": "MIG-5f6d8a52", "profile": "1g.10gb+me", "memoryBytes": 10468982784}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("spec.devices.0.migInstances", [], id="mig-without-instances"),
        pytest.param("spec.devices.0.migInstances", [MIG], id="mig-instance"),
        pytest.param("spec.devices.0.migInstances", [{"uuid": "MIG-5f"}], id="mig-unknown"),
        pytest.param("spec.allocator.topologyManagerPolicy", "unknown", id="topology-manager"),
        pytest.param("status.health.0.since", "2026-01-31T12:00:00Z", id="since"),
        pytest.param("status.health.0.energyMillijoules", 2**53, id="energy"),
        pytest.param("status.health.0.linksDown", [0, 17], id="links-down"),
    ],
)
def test_what_an_agent_adds_is_accepted(path: str, value: Any) -> None:
    assert faults(changed(path, value)) == []


GOOD = {
    "no-resources-is-dra": ("spec.resources", []),
    "two-resources": ("spec.resources", [{"name": "a.b/c"}, {"name": "a.b/mig-1g.10gb"}]),
    "pcie-unknown": ("spec.links.0.pcie", None),
    "through-a-switch": ("spec.links.0.via", "switch"),
    "allocatable-absent": ("status.allocatable", None),
    "pod-uid-unknown": ("status.allocations.0.podUID", ""),
    "shared-device": ("status.allocations.0.deviceIds", ["GPU-5f::3"]),
    "mig-device": ("status.allocations.0.deviceIds", ["MIG-5f"]),
    "numa-unknown": ("spec.devices.0.numaNode", None),
    "no-fabric": ("spec.fabric", None),
    "no-status": ("status", None),
    "wide-pci-domain": ("spec.devices.0.pciBusId", "00010000:07:00.0"),
}

BAD = {
    "no-spec": ("spec", None),
    "resource-nameless": ("spec.resources.0.name", None),
    "resource-without-domain": ("spec.resources.0.name", "gpu"),
    "resource-twice": ("spec.resources", [{"name": "a.b/c"}, {"name": "a.b/c"}]),
    "strategy-unknown": ("spec.resources.0.strategy", "vgpu"),
    "no-replicas": ("spec.resources.0.replicas", 0),
    "policy-unknown": ("spec.allocator.policy", "random"),
    "topology-manager-policy-unknown": ("spec.allocator.topologyManagerPolicy", "strict"),
    "topology-manager-scope-unknown": ("spec.allocator.topologyManagerScope", "node"),
    "device-without-uuid": ("spec.devices.0.uuid", None),
    "device-uuid-is-a-replica": ("spec.devices.0.uuid", "GPU-5f::1"),
    "device-twice": ("spec.devices.1.index", 0),
    "device-index-negative": ("spec.devices.0.index", -1),
    "device-index-text": ("spec.devices.0.index", "0"),
    "memory-absent": ("spec.devices.0.memoryBytes", None),
    "memory-negative": ("spec.devices.0.memoryBytes", -1),
    "memory-as-quantity": ("spec.devices.0.memoryBytes", "40Gi"),
    "bus-id-short": ("spec.devices.0.pciBusId", "07:00.0"),
    "numa-minus-one": ("spec.devices.0.numaNode", -1),
    "mig-instance-nameless": ("spec.devices.0.migInstances", [{"profile": "1g.10gb"}]),
    "mig-instance-twice": ("spec.devices.0.migInstances", [{"uuid": "M"}, {"uuid": "M"}]),
    "mig-mode-unknown": ("spec.devices.0.migMode", "Enabled"),
    "too-many-devices": (
        "spec.devices",
        [{"index": i, "uuid": f"GPU-{i}", "product": "P", "memoryBytes": 1} for i in range(65)],
    ),
    "link-without-an-end": ("spec.links.0.b", None),
    "pcie-class-unknown": ("spec.links.0.pcie", "NV12"),
    "pcie-class-lower-case": ("spec.links.0.pcie", "sys"),
    "via-unknown": ("spec.links.0.via", "bridge"),
    "nvlinks-negative": ("spec.links.0.nvlinks", -1),
    "nvlinks-too-many": ("spec.links.0.nvlinks", 65),
    "bandwidth-negative": ("spec.links.0.nvlinkGBps", -25),
    "too-many-links": (
        "spec.links",
        [{"a": a, "b": b} for a in range(65) for b in range(a + 1, 65)][:2017],
    ),
    "nic-nameless": ("spec.nics.0.name", ""),
    "nic-distance-nvlink": ("spec.nics.0.distances.0.pcie", "NVLINK"),
    "too-many-nics": ("spec.nics", [{"name": f"mlx5_{i}"} for i in range(65)]),
    "fabric-without-clique": ("spec.fabric.cliqueId", None),
    "sequence-negative": ("status.sequence", -1),
    "sequence-text": ("status.sequence", "41"),
    "allocatable-twice": ("status.allocatable", ["GPU-5f", "GPU-5f"]),
    "allocatable-empty-id": ("status.allocatable", [""]),
    "allocation-of-nobody": ("status.allocations.0.pod", ""),
    "allocation-without-container": ("status.allocations.0.container", None),
    "allocation-without-devices": ("status.allocations.0.deviceIds", []),
    "allocation-device-twice": ("status.allocations.0.deviceIds", ["GPU-5f", "GPU-5f"]),
    "allocation-twice": ("status.allocations", example()["status"]["allocations"] * 2),
    "health-without-verdict": ("status.health.0.healthy", None),
    "health-as-text": ("status.health.0.healthy", "no"),
    "health-twice": ("status.health", [{"uuid": "G", "healthy": h} for h in (True, False)]),
    "link-down-twice": ("status.health.0.linksDown", [3, 3]),
    "link-down-negative": ("status.health.0.linksDown", [-1]),
    "energy-negative": ("status.health.0.energyMillijoules", -1),
    "condition-without-reason": ("status.conditions", [{"type": "Ready", "status": "True"}]),
    "summary-links-as-number": ("status.summary", {"gpus": 8, "free": 8, "links": 12}),
    "unknown-field-that-would-be-pruned": ("status.unhealthy", ["GPU-77"]),
}


def changed(path: str, value: Any) -> Object:
    """The example with one field set, or removed where ``value`` is None."""
    record = example()
    *way, last = path.split(".")
    at: Any = record
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return record


@pytest.mark.parametrize(("path", "value"), [pytest.param(*GOOD[k], id=k) for k in GOOD])
def test_a_good_record_is_accepted(path: str, value: Any) -> None:
    assert faults(changed(path, value)) == []
    codec.decode(changed(path, value), strict=True)


@pytest.mark.parametrize(("path", "value"), [pytest.param(*BAD[k], id=k) for k in BAD])
def test_a_bad_record_is_refused(path: str, value: Any) -> None:
    found = faults(changed(path, value))
    assert found
    for where in found:  # it is that field that is refused, and nothing else
        assert f".{path}".startswith(where) or where.startswith(f".{path}")
