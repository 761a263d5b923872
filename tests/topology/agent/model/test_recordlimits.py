"""A node that has more than a record may hold: what is published is valid, and says so."""

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.cluster.cache import Cache
from tests.crd import faults, nodes_of, schema
from tests.fakes.kubelet import GPU
from tests.topology.agent.model.oversizedmachines import (
    EXCEEDING,
    GIVEN,
    NICS,
    STATIC,
    TOO_LARGE,
    Expectation,
    Machine,
    gpus,
    holding,
    ids,
    named,
    not_ready,
    nothing_lost,
    owning,
)
from topology import codec
from topology.agent.model import recordlimits
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.observations import (
    PciTree,
    Processors,
    SeenNode,
)
from topology.agent.model.podentries import Entry
from topology.agent.probes.podresources import MIG_RESOURCES
from topology.core.devices import (
    Bytes,
    DeviceId,
    Gpu,
    GpuUuid,
    Nic,
    NodeName,
)
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.numa import CpuSet, cpu_set
from topology.core.placement import NOT_READY
from topology.core.requests import Constraints, gpu_request
from topology.machines import machine

ETCD_LIMIT = 3 * 2**19  # bytes of one object

CANNOT = {
    # Where a machine cannot exceed a limit: why not.
    ".spec.resources[].name": "the kubelet's own rule for an extended resource is as narrow",
    ".spec.devices[].index": "numbers are given in order, to 64 GPUs",
    ".spec.devices[].vendor": "ours",
    ".spec.devices[].uuid": "NVML's has 96 bytes at most",
    ".spec.devices[].memoryBytes": "of a memory of eight exabytes",
    ".spec.devices[].topologyNodes": "of 64 numbers at most",
    ".spec.devices[].numaNode": "the kernel numbers 1024 NUMA nodes at most",
    ".spec.nics[].numaNode": "the kernel numbers 1024 NUMA nodes at most",
    ".spec.numaNodes": "with more they count as not known",
    ".spec.numaNodes[].id": "numbers are given in order, to 64 NUMA nodes",
    ".spec.numaNodes[].distances": "64 distances of three digits at most",
    ".spec.numaNodes[].socket": "the kernel's has 31 bits",
    ".spec.cpus.allocatable": "CPUs of its NUMA nodes",
    ".spec.cpus.wholeCores": "CPUs of its NUMA nodes",
    ".spec.cpus.threadsPerCore": "a record's CPUs at most",
    ".spec.devices[].migInstances[].uuid": "NVML's has 96 bytes at most",
    ".spec.devices[].migInstances[].profile": "the end of NVML's name, or three numbers",
    ".spec.devices[].migInstances[].memoryBytes": "of a memory of eight exabytes",
    ".spec.links[].a": "an index",
    ".spec.links[].b": "an index",
    ".spec.links[].nvlinks": "NVML knows 36 links of a GPU at most",
    ".spec.links[].nvlinkGBps": "from our own table",
    ".spec.nics[].name": "the kernel's has 64 bytes at most",
    ".spec.nics[].distances[].index": "an index",
    ".spec.fabric.clusterUUID": "a UUID",
    ".spec.fabric.cliqueId": "32 bits",
    ".status.bootID": "the kernel's is a UUID",
    ".status.sequence": "of 2^63 writes",
    ".status.observedAt": "our own clock",
    ".status.podsResourceVersion": "the API server's own number",
    ".status.allocations[].namespace": "the API server's own rule",
    ".status.allocations[].pod": "the API server's own rule",
    ".status.allocations[].container": "the API server's own rule",
    ".status.allocations[].idleSince": "our own clock",
    ".status.exclusive[].namespace": "the API server's own rule",
    ".status.exclusive[].pod": "the API server's own rule",
    ".status.severalShares.podStarted": "the API server's own rule for a time",
    ".status.severalShares.pluginStarted": "the API server's own rule for a time",
    ".status.severalShares.configuration": "the API server's own rule for a label",
    ".status.exclusive[].cpus": "numbers below 4096: others are left out where they are read",
    ".status.exclusive[].memory[].numaNodes": "the kubelet cannot name more than 64",
    ".status.health[].uuid": "NVML's has 96 bytes at most",
    ".status.health[].since": "our own clock",
    ".status.health[].energyMillijoules": "300,000 years at a megawatt",
    ".status.health[].linksDown": "NVML knows 36 links of a GPU at most",
    ".status.health[].linksDown[]": "NVML knows 36 links of a GPU at most",
    ".status.missing[].name": "NVML's has 96 bytes at most",
    ".status.missing[].since": "our own clock",
    ".status.history[].podUID": "the API server's own rule",
    ".status.history[].namespace": "the API server's own rule",
    ".status.history[].pod": "the API server's own rule",
    ".status.history[].resource": "the API server's own rule",
    ".status.history[].devices": "the API server's own rule for an amount",
    ".status.history[].at": "the API server's own rule for a time",
    ".status.summary.links": "a word of each PCIe class at most",
    ".status.conditions": "three",
    ".spec.allocator.published": "not written",
    ".status.conditions[].type": "ours",
    ".status.conditions[].reason": "ours",
    ".status.conditions[].lastTransitionTime": "our own clock",
    ".status.conditions[].observedGeneration": "not written",
}

