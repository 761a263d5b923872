"""State from a cluster file: GPUTopology objects, Pods, Nodes and MachineGroups in one YAML.

For trying things out, for `check`, and for whoever drives the extender without a cluster. Nodes
never go stale; a bind is a note in memory; whoever drives it plays the kubelet and feeds reports.
Of Node objects it keeps what they can allocate, which the simulation reads, and who may be sent
there.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from scheduler_extender.annotations import MANAGED
from scheduler_extender.quantities import quantity
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.pods import PodRecord, pod_record
from scheduler_extender.why.placed import Written, written_on
from scheduler_extender.wire import Node, Pod, Taint
from topology.codec import API_VERSION, Record, RecordError, decode, first_error, shortened
from topology.core.devices import GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology, TopologyError
from topology.core.report import Report
from topology.machines import Machine, UnknownMachine, machine
from topology.machines.mig import cut
from topology.yamltext import YamlTextError, documents

MAX_FILE = 256 * 1024 * 1024
MAX_GROUPED = 200_000
"""GPUs of all MachineGroups of a file together; a line each can ask for any number."""
SNAPSHOT = "gpu-topology.io/snapshot"
"""Annotation of a Node that a snapshot has written, with the version of what it says of the Node.
Snapshots before version 2 had no taints, and only the labels that domains of groups are told by."""
SNAPSHOT_VERSION = "2"


class ClusterFileError(ValueError):
    """A cluster file cannot be used; the message says which document, which field and why."""


@dataclass(frozen=True, slots=True)
class Allocatable:
    """What pods can have of a node: CPU in milli, memory in bytes, and how many pods."""

    cpu: int
    memory: int
    pods: int = 110


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What a cluster file describes; ``allocatable`` and ``labels`` are by node, ``written`` (the
    placement annotation) is by pod, where the file says them; ``cordoned`` are those nodes that it
    says to be so. Of the nodes in ``whole`` it has the whole Node object, as far as it says who may
    be sent there: all labels, and the ``taints``."""

    records: tuple[Record, ...]
    pods: tuple[PodRecord, ...]
    allocatable: Mapping[NodeName, Allocatable] = field(default_factory=dict)
    labels: Mapping[NodeName, Mapping[str, str]] = field(default_factory=dict)
    written: Mapping[PodUid, Written] = field(default_factory=dict)
    cordoned: frozenset[NodeName] = frozenset()
    taints: Mapping[NodeName, tuple[Taint, ...]] = field(default_factory=dict)
    whole: frozenset[NodeName] = frozenset()


