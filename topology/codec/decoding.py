"""Conversion of a GPUTopology object to our model.

A record is untrusted input, so it is checked once, here. A fault raises :class:`RecordError`, which
names the field, the value and the allowed values.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import Repr

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from topology.codec import wire
from topology.core.devices import (
    Bytes,
    DeviceId,
    Fabric,
    Gpu,
    GpuResource,
    GpuUuid,
    MigInstance,
    Nic,
    NodeName,
    positions,
)
from topology.core.devices import PodUid as Uid
from topology.core.graph import (
    AllocatorConfig,
    NodeTopology,
    TopologyError,
)
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.numa import Holding, MemoryBlock, NumaConfig, NumaNode
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


class RecordError(ValueError):
    """A GPUTopology record that cannot be used.

    The message names the field and the allowed values. It is always one printable line, even if
    names in the record have other characters.
    """

    def __init__(self, said: str) -> None:
        super().__init__(said if said.isprintable() else ascii(said)[1:-1])


@dataclass(frozen=True, slots=True)
class Record:
    """A node's record: its hardware, and its report if it has one."""

    topology: NodeTopology
    report: Report | None


def decode(data: Mapping[str, object], *, strict: bool = False) -> Record:
    """Return the record in a GPUTopology object that is given as parsed JSON or YAML.

    Unknown fields are ignored, because a newer agent may send some. With ``strict`` they are
    refused, because in a hand-written file they are typing errors. Raises :class:`RecordError`.
    """
    try:
        if strict:
            given = wire.Object.model_validate(_known_only(data), extra="forbid")
        else:
            given = wire.Object.model_validate(data)
    except ValidationError as error:
        raise RecordError(first_error(error)) from error
    spec, fabric, seen = given.spec, given.spec.fabric, _sees_topology(given.spec)
    try:
        topology = NodeTopology(
            name=NodeName(given.metadata.name),
            gpus=tuple(_gpu(d, d.topology_nodes if seen else None) for d in spec.devices),
            links=tuple(_link(k) for k in spec.links),
            nics=tuple(_nic(n) for n in spec.nics),
            resources=tuple(
                GpuResource(r.name, r.strategy, r.replicas, r.fail_requests_greater_than_one)
                for r in spec.resources
            ),
            allocator=_allocator(spec),
            fabric=None if fabric is None else Fabric(fabric.cluster_uuid, fabric.clique_id),
        )
    except TopologyError as error:
        raise RecordError(f"spec.{error}") from error
    return Record(topology, None if given.status is None else _report(given.status))


def decode_report(data: Mapping[str, object]) -> Report:
    """Return the report in a bare ``status`` object. Raises :class:`RecordError`."""
    try:
        return _report(wire.Status.model_validate(data))
    except ValidationError as error:
        raise RecordError(first_error(error)) from error


def _where(fault: ErrorDetails) -> str:
    return ".".join(str(part) for part in fault["loc"])[:MAX_WHERE] or "record"


def first_error(error: ValidationError) -> str:
    """Return the faults of a validation in one line.

    The line has the field, the allowed values and the value of the first fault, and the fields of
    some of the others.
    """
    faults = error.errors(include_url=False)
    fault, where = faults[0], _where(faults[0])
    named = ", ".join(map(_where, faults[1:MAX_NAMED]))
    left = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
    rest = f" (also wrong: {named}{left})" if named else ""
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown field{rest}"
    words = wire.ALLOWED.get(fault.get("ctx", {}).get("pattern", ""), fault["msg"])
    shown = "" if fault["type"] == "missing" else f", not {shortened(fault.get('input'))}"
    return f"{where}: {words[0].lower()}{words[1:]}{shown}{rest}"


MAX_WHERE = 200  # characters of a field's path, which is untrusted input
MAX_NAMED = 5  # faults whose fields are named

_BRIEF = Repr()
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = 4
_BRIEF.maxstring = _BRIEF.maxother = 120