BOUNDS = {"maxItems", "maxLength", "maximum", "pattern", "format"}


@pytest.mark.parametrize(
    ("machine", "holds"), [pytest.param(m, s, id=name) for name, (_, m, s) in EXCEEDING.items()]
)
def test_what_does_not_fit_is_left_out_and_reported(machine: Machine, holds: Expectation) -> None:
    record = machine.record()
    assert faults(record) == []
    assert len(json.dumps(record)) <= recordlimits.LARGEST_RECORD
    assert holds(record), record["status"]["conditions"]
    codec.decode(record)  # and the extender reads it


def test_every_limit_of_the_schema_has_a_machine_that_exceeds_it() -> None:
    limited = {path for path, found in nodes_of(schema()) if BOUNDS & found.keys()}
    exceeded = {path for paths, _, _ in EXCEEDING.values() for path in paths}
    assert exceeded.isdisjoint(CANNOT)
    assert limited == exceeded | CANNOT.keys()


def test_the_limits_are_the_schemas() -> None:
    of = dict(nodes_of(schema()))
    assert of[".status.allocatable"]["maxItems"] == recordlimits.MOST_DEVICE_IDS
    assert of[".status.allocations[].deviceIds"]["maxItems"] == recordlimits.MOST_DEVICE_IDS
    assert of[".status.allocations"]["maxItems"] == recordlimits.MOST_ALLOCATIONS
    assert of[".status.exclusive"]["maxItems"] == recordlimits.MOST_EXCLUSIVE
    assert of[".status.exclusive[].memory"]["maxItems"] == recordlimits.MOST_BLOCKS
    assert of[".spec.resources"]["maxItems"] == recordlimits.MOST_RESOURCES
    assert of[".spec.resources[].replicas"]["maximum"] == recordlimits.MOST_REPLICAS
    assert of[".spec.nics"]["maxItems"] == recordlimits.MOST_NICS
    assert of[".spec.devices[].migInstances"]["maxItems"] == recordlimits.MOST_MIG_INSTANCES
    assert of[".status.health"]["maxItems"] == recordlimits.MOST_HEALTH
    assert of[".status.missing"]["maxItems"] == recordlimits.MOST_MISSING
    assert of[".status.history"]["maxItems"] == recordlimits.MOST_REFUSED
    assert of[".status.history[].reason"]["maxLength"] == recordlimits.LONGEST_REASON
    assert of[".status.health[].reason"]["maxLength"] == recordlimits.LONGEST_REASON
    assert of[".status.allocatable[]"]["maxLength"] == recordlimits.LONGEST_NAME
    assert of[".status.conditions[].message"]["maxLength"] >= recordlimits.LONGEST_MESSAGE
    assert of[".spec.devices[].topologyNodes[]"]["maximum"] == recordlimits.HIGHEST_HINTED_NODE


def test_the_agents_resources_are_the_extenders() -> None:
    assert (*recordlimits.GPU_RESOURCES, f"{MIG_RESOURCES}*") == MANAGED


