"""The GPUTopology custom resource, ``gpu-topology.io/v1alpha1``, to and from our model.

A stranger's record is checked once, here. What is wrong with it is one :class:`RecordError` that
names the field, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

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
    base_uuid,
)
from topology.core.devices import PodUid as Uid
from topology.core.graph import MAX_GPUS, AllocatorFacts, NodeTopology, TopologyError
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.report import Allocation, Condition, Health, Report

API_VERSION = "gpu-topology.io/v1alpha1"
KIND = "GPUTopology"

PcieClass = Literal["BOARD", "PIX", "PXB", "PHB", "NODE", "SYS"]
Index = Annotated[int, Field(ge=0, lt=1024)]
Text = Annotated[str, Field(max_length=512)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


class RecordError(ValueError):
    """A GPUTopology record that cannot be used; the message names the field and what is allowed."""


class _Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


class _Resource(_Wire):
    name: Name = "nvidia.com/gpu"
    strategy: Literal["none", "time-slicing", "mps", "mig"] = "none"
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1


class _Allocator(_Wire):
    policy: Literal["best-effort", "distributed", "packed", "any", "exact"] = "any"
    plugin_version: Text | None = None
    topology_manager_policy: Literal[
        "none", "best-effort", "restricted", "single-numa-node", "unknown"
    ] = "none"
    topology_manager_scope: Literal["container", "pod"] = "container"
    cpu_manager_policy: Literal["none", "static"] | None = None
    memory_manager_policy: Literal["None", "Static"] | None = None


class _MigInstance(_Wire):
    uuid: Name
    profile: Text
    memory_bytes: Annotated[int, Field(ge=0)]


class _Device(_Wire):
    index: Index
    vendor: Text = "nvidia"
    uuid: Name
    product: Name
    memory_bytes: Annotated[int, Field(ge=0)]
    pci_bus_id: Text | None = None
    numa_node: Annotated[int, Field(ge=0)] | None = None
    mig_mode: Literal["disabled", "enabled"] = "disabled"
    mig_instances: list[_MigInstance] | None = None


class _Link(_Wire):
    a: Index
    b: Index
    pcie: PcieClass | None = None
    nvlinks: Annotated[int, Field(ge=0, le=64)] = 0
    via: Literal["direct", "switch"] = "direct"
    nvlink_gbps: Annotated[float, Field(ge=0, allow_inf_nan=False, alias="nvlinkGBps")] = 0.0
    one_sided: bool | None = None


class _Distance(_Wire):
    index: Index
    pcie: PcieClass


class _Nic(_Wire):
    name: Name
    numa_node: Annotated[int, Field(ge=0)] | None = None
    distances: list[_Distance] = []


class _Fabric(_Wire):
    cluster_uuid: Name = Field(alias="clusterUUID")
    clique_id: int


class _Spec(_Wire):
    resources: list[_Resource] = [_Resource()]
    allocator: _Allocator = _Allocator()
    devices: Annotated[list[_Device], Field(max_length=MAX_GPUS)] = []
    links: list[_Link] = []
    nics: list[_Nic] = []
    fabric: _Fabric | None = None


class _Allocation(_Wire):
    pod_uid: Text = Field("", alias="podUID")
    namespace: Text = ""
    pod: Text = ""
    container: Text = ""
    resource: Text = "nvidia.com/gpu"
    device_ids: list[Name] = []


class _Health(_Wire):
    uuid: Name
    healthy: bool
    reason: Text = ""
    since: Text | None = None
    links_down: list[Annotated[int, Field(ge=0, lt=64)]] | None = None
    energy_millijoules: Annotated[int, Field(ge=0)] | None = None


class _Condition(_Wire):
    type: Name
    status: Literal["True", "False", "Unknown"]
    reason: Text = ""
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: Text | None = None


class _Summary(_Wire):
    gpus: int
    free: int
    links: str


class _Status(_Wire):
    boot_id: Text = Field("", alias="bootID")
    sequence: Annotated[int, Field(ge=0)] = 0
    observed_at: Text | None = None
    pods_resource_version: Text | None = None
    allocatable: list[Name] | None = None
    allocations: list[_Allocation] = []
    health: list[_Health] = []
    conditions: list[_Condition] = []
    summary: _Summary | None = None


class _Metadata(_Wire):
    name: Name


class _Object(_Wire):
    metadata: _Metadata
    spec: _Spec
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A node's record: its hardware, and the report where there is one."""

    topology: NodeTopology
    report: Report | None