def shortened(value: object) -> str:
    """Return a value as Python writes it, cut to sixty characters.

    The parts of a huge value are cut before it is written.
    """
    try:
        text = _BRIEF.repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _known_only(data: Mapping[str, object]) -> dict[str, object]:
    """Return the parts of a hand-written object that we define.

    These are the spec, the status without its summary, and the name. Kubernetes defines the rest of
    the metadata.
    """
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    status = data.get("status")
    found: dict[str, object] = {"metadata": {} if name is None else {"name": name}}
    if "spec" in data:
        found["spec"] = data["spec"]
    if isinstance(status, Mapping):
        found["status"] = {k: v for k, v in status.items() if k != "summary"}
    elif status is not None:
        found["status"] = status
    return found


def _allocator(spec: wire.Spec) -> AllocatorConfig:
    a = spec.allocator
    return AllocatorConfig(
        a.policy,
        a.plugin_version,
        a.topology_manager_policy,
        a.topology_manager_scope,
        a.cpu_manager_policy,
        a.memory_manager_policy,
        a.prefer_closest_numa_nodes,
        _distances(spec.numa_nodes or ()),
        sees_topology=_sees_topology(spec),
        full_cores_only=a.full_pcpus_only,
        numa=_numa_config(spec),
        published=tuple(a.published or ()),
        serves_extended_resource=a.by_number is not False,
        numa_lacks=_numa_lacks(spec),
    )


def _sees_topology(spec: wire.Spec) -> bool:
    """Check whether the record has the NUMA nodes that the plugin names to the kubelet.

    If one device lacks them, the agent knows those of no device. This matters only if the kubelet
    aligns devices.
    """
    aligned = spec.allocator.topology_manager_policy != "none"
    return not aligned or all(d.topology_nodes is not None for d in spec.devices)


def _gpu(d: wire.Device, named: Sequence[int] | None) -> Gpu:
    return Gpu(
        index=d.index,
        uuid=GpuUuid(d.uuid),
        product=d.product,
        memory=Bytes(d.memory_bytes),
        numa_node=d.numa_node,
        pci_bus_id=d.pci_bus_id,
        vendor=d.vendor,
        mig_mode=d.mig_mode,
        mig_instances=tuple(
            MigInstance(m.uuid, m.profile, Bytes(m.memory_bytes)) for m in d.mig_instances or ()
        ),
        topology_nodes=None if named is None else tuple(sorted(set(named))),
    )


def _link(k: wire.Link) -> Link:
    pcie = LinkKind.UNKNOWN if k.pcie is None else LinkKind[k.pcie]
    speed = GBps(k.nvlink_gbps)
    return Link(k.a, k.b, pcie, k.nvlinks, Via(k.via), speed, bool(k.one_sided), bool(k.uneven))


def _nic(n: wire.Nic) -> Nic:
    return Nic(n.name, tuple((d.index, LinkKind[d.pcie]) for d in n.distances), n.numa_node)


def _report(status: wire.Status) -> Report:
    allocatable, shares = status.allocatable, status.several_shares
    return Report(
        boot_id=status.boot_id,
        sequence=status.sequence,
        allocatable=None if allocatable is None else frozenset(map(DeviceId, allocatable)),
        allocations=tuple(
            Allocation(
                Uid(a.pod_uid),
                a.namespace,
                a.pod,
                a.container,
                a.resource,
                tuple(map(DeviceId, a.device_ids)),
            )
            for a in status.allocations
        ),
        health=tuple(
            Health(
                GpuUuid(h.uuid),
                h.healthy,
                h.reason,
                h.since or "",
                tuple(h.links_down or ()),
                h.energy_millijoules,
            )
            for h in status.health
        ),
        conditions=tuple(
            Condition(c.type, c.status == "True", c.reason, c.message, c.last_transition_time or "")
            for c in status.conditions
        ),
        holdings=_holdings(status.exclusive),
        missing=tuple(MissingGpu(m.name, m.counted, m.since or "") for m in status.missing or ()),
        several_shares=None
        if shares is None
        else SharesAnswer(
            shares.refused, shares.pod_started, shares.plugin_started, shares.configuration or ""
        ),
        idle=tuple(
            IdleAllocation(Uid(a.pod_uid), a.container, a.resource, a.idle_since)
            for a in status.allocations
            if a.pod_uid and a.idle_since
        ),
        history=tuple(
            RefusedPod(Uid(r.pod_uid), r.namespace, r.pod, r.resource, r.devices, r.reason, r.at)
            for r in status.history or ()
        ),
        observed_at=status.observed_at or "",
        pods_version=status.pods_resource_version or "",
    )