def test_a_record_that_just_fits_is_whole() -> None:
    shares = [i for gpu in range(4) for i in ids(1024, f"GPU-{gpu}")]
    record = Machine(
        SeenNode(gpus(4)), served={GPU: shares}, entries_=holding(("a", shares))
    ).record()
    assert nothing_lost(record)
    assert sorted(record["status"]["allocatable"]) == sorted(shares)
    assert record["status"]["allocations"][0]["deviceIds"] == shares
    assert faults(record) == []


def test_the_estimate_of_what_pods_have_for_their_own_is_no_less_than_its_size() -> None:
    odd = CpuSet(sum(1 << i for i in range(1, 4096, 2)))
    entries = [
        Entry("default", f"p{i}", (), CpuSet(odd if i < 3 else 2), holding.memory)
        for i, holding in enumerate(owning(150, 1))
    ]
    machine = Machine(
        kubelet=STATIC,
        exclusive=Allocatable(odd, {(n, "hugepages-1Gi"): 2**50 for n in range(64)}),
        processors=Processors((odd, *[cpu_set("")] * 63), (0, *[None] * 63), (odd,)),
        entries_=entries,
    )
    record = machine.record()
    assert nothing_lost(record)
    found = codec.decode(record)
    assert found.report is not None
    answer = json.dumps(record["status"]["exclusive"], separators=(",", ":"))
    assert found.report.holdings is not None
    size = sum(map(recordlimits.size_of_holding, found.report.holdings))
    assert 0.8 * size < len(answer) <= size


def owned(found: Any, value: Any) -> Any:
    """How the API server notes in ``managedFields`` who owns the fields of a value."""
    if isinstance(value, dict):
        parts = found.get("properties", {})
        return {".": {}} | {f"f:{k}": owned(parts.get(k, {}), v) for k, v in value.items()}
    if isinstance(value, list) and found.get("x-kubernetes-list-type") == "set":
        return {".": {}} | {f"v:{json.dumps(v)}": {} for v in value}
    if isinstance(value, list) and found["x-kubernetes-list-type"] == "map":
        keys = found["x-kubernetes-list-map-keys"]
        return {".": {}} | {
            f"k:{json.dumps({k: item.get(k) for k in keys}, separators=(',', ':'))}": owned(
                found["items"], item
            )
            for item in value
        }
    return {}


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(
            Machine(entries_=holding(*((f"p{i}", [f"GPU-0::{i}"]) for i in range(3800)))), id="many"
        ),
        pytest.param(
            Machine(entries_=holding(*((f"{i:x>250}", [f"GPU-0::{i}"]) for i in range(1280)))),
            id="long",
        ),
        pytest.param(
            Machine(
                SeenNode(gpus(64)),
                served={GPU: named(*(f"GPU-{i}" for i in range(64)))},
                entries_=holding(*((f"p{i}", [f"GPU-0::{i}"]) for i in range(1400))),
                pci=PciTree({f"0000:{i:02x}:00.0": ("pci", f"{i}") for i in range(64)}, nics=NICS),
            ),
            id="of all",
        ),
        pytest.param(
            Machine(
                SeenNode(gpus(64)),
                served={GPU: named(*(f"GPU-{i}" for i in range(64)))},
                entries_=[
                    *holding(*((f"h{i}", [f"GPU-0::{i}"]) for i in range(1400))),
                    *owning(1200, 0),
                ],
                kubelet=STATIC,
                exclusive=GIVEN,
            ),
            id="with CPUs",
        ),
    ],
)
def test_the_largest_record_fits_into_etcd_with_its_managed_fields(machine: Machine) -> None:
    record = machine.record()
    assert nothing_lost(record)
    body = {part: record[part] for part in ("spec", "status")}
    notes = {part: owned(schema()["properties"][part], body[part]) for part in body}
    size = sum(len(json.dumps(each, separators=(",", ":"))) for each in (body, notes))
    assert 0.45 * ETCD_LIMIT < size < 0.95 * ETCD_LIMIT


