"""The GPUTopology object, there and back, and what is wrong with bad ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from topology.codec import RecordError, decode, encode
from topology.core.devices import MIB, Bytes, DeviceId, Gpu, GpuUuid, MigInstance, NodeName, PodUid
from topology.core.graph import AllocatorFacts, NodeTopology
from topology.core.report import Allocation, Condition, Health, MissingGpu, Report
from topology.machines import MACHINES, machine

CRD = Path(__file__).parents[2] / "manifests" / "base" / "crd.yaml"

REPORT = Report(
    "boot",
    41,
    frozenset({DeviceId("GPU-1")}),
    (
        Allocation(
            PodUid("uid"), "team-a", "train-0", "main", "nvidia.com/gpu", (DeviceId("GPU-1"),)
        ),
    ),
    (Health(GpuUuid("GPU-77"), False, "Xid79"),),
    missing=(
        MissingGpu("GPU 3", counted=True, since="2026-01-01T12:00:00Z"),
        MissingGpu("GPU-77", counted=False),
    ),
)

# The object of the design, in full.
EXAMPLE = """
apiVersion: gpu-topology.io/v1alpha1
kind: GPUTopology
metadata: {name: train-01}
spec:
  resources: [{name: nvidia.com/gpu, strategy: none, replicas: 1}]
  allocator: {policy: best-effort, pluginVersion: 0.20.0, topologyManagerPolicy: none,
              topologyManagerScope: container}
  devices:
  - {index: 0, vendor: nvidia, uuid: GPU-5f, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:07:00.0", numaNode: 0, migMode: disabled}
  - {index: 1, vendor: nvidia, uuid: GPU-77, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:0f:00.0", numaNode: 0, migMode: disabled}
  links:
  - {a: 0, b: 1, pcie: SYS, nvlinks: 12, via: direct, nvlinkGBps: 25}
  nics:
  - {name: mlx5_0, numaNode: 0, distances: [{index: 0, pcie: PIX}, {index: 1, pcie: NODE}]}
  fabric: {clusterUUID: c0ffee, cliqueId: 1}
status:
  bootID: 5b9f
  sequence: 41
  allocatable: [GPU-5f]
  allocations:
  - {podUID: u, namespace: team-a, pod: train-0, container: main, resource: nvidia.com/gpu,
     deviceIds: [GPU-5f]}
  health:
  - {uuid: GPU-77, healthy: false, reason: Xid79}
  conditions: []
"""


def schema() -> dict[str, Any]:
    """The CRD's schema, as much of it as JSON Schema knows."""
    crd = yaml.safe_load(CRD.read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_goes_there_and_back(name: str) -> None:
    topology = machine(name).topology("node")
    wire = encode(topology, REPORT)
    record = decode(wire)
    assert record.topology == topology
    assert record.topology.shape is topology.shape
    assert record.report == REPORT
    jsonschema.validate(wire, schema())


def test_the_example_of_the_design() -> None:
    wire = yaml.safe_load(EXAMPLE)
    jsonschema.validate(wire, schema())
    record = decode(wire, strict=True)
    wire["status"]["summary"] = {"gpus": 2, "free": 0, "links": "NVLink 12"}
    assert encode(record.topology, record.report) == wire


def test_what_an_agent_adds_goes_there_and_back() -> None:
    uuid = GpuUuid("GPU-5f")
    parts = (MigInstance("MIG-1", "1g.10gb", Bytes(10 * MIB)),)
    gpu = Gpu(0, uuid, "X", Bytes(MIB), mig_mode="enabled", mig_instances=parts)
    topology = NodeTopology(
        NodeName("n"), (gpu,), allocator=AllocatorFacts(topology_manager_policy="unknown")
    )
    now = "2026-01-31T12:00:00Z"
    report = Report(
        "b",
        1,
        health=(Health(uuid, True, "NVLink3Down", now, (3,), 2**53),),
        conditions=(Condition("Ready", False, "NvmlUnavailable", "NVML: gone", now),),
    )
    wire = encode(topology, report)
    jsonschema.validate(wire, schema())
    record = decode(wire, strict=True)
    assert (record.topology, record.report) == (topology, report)
    assert report.not_ready == "NVML: gone"
    assert replace(report, conditions=()).not_ready == ""


def _without(path: str) -> Any:
    def change(wire: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        at: Any = wire
        for part in parents:
            at = at[int(part) if part.isdigit() else part]
        del at[int(last) if last.isdigit() else last]

    return change


def _with(path: str, value: object) -> Any:
    def change(wire: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        at: Any = wire
        for part in parents:
            at = at[int(part) if part.isdigit() else part]
        at[last] = value

    return change


BAD = [
    pytest.param(_without("spec"), "spec: field required", True, id="no spec"),
    pytest.param(
        _with("spec.devices.0.index", -1),
        "spec.devices.0.index: input should be greater than or equal to 0, not -1",
        True,
        id="negative index",
    ),
    pytest.param(
        _without("spec.devices.1.uuid"), "spec.devices.1.uuid: field required", True, id="no uuid"
    ),
    pytest.param(
        _with("spec.links.0.pcie", "QPI"),
        "spec.links.0.pcie: input should be 'BOARD', 'PIX'",
        True,
        id="class",
    ),
    pytest.param(_with("spec.links.0.nvlinkGBps", -1), "not -1", True, id="speed"),
    pytest.param(
        _with("spec.links.0.b", 7),
        "spec.links: GPU 7 is not among the devices",
        False,
        id="dangling",
    ),
    pytest.param(_with("spec.links.0.a", 1), "a must be below b", False, id="order"),
    pytest.param(
        _with("spec.devices.1.index", 0), "devices.index: 0 stands 2 times", False, id="index twice"
    ),
    pytest.param(
        _with("spec.devices.1.uuid", "GPU-5f"),
        "devices.uuid: GPU-5f stands 2",
        False,
        id="uuid twice",
    ),
    pytest.param(_with("spec.devices", "none"), "spec.devices: input should be a", True, id="type"),
    pytest.param(
        _with("spec.allocator.policy", "clever"), "spec.allocator.policy:", True, id="policy"
    ),
    pytest.param(_with("status.sequence", "x"), "status.sequence:", True, id="sequence"),
    pytest.param(_with("spec.nics.0.distances.0.index", 9), "nics[mlx5_0]: GPU 9", False, id="nic"),
]


@pytest.mark.parametrize(("change", "words", "in_schema"), BAD)
def test_a_bad_record_is_one_clear_line(change: Any, words: str, in_schema: bool) -> None:
    wire = copy.deepcopy(yaml.safe_load(EXAMPLE))
    change(wire)
    with pytest.raises(RecordError) as caught:
        decode(wire)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    if in_schema:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wire, schema())


def test_unknown_fields_are_a_newer_agent_or_a_typing_error() -> None:
    wire = yaml.safe_load(EXAMPLE)
    wire["spec"]["devises"] = []
    decode(wire)
    with pytest.raises(RecordError, match=r"spec\.devises: extra inputs are not permitted"):
        decode(wire, strict=True)