# CPUs and memory by NUMA node.


def _distances(nodes: Sequence[wire.NumaNode]) -> tuple[tuple[int, ...], ...] | None:
    """Return the distances by NUMA node; None unless all NUMA nodes from 0 on have them."""
    rows = {node.id: tuple(map(int, (node.distances or "").split())) for node in nodes}
    n = len(rows)
    if not rows or set(rows) != set(range(n)) or any(len(row) != n for row in rows.values()):
        return None
    return tuple(rows[i] for i in range(n))


def _numa_config(spec: wire.Spec) -> NumaConfig | None:
    """Return the record's CPUs and memory; None if a part is missing.

    The parts are all NUMA nodes from 0 on, the CPUs of each, the CPUs that pods may have, and the
    CPU Manager's option ``align-by-socket``. A contradiction raises :class:`TopologyError`.
    """
    given = sorted(spec.numa_nodes or (), key=lambda node: node.id)
    nodes = [
        NumaNode(
            wire.cpus_of(node.cpus or ""),
            node.socket,
            tuple(sorted((m.type, m.bytes) for m in node.memory or ())),
        )
        for node in given
    ]
    _check_nodes(given, nodes)
    cpus = spec.cpus
    if cpus is None:
        return None
    allocatable, whole_cores = wire.cpus_of(cpus.allocatable), wire.cpus_of(cpus.whole_cores)
    if other := whole_cores & ~allocatable:
        raise TopologyError(f"cpus.wholeCores: {_first(other)} is not in cpus.allocatable")
    aligned = spec.allocator.align_by_socket
    if aligned is None or not _names_cpus(given):
        return None
    elsewhere: int = allocatable
    for node in nodes:
        elsewhere &= ~node.cpus
    if elsewhere:
        raise TopologyError(f"cpus.allocatable: {_first(elsewhere)} is on no NUMA node")
    return NumaConfig(tuple(nodes), allocatable, whole_cores, cpus.threads_per_core, aligned)


def _numa_lacks(spec: wire.Spec) -> tuple[str, ...]:
    """Return the fields that the record lacks for :func:`_numa_config`; empty if it has all."""
    has = {
        "spec.allocator.alignBySocket": spec.allocator.align_by_socket is not None,
        "spec.numaNodes[].cpus": _names_cpus(spec.numa_nodes or ()),
        "spec.cpus": spec.cpus is not None,
    }
    return tuple(field for field, there in has.items() if not there)


def _names_cpus(nodes: Sequence[wire.NumaNode]) -> bool:
    """Check whether the record has the CPUs of each NUMA node from 0 on."""
    numbers = sorted(node.id for node in nodes if node.cpus is not None)
    return bool(nodes) and numbers == list(range(len(nodes)))


def _check_nodes(given: Sequence[wire.NumaNode], nodes: Sequence[NumaNode]) -> None:
    seen = 0
    for number, times in Counter(node.id for node in given).items():
        if times > 1:
            raise TopologyError(
                f"numaNodes: {number} occurs {times} times, but only once is allowed"
            )
    for node, found in zip(given, nodes, strict=True):
        if both := found.cpus & seen:
            raise TopologyError(
                f"numaNodes: {_first(both)} is on two NUMA nodes, but only one is allowed"
            )
        for kind, times in Counter(kind for kind, _ in found.memory).items():
            if times > 1:
                raise TopologyError(
                    f"numaNodes: {kind} occurs {times} times in the memory of NUMA node "
                    f"{node.id}, but only once is allowed"
                )
        seen |= found.cpus


def _first(cpus: int) -> str:
    return f"CPU {positions(cpus)[0]}"


def _holdings(given: Sequence[wire.Exclusive] | None) -> tuple[Holding, ...] | None:
    """Return the exclusive CPUs and memory of pods; None if the agent did not read them."""
    if given is None:
        return None
    return tuple(
        Holding(
            pod.namespace,
            pod.pod,
            wire.cpus_of(pod.cpus or ""),
            tuple(
                MemoryBlock(block.type, block.bytes, tuple(sorted(set(block.numa_nodes))))
                for block in pod.memory or ()
            ),
        )
        for pod in given
    )
