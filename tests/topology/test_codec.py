"""The GPUTopology object, there and back, and what is wrong with bad ones."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.crd import faults, validate
from topology.codec import RecordError, decode, encode
from topology.core.devices import MIB, Bytes, DeviceId, Gpu, GpuUuid, MigInstance, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.numa import CpuSet, Holding, MemoryBlock, NumaConfig, NumaNode, cpu_list, cpu_set
from topology.core.report import (
    Allocation,
    Condition,
    Health,
    IdleAllocation,
    MissingGpu,
    RefusedPod,
    Report,
    SharesAnswer,
)
from topology.machines import MACHINES, machine

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
    idle=(IdleAllocation(PodUid("uid"), "main", "nvidia.com/gpu", "2026-01-01T11:50:00Z"),),
    several_shares=SharesAnswer(
        True, "2026-01-01T12:00:00Z", "2026-01-01T11:00:00Z", configuration="shared"
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


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_goes_there_and_back(name: str) -> None:
    topology = machine(name).topology("node")
    wire = encode(topology, REPORT)
    record = decode(wire)
    assert record.topology == topology
    assert record.topology.shape is topology.shape
    assert record.report == REPORT
    assert faults(wire) == []


def test_the_example_of_the_design() -> None:
    wire = yaml.safe_load(EXAMPLE)
    validate(wire)
    record = decode(wire, strict=True)
    wire["status"]["summary"] = {"gpus": 2, "free": 0, "links": "NVLink 12"}
    assert encode(record.topology, record.report) == wire


def test_what_an_agent_adds_goes_there_and_back() -> None:
    uuid = GpuUuid("GPU-5f")
    parts = (MigInstance("MIG-1", "1g.10gb", Bytes(10 * MIB)),)
    gpu = Gpu(0, uuid, "X", Bytes(MIB), mig_mode="enabled", mig_instances=parts)
    topology = NodeTopology(
        NodeName("n"), (gpu,), allocator=AllocatorConfig(topology_manager_policy="unknown")
    )
    now = "2026-01-31T12:00:00Z"
    report = Report(
        "b",
        1,
        health=(Health(uuid, True, "NVLink3Down", now, (3,), 2**53),),
        conditions=(Condition("Ready", False, "NvmlUnavailable", "NVML: gone", now),),
        history=(RefusedPod(PodUid("u"), "ns", "p", "nvidia.com/gpu", 2, "OutOfcpu", now),),
    )
    wire = encode(topology, report)
    validate(wire)
    record = decode(wire, strict=True)
    assert (record.topology, record.report) == (topology, report)
    assert report.not_ready == "NVML: gone"
    assert replace(report, conditions=()).not_ready == ""


def test_numa_nodes_that_only_some_devices_name_are_not_known() -> None:
    """They are dropped, so that the record, written again, is the same."""
    wire = yaml.safe_load(EXAMPLE)
    wire["spec"]["allocator"]["topologyManagerPolicy"] = "best-effort"
    wire["spec"]["devices"][0]["topologyNodes"] = [1]
    topology = decode(wire).topology
    assert not topology.allocator.sees_topology
    assert [gpu.topology_nodes for gpu in topology.gpus] == [(0,), (0,)]
    assert decode(encode(topology, None)).topology == topology


def test_an_extender_that_does_not_know_a_field_of_an_allocation_passes_it_over() -> None:
    wire = yaml.safe_load(EXAMPLE)
    newer = copy.deepcopy(wire)
    newer["status"]["allocations"][0]["someLaterField"] = "2026-01-01T12:00:00Z"
    assert decode(newer) == decode(wire)


STATIC = """
numaNodes:
- {id: 1, distances: 21 10, cpus: "4-7,12-15", socket: 1,
   memory: [{type: memory, bytes: 100}, {type: hugepages-1Gi, bytes: 7}]}