class _Mig(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    profiles: Annotated[list[Annotated[str, Field(max_length=32)]], Field(min_length=1)]
    strategy: Literal["single", "mixed"] = "mixed"
    gpus: list[int] | None = None


class _Sharing(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    strategy: Literal["time-slicing", "mps"] = "time-slicing"
    replicas: Annotated[int, Field(ge=2, le=128)]
    resource: Literal["nvidia.com/gpu", "nvidia.com/gpu.shared"] = "nvidia.com/gpu"
    policy: Literal["distributed", "packed"] = "distributed"
    fail_requests_greater_than_one: bool | None = None

    def of(self, node: NodeTopology) -> NodeTopology:
        """The node with its GPUs shared so."""
        refuses = self.fail_requests_greater_than_one
        served = GpuResource(self.resource, self.strategy, self.replicas, refuses)
        facts = replace(node.allocator, policy=self.policy)
        return replace(node, resources=(served,), allocator=facts)


class _MachineGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    kind: Literal["MachineGroup"]
    api_version: Literal["gpu-topology.io/v1alpha1"] = "gpu-topology.io/v1alpha1"
    machine: str
    count: Annotated[int, Field(ge=1, le=100_000)]
    name_prefix: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*)$", max_length=240)]
    cpu: Annotated[str | int, Field(union_mode="left_to_right")] | None = None
    memory: Annotated[str | int, Field(union_mode="left_to_right")] | None = None
    mig: _Mig | None = None
    sharing: _Sharing | None = None


def load(path: Path) -> ClusterFile:
    """Read a cluster file. Raises :class:`ClusterFileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ClusterFileError(f"{path}: larger than {MAX_FILE:,} bytes")
        text = data.decode("utf-8")
    except OSError as error:
        raise ClusterFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterFileError(f"{path}: not UTF-8 text: {error.reason}") from error
    return parse(text, str(path))


def parse(text: str, name: str = "cluster file") -> ClusterFile:
    """Read a cluster file's text; ``name`` stands before every error."""
    parts: list[Iterable[Record]] = []
    pods: list[PodRecord] = []
    allocatable: dict[NodeName, Allocatable] = {}
    written: dict[PodUid, Written] = {}
    nodes: list[Node] = []
    grouped = 0
    for number, document in enumerate(_documents(text, name), 1):
        if document is None:
            continue
        where = f"{name}: document {number}"
        if not isinstance(document, Mapping):
            raise ClusterFileError(f"{where}: a mapping is needed, not {type(document).__name__}")
        for item in _items(document, where):
            kind = item.get("kind") if isinstance(item, Mapping) else None
            if kind == "GPUTopology":
                parts.append([_record(item, where)])
            elif kind == "MachineGroup":
                group = _group(item, where, MAX_GROUPED - grouped)
                grouped += group.gpus
                parts.append(group.records())
                if group.has is not None:
                    allocatable |= dict.fromkeys(group.names, group.has)
            elif kind == "Pod":
                pod = _pod(item, where)
                known = pod_record(pod, MANAGED, trusted=True)
                pods += [] if known is None else [known]
                placement = written_on(pod)
                if placement is not None:
                    written[PodUid(pod.metadata.uid)] = placement
            elif kind == "Node":
                node = _node(item, where)
                allocatable |= _allocatable_of(node, where)
                nodes.append(node)
            else:
                raise ClusterFileError(
                    f"{where}: kind: allowed are GPUTopology, MachineGroup, Node, Pod, List, "
                    f"not {shortened(kind)}"
                )
    # Nothing of a group is made before the whole file is known to be within bounds.
    records = list(chain.from_iterable(parts))
    _each_once(name, "node", (record.topology.name for record in records))
    _each_once(name, "Node", map(_name, nodes))
    _each_once(name, "pod", (pod.uid for pod in pods))
    if not records:
        raise ClusterFileError(f"{name}: no node in it; a GPUTopology or MachineGroup is needed")
    return ClusterFile(
        tuple(records),
        tuple(pods),
        allocatable,
        {_name(node): node.metadata.labels or {} for node in nodes},
        written,
        frozenset(_name(node) for node in nodes if node.spec.unschedulable),
        {_name(node): tuple(node.spec.taints) for node in nodes if node.spec.taints},
        frozenset(map(_name, filter(_is_whole, nodes))),
    )


def _items(document: Mapping[str, Any], where: str) -> list[Any]:
    """The objects of a document: those of a List, or itself."""
    if document.get("kind") != "List":
        return [document]
    items = document.get("items") or []
    if not isinstance(items, list):
        raise ClusterFileError(f"{where}: items: a list is needed, not {shortened(items)}")
    return items


def _each_once(file: str, what: str, names: Iterable[str]) -> None:
    """Refuse a file that says two things of one object: the later would hide the former."""
    seen: set[str] = set()
    for each in names:
        if each in seen:
            raise ClusterFileError(f"{file}: {what} {shortened(each)[1:-1]} is described twice")
        seen.add(each)


def _name(node: Node) -> NodeName:
    return NodeName(node.metadata.name)


def _is_whole(node: Node) -> bool:
    """Whether all labels and taints are there: as a snapshot writes a Node and as the API server
    gives it; and where somebody has written taints, who thought of it."""
    found = node.metadata
    return bool(SNAPSHOT in (found.annotations or {}) or found.uid or node.spec.taints)


def _documents(text: str, name: str) -> Iterator[Any]:
    # Not str.splitlines(): JSON may have other characters that end a line for it, such as U+2028.
    read = io.StringIO(text, newline=None)
    lines = [line.removesuffix("\n") for line in read if not line.startswith("#")]
    if lines[::2] == ["---"] * (len(lines) // 2) and all(x.startswith("{") for x in lines[1::2]):
        # As /v1/snapshot writes it; JSON is YAML, and read many times faster as what it is.
        try:
            yield from [json.loads(line) for line in lines[1::2]]
        except (ValueError, RecursionError):
            pass
        else:
            return
    try:
        yield from documents(text)
    except YamlTextError as error:
        raise ClusterFileError(f"{name}: {error}") from error


def _record(item: Mapping[str, Any], where: str) -> Record:
    version = item.get("apiVersion")
    if version != API_VERSION:
        raise ClusterFileError(
            f"{where}: apiVersion: allowed is {API_VERSION}, not {shortened(version)}"
        )
    try:
        record = decode(item, strict=True)
    except RecordError as error:
        raise ClusterFileError(f"{where}: {error}") from error
    return record if record.report is not None else replace(record, report=Report())


@dataclass(frozen=True, slots=True)
class _Group:
    """What a MachineGroup stands for."""

    machine: Machine
    prefix: str
    names: tuple[NodeName, ...]
    has: Allocatable | None
    mig: _Mig | None = None
    sharing: _Sharing | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs it has in all."""
        return len(self.names) * self.machine.size

    def records(self) -> Iterator[Record]:
        """Its nodes, made one by one."""
        for name in self.names:
            yield Record(self._node(name), Report())

    def _node(self, name: NodeName) -> NodeTopology:
        """One node. Raises :class:`TopologyError`."""
        node = self.machine.topology(name, group=self.prefix)
        mig = self.mig
        if self.sharing is not None:
            return self.sharing.of(node)
        if mig is None:
            return node
        return cut(node, mig.profiles, strategy=mig.strategy, gpus=mig.gpus)


def _group(item: Mapping[str, Any], where: str, room: int) -> _Group:
    """A group within bounds; ``room`` is how many GPUs are still allowed."""
    try:
        group = _MachineGroup.model_validate(item)
        kind = machine(group.machine)
    except ValidationError as error:
        raise ClusterFileError(f"{where}: {first_error(error)}") from error
    except UnknownMachine as error:
        raise ClusterFileError(f"{where}: machine: {error}") from error
    if group.count * kind.size > room:
        raise ClusterFileError(
            f"{where}: count: {group.count:,} × {kind.size} GPUs are too many; MachineGroups may "
            f"have {MAX_GROUPED:,} GPUs in all"
        )
    width = max(2, len(str(group.count - 1)))
    prefix = group.name_prefix
    names = tuple(NodeName(f"{prefix}{i:0{width}}") for i in range(group.count))
    given = {"cpu": group.cpu, "memory": group.memory}
    amounts = {k: v for k, v in given.items() if v is not None}
    has = _allocatable(amounts, where) if amounts else None
    if group.mig and group.sharing:
        raise ClusterFileError(f"{where}: allowed is one of mig and sharing")
    found = _Group(kind, prefix, names, has, group.mig, group.sharing)
    try:
        next(found.records())
    except TopologyError as error:
        raise ClusterFileError(f"{where}: {error}") from error
    return found


def _node(item: Mapping[str, Any], where: str) -> Node:
    try:
        node = msgspec.convert(item, Node)
    except msgspec.ValidationError as error:
        raise ClusterFileError(f"{where}: node: {error}") from error
    if not node.metadata.name:
        raise ClusterFileError(f"{where}: node: metadata.name is missing")
    return node


def _allocatable_of(node: Node, where: str) -> dict[NodeName, Allocatable]:
    amounts = node.status.allocatable
    return {} if not amounts else {NodeName(node.metadata.name): _allocatable(amounts, where)}


def _allocatable(amounts: Mapping[str, str | int], where: str) -> Allocatable:
    """Read quantities; what is absent is no limit."""
    found: dict[str, Decimal | int] = {}
    for name, most in (("cpu", 10**9), ("memory", 10**18), ("pods", 10**6)):
        try:
            found[name] = quantity(str(amounts[name])) if name in amounts else most
        except ValueError as error:
            raise ClusterFileError(f"{where}: {name}: {error}") from error
        if not 0 <= found[name] <= most:
            raise ClusterFileError(f"{where}: {name}: {amounts[name]} is not between 0 and {most}")
    return Allocatable(int(found["cpu"] * 1000), int(found["memory"]), int(found["pods"]))


def _pod(item: Mapping[str, Any], where: str) -> Pod:
    try:
        pod = read_pod(item)
    except ValueError as error:
        raise ClusterFileError(f"{where}: {error}") from error
    if not pod.metadata.uid:
        # Hand-written pods rarely carry one; their name is unique in a file.
        metadata = msgspec.structs.replace(
            pod.metadata, uid=f"{pod.metadata.namespace}/{pod.metadata.name}"
        )
        pod = msgspec.structs.replace(pod, metadata=metadata)
    return pod


def read_pod(item: object) -> Pod:
    """A Pod from parsed YAML or JSON; a :class:`ValueError` names the field that is wrong."""
    unquoted = _unquoted(item)
    if unquoted is not None:
        raise ValueError(unquoted)
    try:
        pod = msgspec.convert(item, Pod)
    except msgspec.ValidationError as error:
        raise ValueError(f"pod: {error}") from error
    if not pod.metadata.name:
        raise ValueError("pod: metadata.name is missing")
    namespace = pod.metadata.namespace or "default"
    metadata = msgspec.structs.replace(pod.metadata, namespace=namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


def _unquoted(item: object) -> str | None:
    """What is wrong with an annotation whose value YAML does not read as a text, and the remedy.

    The API server refuses such a pod with less to say.
    """
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for key, value in annotations.items() if isinstance(annotations, Mapping) else ():
        if isinstance(value, str):
            continue
        wrong = f"pod: metadata.annotations: {shortened(key)[1:-1]}: a text is needed"
        if isinstance(value, (bool, int, float)):
            written = str(value).lower() if isinstance(value, bool) else str(value)
            return f'{wrong}, and YAML reads {written} as another thing: quote it, "{written}"'
        return f"{wrong}, not {shortened(value)}"
    return None


def feed(cluster: Cluster, content: ClusterFile) -> None:
    """Put everything a file describes into the cluster."""
    for record in content.records:
        cluster.put_record(record.topology, record.report)
    for name, labels in content.labels.items():
        cluster.put_labels(
            name,
            labels,
            cordoned=name in content.cordoned,
            taints=content.taints.get(name, ()),
            whole=name in content.whole,
        )
    for pod in content.pods:
        cluster.put_pod(pod)