def test_the_nearest_nic_of_each_gpu_stays() -> None:
    nics = tuple(
        Nic(f"n{i}", ((0, LinkKind.PIX if i == 90 else LinkKind.SYS), (1, LinkKind.NODE)))
        for i in range(100)
    )
    pair = tuple(Gpu(i, GpuUuid(f"GPU-{i}"), "V100", Bytes(1)) for i in range(2))
    whole = NodeTopology(NodeName("n"), pair, nics=nics)
    found, unseen = recordlimits.hardware(whole)
    assert len(found.nics) == 64
    assert found.shape.nic == whole.shape.nic == (LinkKind.PIX, LinkKind.NODE)
    assert len(unseen) == 1


# --- device ids that are not ours -------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "held", "count", "example"),
    [
        pytest.param({GPU: ["nvidia0", "nvidia1"]}, [], 2, "nvidia0", id="numbered"),
        pytest.param({GPU: ["nvidia0/vgpu0"]}, [], 1, "nvidia0/vgpu0", id="numbered shares"),
        pytest.param({GPU: ["GPU-0", "GPU-77"]}, [], 1, "GPU-77", id="a GPU of another node"),
        pytest.param({GPU: ["GPU-0", "GPU-1", "nvidia9"]}, [], 1, "nvidia9", id="one of them"),
        pytest.param({GPU: ["GPU-0"]}, ["nvidia1"], 1, "nvidia1", id="held since before"),
        pytest.param({"example.com/gpu": ["GPU-0", "x1"]}, [], 1, "x1", id="a resource renamed"),
        pytest.param({"nvidia.com/gpu.shared": ["a"]}, [], 1, "a", id="the other resource"),
    ],
)
def test_unknown_ids_are_counted_and_one_is_named(
    served: dict[str, list[DeviceId]], held: list[DeviceId], count: int, example: str
) -> None:
    entries = holding(("a", held)) if held else []
    record = Machine(served=served, entries_=entries).record()
    assert not_ready("UnknownDevices", f"{count} device id", repr(example))(record)
    assert "allocatable" not in record["status"]
    assert faults(record) == []


@pytest.mark.parametrize(
    "served",
    [{GPU: ["GPU-0::0", "GPU-1::4"]}, {"nvidia.com/mig-1g.5gb": ["MIG-GPU-0/1/0"]}, {}],
    ids=["shares", "MIG", "nothing"],
)
def test_ids_that_are_ours_are_known(served: dict[str, list[DeviceId]]) -> None:
    assert nothing_lost(Machine(served=served).record())


def test_a_node_with_numbered_devices_takes_plain_pods() -> None:
    served = {GPU: named(*(f"nvidia{i}" for i in range(8)))}
    record = Machine(
        SeenNode(gpus(8)), served=served, entries_=holding(("a", ["nvidia3"]))
    ).record()
    # What is held is counted once.
    assert not_ready("UnknownDevices", "8 device ids", "nvidia0")(record)
    assert record["status"]["allocations"][0]["deviceIds"] == ["nvidia3"]
    cluster = Cache(lambda: 0.0)
    decoded = codec.decode(record)
    cluster.put_record(decoded.topology, decoded.report)
    name = NodeName("n")
    assert answer(cluster.snapshot(), cluster.node_info(name), gpu_request(1)).rejection is None
    pair = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    assert answer(cluster.snapshot(), cluster.node_info(name), pair).rejection is NOT_READY


def test_nothing_is_promised_on_what_was_written_before_a_record_became_too_large() -> None:
    """What is known of the hardware may be out of date. Pods that ask for a number go there."""
    topology = machine("hgx-h100-8").topology("n")
    cluster, name = Cache(lambda: 0.0), NodeName("n")
    cluster.put_record(topology, replace(TOO_LARGE.report, conditions=()))
    pair = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    assert answer(cluster.snapshot(), cluster.node_info(name), pair).rejection is None
    cluster.put_record(topology, replace(TOO_LARGE.report, sequence=1))
    assert answer(cluster.snapshot(), cluster.node_info(name), pair).rejection is NOT_READY
    assert answer(cluster.snapshot(), cluster.node_info(name), gpu_request(1)).rejection is None