- {id: 0, distances: 10 21, cpus: "0-3,8-11", socket: 0, memory: []}
cpus: {allocatable: 1-15, wholeCores: "1-7,9-15", threadsPerCore: 2}
"""
EXCLUSIVE = """
- {namespace: team-a, pod: train-0, cpus: "4-5,12-13",
   memory: [{type: memory, bytes: 30, numaNodes: [1, 0]}]}
- {namespace: team-b, pod: plain}
"""


def static() -> dict[str, Any]:
    """A record of a node whose CPU Manager and Memory Manager are static."""
    wire: dict[str, Any] = yaml.safe_load(EXAMPLE)
    wire["spec"] |= yaml.safe_load(STATIC)
    wire["spec"]["allocator"] |= {
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "alignBySocket": True,
    }
    wire["status"]["exclusive"] = yaml.safe_load(EXCLUSIVE)
    return wire


def test_cpus_and_memory_go_there_and_back() -> None:
    wire = static()
    validate(wire)
    record = decode(wire, strict=True)
    assert record.topology.allocator.numa == NumaConfig(
        nodes=(
            NumaNode(cpu_set("0-3,8-11"), 0),
            NumaNode(cpu_set("4-7,12-15"), 1, (("hugepages-1Gi", 7), ("memory", 100))),
        ),
        allocatable=cpu_set("1-15"),
        whole_cores=cpu_set("1-7,9-15"),
        threads=2,
        socket_aligned=True,
    )
    assert record.report is not None
    assert record.report.holdings == (
        Holding("team-a", "train-0", cpu_set("4-5,12-13"), (MemoryBlock("memory", 30, (0, 1)),)),
        Holding("team-b", "plain"),
    )
    again = encode(record.topology, record.report)
    validate(again)
    assert decode(again, strict=True) == record


@pytest.mark.parametrize("distances", [None, ((10, 21), (21, 10))])
def test_the_largest_machine_goes_there_and_back(distances: Any) -> None:
    """Every CPU number there is, in the longest list there is."""
    even = cpu_set(",".join(map(str, range(0, 4096, 2))))
    odd = CpuSet(cpu_set("0-4095") & ~even)
    nodes = (NumaNode(even), NumaNode(odd))
    numa = NumaConfig(nodes, even, even, 8)
    topology = NodeTopology(
        NodeName("n"), (), allocator=AllocatorConfig(numa_distances=distances, numa=numa)
    )
    report = Report("b", 1, holdings=())
    wire = encode(topology, report)
    validate(wire)
    assert decode(wire, strict=True).topology == topology
    assert decode(wire).report == report
    assert len(cpu_list(even)) == 9684


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param("spec.cpus", id="the CPUs that pods may have"),
        pytest.param("spec.numaNodes", id="NUMA nodes"),
        pytest.param("spec.numaNodes.1", id="the first NUMA node"),
        pytest.param("spec.numaNodes.0.cpus", id="the CPUs of one"),
        pytest.param("spec.allocator.alignBySocket", id="the option"),
    ],
)
def test_a_machine_that_is_reported_in_part_is_not_known(missing: str) -> None:
    wire = static()
    _without(missing)(wire)
    assert decode(wire).topology.allocator.numa is None


CPUS = st.sets(st.integers(0, 4095), max_size=20)
AMOUNTS = st.dictionaries(
    st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"]), st.integers(0, 2**62)
).map(lambda found: tuple(sorted(found.items())))
BLOCKS = st.lists(
    st.builds(
        MemoryBlock,
        st.sampled_from(["memory", "hugepages-2Mi"]),
        st.integers(0, 2**62),
        st.sets(st.integers(0, 63)).map(lambda nodes: tuple(sorted(nodes))),
    ),
    max_size=3,
).map(tuple)


def of(numbers: Iterable[int]) -> CpuSet:
    return cpu_set(",".join(map(str, numbers)))


@st.composite
def machines(draw: st.DrawFn) -> NumaConfig:
    """A machine whose CPUs are dealt out to NUMA nodes, and some of them to pods."""
    there = sorted(draw(CPUS))
    count = draw(st.integers(1, 4))
    at = [draw(st.integers(0, count - 1)) for _ in there]
    nodes = tuple(
        NumaNode(
            of(cpu for cpu, node in zip(there, at, strict=True) if node == number),
            draw(st.none() | st.integers(0, 2**31 - 1)),
            draw(AMOUNTS),
        )
        for number in range(count)
    )
    allocatable = [cpu for cpu in there if draw(st.booleans())]
    whole = [cpu for cpu in allocatable if draw(st.booleans())]
    threads = draw(st.integers(1, 4096))
    return NumaConfig(nodes, of(allocatable), of(whole), threads, draw(st.booleans()))


@given(
    machines(),
    st.booleans(),
    st.none() | st.dictionaries(st.sampled_from("abc"), st.tuples(CPUS, BLOCKS)),
)
def test_any_machine_and_any_holdings_go_there_and_back(
    numa: NumaConfig,
    measured: bool,
    has: dict[str, tuple[set[int], tuple[MemoryBlock, ...]]] | None,
) -> None:
    distances = tuple((10,) * len(numa.nodes) for _ in numa.nodes) if measured else None
    config = AllocatorConfig(numa_distances=distances, numa=numa)
    topology = NodeTopology(NodeName("n"), (), allocator=config)
    holdings = None
    if has is not None:
        holdings = tuple(
            Holding("ns", pod, of(cpus), memory) for pod, (cpus, memory) in has.items()
        )
    wire = encode(topology, Report("b", 1, holdings=holdings))
    assert faults(wire) == []
    record = decode(wire, strict=True)
    assert record.topology == topology
    assert record.report is not None
    assert record.report.holdings == holdings


def test_unobserved_is_not_the_same_as_empty() -> None:
    wire = static()
    wire["status"]["exclusive"] = []
    report = decode(wire).report
    assert report is not None
    assert report.holdings == ()
    del wire["status"]["exclusive"]
    report = decode(wire).report
    assert report is not None
    assert report.holdings is None


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
        at[int(last) if last.isdigit() else last] = value

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
    pytest.param(_with("spec.links.0.a", 1), "a must be less than b", False, id="order"),
    pytest.param(
        _with("spec.devices.1.index", 0), "devices.index: 0 occurs 2 times", False, id="index twice"
    ),
    pytest.param(
        _with("spec.devices.1.uuid", "GPU-5f"),
        "devices.uuid: GPU-5f occurs 2",
        False,
        id="uuid twice",
    ),
    pytest.param(_with("spec.devices", "none"), "spec.devices: input should be a", True, id="type"),
    pytest.param(
        _with("spec.allocator.policy", "clever"), "spec.allocator.policy:", True, id="policy"
    ),
    pytest.param(
        _with("spec.allocator.published", [0, 9]),
        "spec.allocator.published: GPU 9 is not among the devices",
        False,
        id="published",
    ),
    pytest.param(
        _with("spec.allocator.published", [1, 1]),
        "spec.allocator.published: 1 occurs 2 times",
        False,
        id="published twice",
    ),
    pytest.param(_with("status.sequence", "x"), "status.sequence:", True, id="sequence"),
    pytest.param(_with("spec.nics.0.distances.0.index", 9), "nics[mlx5_0]: GPU 9", False, id="nic"),
    pytest.param(
        _with("spec.nics.0", {"name": "\n", "distances": [{"index": 9, "pcie": "PIX"}]}),
        "nics[\\n]: GPU 9",
        False,
        id="a name that ends lines",
    ),
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
            validate(wire)


BAD_STATIC = [
    pytest.param(
        _with("spec.numaNodes.0.distances", "near, far"),
        "spec.numaNodes.0.distances: allowed are numbers such as 10 21, not 'near, far'",
        id="distances that are no numbers",
    ),
    pytest.param(
        _with("spec.numaNodes.0.cpus", "7-4"),
        "spec.numaNodes.0.cpus: '7-4': the first CPU must not be above the last, not '7-4'",
        id="a range that runs down",
    ),
    pytest.param(
        _with("spec.cpus.allocatable", "0-9999"),
        "spec.cpus.allocatable: '0-9999': allowed are CPUs from 0 to 4095, such as 0-3,8",
        id="a number that is too high",
    ),
    pytest.param(
        _with("status.exclusive.0.cpus", "four"),
        "status.exclusive.0.cpus: 'four': allowed are CPUs from 0 to 4095, such as 0-3,8",
        id="no number",
    ),
    pytest.param(
        _with("spec.cpus.wholeCores", "1," * 6000 + "1"),
        "spec.cpus.wholeCores: string should have at most 10240 characters",
        id="a list that is too long",
    ),
    pytest.param(
        _with("spec.cpus.threadsPerCore", 0),
        "spec.cpus.threadsPerCore: input should be greater than or equal to 1, not 0",
        id="a core without threads",
    ),
    pytest.param(
        _with("spec.numaNodes.1.cpus", "0-4"),
        "spec.numaNodes: CPU 4 is on two NUMA nodes, but only one is allowed",
        id="a CPU twice",
    ),
    pytest.param(
        _with("spec.cpus.allocatable", "1-16"),
        "spec.cpus.allocatable: CPU 16 is on no NUMA node",
        id="a CPU that is not there",
    ),
    pytest.param(
        _with("spec.cpus.wholeCores", "0-7"),
        "spec.cpus.wholeCores: CPU 0 is not in cpus.allocatable",
        id="a reserved CPU in a whole core",
    ),
    pytest.param(
        _with("spec.numaNodes.1.id", 1),
        "spec.numaNodes: 1 occurs 2 times, but only once is allowed",
        id="a NUMA node twice",
    ),
    pytest.param(
        _with("spec.numaNodes.0.memory", [{"type": "memory", "bytes": 1}] * 2),
        "spec.numaNodes: memory occurs 2 times in the memory of NUMA node 1, but only once",
        id="a type of memory twice",
    ),
    pytest.param(
        _with("status.exclusive.1", {"namespace": "team-a", "pod": "train-0"}),
        "status.exclusive: team-a/train-0 occurs 2 times, but only once is allowed",
        id="a pod twice",
    ),
    pytest.param(
        _with("status.exclusive.0.memory.0.bytes", -1),
        "status.exclusive.0.memory.0.bytes: input should be greater than or equal to 0, not -1",
        id="less than no memory",
    ),
]


@pytest.mark.parametrize(("change", "words"), BAD_STATIC)
def test_bad_cpus_and_memory_are_one_clear_line(change: Any, words: str) -> None:
    wire = static()
    change(wire)
    with pytest.raises(RecordError) as caught:
        decode(wire)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_a_newer_agent_or_a_typing_error() -> None:
    wire = yaml.safe_load(EXAMPLE)
    wire["spec"]["devises"] = []
    decode(wire)
    with pytest.raises(RecordError, match=r"spec\.devises: unknown field$"):
        decode(wire, strict=True)


def test_a_long_list_of_cpus_is_not_quoted_whole() -> None:
    data: Any = copy.deepcopy(encode(NodeTopology(NodeName("n"), ())))
    data["spec"]["cpus"] = {"allocatable": "9" * 5000, "wholeCores": "", "threadsPerCore": 1}
    with pytest.raises(RecordError, match="allowed are CPUs from 0 to 4095") as refused:
        decode(data)
    assert len(str(refused.value)) < 250


def test_the_other_wrong_fields_are_named_too() -> None:
    wire = yaml.safe_load(EXAMPLE)
    wire["spec"]["links"] = [{}]
    with pytest.raises(RecordError, match=r"links\.0\.a: .* \(also wrong: spec\.links\.0\.b\)$"):
        decode(wire)


def test_a_long_field_is_reported_in_part() -> None:
    wire = yaml.safe_load(EXAMPLE)
    wire["spec"]["x" * 5000] = 1
    with pytest.raises(RecordError) as caught:
        decode(wire, strict=True)
    assert len(str(caught.value)) < 400