def decode(data: Mapping[str, object], *, strict: bool = False) -> Record:
    """The record in a GPUTopology object, given as parsed JSON or YAML.

    Unknown fields are ignored, since a newer agent may send some; with ``strict`` they are refused,
    since in a hand-written file they are typing errors. Raises :class:`RecordError`.
    """
    try:
        if strict:
            wire = _Object.model_validate(_known_only(data), extra="forbid")
        else:
            wire = _Object.model_validate(data)
    except ValidationError as error:
        raise RecordError(first_error(error)) from error
    spec = wire.spec
    try:
        topology = NodeTopology(
            name=NodeName(wire.metadata.name),
            gpus=tuple(_gpu(d) for d in spec.devices),
            links=tuple(_link(k) for k in spec.links),
            nics=tuple(_nic(n) for n in spec.nics),
            resources=tuple(GpuResource(r.name, r.strategy, r.replicas) for r in spec.resources),
            allocator=AllocatorFacts(
                spec.allocator.policy,
                spec.allocator.plugin_version,
                spec.allocator.topology_manager_policy,
                spec.allocator.topology_manager_scope,
                spec.allocator.cpu_manager_policy,
                spec.allocator.memory_manager_policy,
            ),
            fabric=None
            if spec.fabric is None
            else Fabric(spec.fabric.cluster_uuid, spec.fabric.clique_id),
        )
    except TopologyError as error:
        raise RecordError(f"spec.{error}") from error
    return Record(topology, None if wire.status is None else _report(wire.status))


def decode_report(data: Mapping[str, object]) -> Report:
    """The report in a bare ``status`` object. Raises :class:`RecordError`."""
    try:
        return _report(_Status.model_validate(data))
    except ValidationError as error:
        raise RecordError(first_error(error)) from error


def encode(topology: NodeTopology, report: Report | None = None) -> dict[str, object]:
    """The GPUTopology object of a node, as JSON-ready values; :func:`decode` gives it back."""
    spec = _Spec(
        resources=[
            _Resource(name=r.name, strategy=_literal(r.strategy), replicas=r.replicas)
            for r in topology.resources
        ],
        allocator=_Allocator(
            policy=_literal(topology.allocator.policy),
            plugin_version=topology.allocator.plugin_version,
            topology_manager_policy=_literal(topology.allocator.topology_manager_policy),
            topology_manager_scope=_literal(topology.allocator.topology_manager_scope),
            cpu_manager_policy=_literal(topology.allocator.cpu_manager_policy),
            memory_manager_policy=_literal(topology.allocator.memory_manager_policy),
        ),
        devices=[
            _Device(
                index=g.index,
                vendor=g.vendor,
                uuid=g.uuid,
                product=g.product,
                memory_bytes=g.memory,
                pci_bus_id=g.pci_bus_id,
                numa_node=g.numa_node,
                mig_mode=_literal(g.mig_mode),
                mig_instances=[
                    _MigInstance(uuid=m.uuid, profile=m.profile, memory_bytes=m.memory)
                    for m in g.mig_instances
                ]
                or None,
            )
            for g in topology.gpus
        ],
        links=[
            _Link(
                a=k.a,
                b=k.b,
                pcie=_literal(k.pcie.name) if k.pcie else None,
                nvlinks=k.nvlinks,
                via=k.via.value,
                nvlink_gbps=k.nvlink_one_way,
                one_sided=k.one_sided or None,
            )
            for k in topology.links
        ],
        nics=[
            _Nic(
                name=n.name,
                numa_node=n.numa_node,
                distances=[
                    _Distance(index=i, pcie=_literal(kind.name)) for i, kind in n.distances if kind
                ],
            )
            for n in topology.nics
        ],
        fabric=None
        if topology.fabric is None
        else _Fabric(clusterUUID=topology.fabric.cluster_uuid, clique_id=topology.fabric.clique_id),
    )
    found: dict[str, object] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": topology.name},
        "spec": _dump(spec),
    }
    if report is not None:
        found["status"] = encode_report(report, topology)
    return found


def encode_report(report: Report, topology: NodeTopology | None = None) -> dict[str, object]:
    """The ``status`` object of a report, as JSON-ready values.

    With the topology it has the summary that ``kubectl get`` shows.
    """
    status = _Status(
        bootID=report.boot_id,
        sequence=report.sequence,
        observed_at=report.observed_at or None,
        pods_resource_version=report.pods_version or None,
        allocatable=None if report.allocatable is None else sorted(report.allocatable),
        allocations=[
            _Allocation(
                podUID=a.pod_uid,
                namespace=a.namespace,
                pod=a.pod,
                container=a.container,
                resource=a.resource,
                device_ids=list(a.device_ids),
            )
            for a in report.allocations
        ],
        health=[
            _Health(
                uuid=h.uuid,
                healthy=h.healthy,
                reason=h.reason,
                since=h.since or None,
                links_down=list(h.links_down) or None,
                energy_millijoules=h.energy,
            )
            for h in report.health
        ],
        conditions=[
            _Condition(
                type=c.type,
                status="True" if c.status else "False",
                reason=c.reason,
                message=c.message,
                last_transition_time=c.since or None,
            )
            for c in report.conditions
        ],
        summary=None if topology is None else _summary(topology, report),
    )
    return _dump(status)


def _summary(topology: NodeTopology, report: Report) -> _Summary:
    """For people: a GPU is free of which no device is held and the kubelet would hand one out."""
    held = {base_uuid(i) for a in report.allocations for i in a.device_ids}
    offered = {base_uuid(i) for i in report.allocatable or ()}
    free = [
        gpu
        for gpu in topology.gpus
        if gpu.uuid not in held and (report.allocatable is None or gpu.uuid in offered)
    ]
    return _Summary(gpus=len(topology.gpus), free=len(free), links=topology.link_summary())


def first_error(error: ValidationError) -> str:
    """The first fault of a validation as one line: field, what is allowed, the value."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"]) or "record"
    given = fault.get("input")
    shown = "" if fault["type"] == "missing" else f", not {shortened(given)}"
    more = error.error_count() - 1
    rest = f" (and {more} more)" if more else ""
    return f"{where}: {fault['msg'][0].lower()}{fault['msg'][1:]}{shown}{rest}"


def shortened(value: object) -> str:
    """A value as Python writes it, cut to sixty characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known_only(data: Mapping[str, object]) -> dict[str, object]:
    """The parts of a hand-written object that are ours to check; metadata belongs to Kubernetes."""
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


def _literal(value: str | None) -> Any:
    """A string for a field that pydantic itself narrows to the allowed words."""
    return value


def _dump(model: BaseModel) -> dict[str, object]:
    return model.model_dump(by_alias=True, exclude_none=True)


def _gpu(d: _Device) -> Gpu:
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
    )


def _link(k: _Link) -> Link:
    pcie = LinkKind.UNKNOWN if k.pcie is None else LinkKind[k.pcie]
    return Link(k.a, k.b, pcie, k.nvlinks, Via(k.via), GBps(k.nvlink_gbps), bool(k.one_sided))


def _nic(n: _Nic) -> Nic:
    distances = tuple((d.index, LinkKind[d.pcie]) for d in n.distances)
    return Nic(n.name, distances, n.numa_node)


def _report(status: _Status) -> Report:
    allocatable = status.allocatable
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
        observed_at=status.observed_at or "",
        pods_version=status.pods_resource_version or "",
    )
