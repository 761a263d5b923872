"""Read state from a cluster file.

It is one YAML file with GPUTopology objects, Pods, Nodes, Events, MachineGroups and
PodDisruptionBudgets.

It serves to try things out, for `check`, and for programs that drive the extender without a
cluster. Nodes never go stale. A bind is a note in memory. The program plays the kubelet and feeds
reports. Of Node objects the file keeps the allocatable amounts, which the simulation reads, and the
fields that say which pods may run there.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scheduler_extender.annotations import MANAGED, managed_among
from scheduler_extender.explain.placedpod import Written, written_on
from scheduler_extender.files.machinegroups import (
    MAX_GROUPED,
    Allocatable,
    allocatable_of,
    read_group,
)
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import amounts_of
from scheduler_extender.state.pods.budgets import KIND, Budget, BudgetObject, budget_of
from scheduler_extender.state.pods.record import PodRecord, pod_record, requesting_record
from scheduler_extender.wire import Event, Node, Pod
from topology.codec import API_VERSION, Record, decode, shortened
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.yamltext import YamlTextError, documents

MACHINES = "([a-z0-9][a-z0-9.-]*)=([1-9][0-9]{0,5})"  # a machine of the catalogue, and a count
ALLOWED = "; allowed are a cluster file, or machines with counts, such as hgx-h100-8=2"
MAX_FILE = 256 * 1024 * 1024
# The annotation of a Node from a snapshot. It means that the file has all labels and taints of the
# Node. Its value is the version of the format. All versions are read alike.
SNAPSHOT = "gpu-topology.io/snapshot"
SNAPSHOT_VERSION = "1"


Object = TypeVar("Object", Event, Node, BudgetObject, Pod)


class ClusterFileError(ValueError):
    """The cluster file cannot be used. The message says which document, which field and why."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The content of a cluster file."""

    records: tuple[Record, ...]
    pods: tuple[PodRecord, ...]
    allocatable: Mapping[NodeName, Allocatable] = field(default_factory=dict)  # if stated
    nodes: dict[NodeName, NodeObject] = field(default_factory=dict)
    written: Mapping[PodUid, Written] = field(default_factory=dict)  # the placement annotations
    budgets: tuple[Budget, ...] = ()  # all that exist
    # Waiting pods that ask for the GPUs of their claims. No file has claims, so they are not
    # evaluated.
    claiming: tuple[PodRecord, ...] = ()
    events: tuple[Event, ...] = ()


def load(
    path: Path, progress: Callable[[float], object] = bool, *, bare: bool = False
) -> ClusterFile:
    """Read a cluster file; ``-`` is standard input. Raises :class:`ClusterFileError`.

    A path such as ``hgx-h100-8=2,l40s-8=4``, where no file is, stands for a MachineGroup of each
    machine. ``progress`` is called with the part that is read, from 0 to 1. A ``bare`` file may
    have no records.
    """
    piped = str(path) == "-"
    name = "standard input" if piped else str(path)
    try:
        with open(0, "rb", closefd=False) if piped else path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ClusterFileError(f"{name}: larger than {MAX_FILE:,} bytes")
        text = data.decode("utf-8")
    except OSError as error:
        if not re.fullmatch(f"({MACHINES},)*{MACHINES}", name):
            allowed = ALLOWED if isinstance(error, FileNotFoundError) else ""
            raise ClusterFileError(f"{name}: {error.strerror}{allowed}") from error
        text = "".join(
            f"---\n{{kind: MachineGroup, machine: '{kind}', count: {n}, namePrefix: '{kind}-'}}\n"
            for kind, n in re.findall(MACHINES, name)
        )
    except UnicodeDecodeError as error:
        raise ClusterFileError(f"{name}: not UTF-8 text: {error.reason}") from error
    return parse(text, name, progress, bare=bare)


def parse(
    text: str,
    name: str = "cluster file",
    progress: Callable[[float], object] = bool,
    *,
    bare: bool = False,
) -> ClusterFile:
    """Read the text of a cluster file. ``name`` stands before every error."""
    content = _Objects()
    for number, document in enumerate(_documents(text, name, progress), 1):
        if document is None:
            continue
        where = f"{name}: document {number}"
        if not isinstance(document, Mapping):
            raise ClusterFileError(f"{where}: a mapping is needed, not {type(document).__name__}")
        for item in _items(document, where):
            content.take(item, where)
    return content.whole(name, bare=bare)


class _Objects:
    """The objects of a cluster file, collected one by one."""

    def __init__(self) -> None:
        self._parts: list[Iterable[Record]] = []
        self._pods: list[PodRecord] = []
        self._allocatable: dict[NodeName, Allocatable] = {}
        self._written: dict[PodUid, Written] = {}
        self._nodes: list[Node] = []
        self._budgets: list[Budget] = []
        self._claiming: list[PodRecord] = []
        self._events: list[Event] = []
        self._grouped = 0
        self._grouped_nodes: dict[NodeName, NodeObject] = {}

    def take(self, item: Any, where: str) -> None:
        """Take in one object. Raises :class:`ClusterFileError`."""
        kinds: dict[object, Callable[[Any], None]] = {
            "Event": lambda item: self._events.append(_converted(item, Event, "event")),
            "GPUTopology": lambda item: self._parts.append([_record(item)]),
            "MachineGroup": self._take_group,
            "Node": self._take_node,
            "Pod": self._take_pod,
            KIND: lambda item: self._budgets.append(_budget(item)),
        }
        kind = item.get("kind") if isinstance(item, Mapping) else None
        take = kinds.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise ClusterFileError(
                f"{where}: kind: allowed are Event, GPUTopology, List, MachineGroup, Node, Pod, "
                f"{KIND}, not {shortened(kind)}"
            )
        try:
            take(item)
        except ValueError as error:
            raise ClusterFileError(f"{where}: {error}") from error

    def _take_group(self, item: Any) -> None:
        group = read_group(item, MAX_GROUPED - self._grouped)
        self._grouped += group.gpus
        self._parts.append(group.records())
        if group.amounts:
            self._allocatable |= dict.fromkeys(group.names, allocatable_of(group.amounts))
            given = NodeObject(allocatable=amounts_of(group.amounts), partial=True)
            self._grouped_nodes |= dict.fromkeys(group.names, given)

    def _take_node(self, item: Any) -> None:
        node = _converted(item, Node, "node")
        if node.status.allocatable:
            self._allocatable[_name(node)] = allocatable_of(node.status.allocatable)
        self._nodes.append(node)

    def _take_pod(self, item: Any) -> None:
        pod = _pod(item)
        known = pod_record(pod, MANAGED, trusted=True) or requesting_record(pod, MANAGED)
        if known is not None and known.claim_constraints is None:
            self._pods.append(known)
        elif known is not None and not (known.node or known.terminating or known.ended):
            self._claiming.append(known)
        placement = written_on(pod)
        if placement is not None:
            self._written[PodUid(pod.metadata.uid)] = placement

    def _node_object(self, node: Node) -> NodeObject:
        """Return the content of a Node.

        If it has no allocatable amounts, its MachineGroup's are used.
        """
        said, grouped = _node_object(node), self._grouped_nodes.get(_name(node))
        if grouped is None or said.allocatable is not None:
            return said
        return replace(said, allocatable=grouped.allocatable, partial=True)

    def whole(self, name: str, *, bare: bool = False) -> ClusterFile:
        """Return the complete file.

        Raises :class:`ClusterFileError` if an object is defined twice.
        """
        pods, nodes, budgets = self._pods, self._nodes, self._budgets
        # No node of a group is made before the whole file is known to be within its limits.
        records = list(chain.from_iterable(self._parts))
        _each_once(name, "node", (record.topology.name for record in records))
        _each_once(name, "Node", map(_name, nodes))
        _each_once(name, "pod", (pod.uid for pod in pods))
        _each_once(name, KIND, (f"{each.namespace}/{each.name}" for each in budgets))
        if not records and nodes and not bare:
            raise ClusterFileError(
                f"{name}: no GPUTopology describes the GPUs of the Node objects; add the output "
                "of kubectl get gputopologies -o yaml"
            )
        if not records and not nodes:
            raise ClusterFileError(
                f"{name}: the file has no node; add a GPUTopology or a MachineGroup"
            )
        return ClusterFile(
            tuple(records),
            tuple(pods),
            self._allocatable,
            self._grouped_nodes | {_name(node): self._node_object(node) for node in nodes},
            self._written,
            tuple(sorted(budgets, key=lambda each: (each.namespace, each.name))),
            tuple(self._claiming),
            tuple(self._events),
        )


def _items(document: Mapping[str, Any], where: str) -> list[Any]:
    """Return the objects of a document: those of a List, or the document itself."""
    if document.get("kind") != "List":
        return [document]
    items = document.get("items") or []
    if not isinstance(items, list):
        raise ClusterFileError(f"{where}: items: a list is needed, not {shortened(items)}")
    return items


def _each_once(file: str, what: str, names: Iterable[str]) -> None:
    """Refuse a file that describes an object twice.

    The later description would hide the earlier one.
    """
    seen: set[str] = set()
    for each in names:
        if each in seen:
            raise ClusterFileError(f"{file}: {what} {shortened(each)[1:-1]} is defined twice")
        seen.add(each)


def _name(node: Node) -> NodeName:
    return NodeName(node.metadata.name)


def _node_object(node: Node) -> NodeObject:
    """Return what a Node says about the pods that may run on it.

    A Node from the API server or from a snapshot is complete. A hand-written one need not have all
    allocatable amounts.
    """
    metadata, spec, amounts = node.metadata, node.spec, node.status.allocatable
    from_server = bool(SNAPSHOT in (metadata.annotations or {}) or metadata.uid)
    return NodeObject(
        exists=from_server or bool(spec.taints),  # written taints are complete
        advertises_none=from_server and bool(amounts) and not managed_among(amounts or (), MANAGED),
        labels=metadata.labels or {},
        cordoned=spec.unschedulable,
        taints=tuple(spec.taints or ()),
        allocatable=amounts_of(amounts) if amounts else None,
        partial=not from_server,
    )


def _documents(text: str, name: str, progress: Callable[[float], object]) -> Iterator[Any]:
    # Not str.splitlines(): it also splits at characters that JSON texts may contain, such as
    # U+2028.
    read = io.StringIO(text, newline=None)
    lines = [line.removesuffix("\n") for line in read if not line.startswith("#")]
    objects = [text] if text.startswith("{") else []
    if lines[::2] == ["---"] * (len(lines) // 2) and all(x.startswith("{") for x in lines[1::2]):
        objects = lines[1::2]  # the format of /v1/snapshot
    try:
        # JSON is YAML, and is read many times faster as JSON.
        yield from [json.loads(each, object_pairs_hook=_with_keys_once) for each in objects]
    except (ValueError, RecursionError):
        objects = []
    if objects:
        return
    try:
        yield from documents(text, progress)
    except YamlTextError as error:
        raise ClusterFileError(f"{name}: {error}") from error


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises :class:`ValueError` if a key stands twice in it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _record(item: Mapping[str, Any]) -> Record:
    version = item.get("apiVersion")
    if version != API_VERSION:
        raise ValueError(f"apiVersion: allowed is {API_VERSION}, not {shortened(version)}")
    record = decode(item, strict=True)
    return record if record.report is not None else replace(record, report=Report())


def _converted(item: object, kind: type[Object], what: str) -> Object:
    """Convert an object from parsed YAML or JSON. Raises :class:`ValueError`."""
    try:
        made = msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {_in_words(str(error))}") from error
    if not made.metadata.name:
        raise ValueError(f"{what}: metadata.name is missing")
    return made


_FORMS = {
    "object": "a mapping",
    "array": "a list",
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "null": "nothing",
}


def _in_words(said: str) -> str:
    """Return msgspec's message about a value of the wrong type in the words of our own messages.

    >>> _in_words("Expected `array | null`, got `int` - at `$.spec.containers`")
    'spec.containers: a list is needed, not a whole number'
    """
    found = re.fullmatch(r"Expected `(\w+)[^`]*`, got `(\w+)` - at `\$\.(.*)`", said)
    if found is None:
        return said
    return f"{found[3]}: {_FORMS.get(found[1])} is needed, not {_FORMS.get(found[2])}"


def _budget(item: object) -> Budget:
    budget = budget_of(_converted(item, BudgetObject, KIND))
    return budget if budget.namespace else replace(budget, namespace="default")


def _pod(item: object) -> Pod:
    pod = read_pod(item)
    if pod.metadata.uid:
        return pod
    # Hand-written pods rarely have a UID. Their names are unique in a file.
    uid = f"{pod.metadata.namespace}/{pod.metadata.name}"
    metadata = msgspec.structs.replace(pod.metadata, uid=uid)
    return msgspec.structs.replace(pod, metadata=metadata)


def read_pod(item: object) -> Pod:
    """Return a Pod from parsed YAML or JSON.

    Raises :class:`ValueError`, which names the wrong field.
    """
    unquoted = _unquoted(item)
    if unquoted is not None:
        raise ValueError(unquoted)
    pod = _converted(item, Pod, "pod")
    namespace = pod.metadata.namespace or "default"
    metadata = msgspec.structs.replace(pod.metadata, namespace=namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


def _unquoted(item: object) -> str | None:
    """Return what is wrong with an annotation that YAML does not read as a text, and the remedy.

    The API server refuses such a pod with a less clear message.
    """
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for key, value in annotations.items() if isinstance(annotations, Mapping) else ():
        if isinstance(value, str):
            continue
        wrong = f"pod: metadata.annotations: {shortened(key)[1:-1]}: a text is needed"
        if isinstance(value, (bool, int, float)):
            written = str(value).lower() if isinstance(value, bool) else str(value)
            return f'{wrong}, and YAML does not read {written} as a text; quote it: "{written}"'
        return f"{wrong}, not {shortened(value)}"
    return None


def feed(cluster: Cache, content: ClusterFile) -> None:
    """Put everything that a file describes into the cluster."""
    for record in content.records:
        cluster.put_record(record.topology, record.report)
    for name, node_object in content.nodes.items():
        cluster.put_labels(name, node_object)
    for pod in content.pods:
        cluster.put_pod(pod)
    cluster.budgets = content.budgets


def assumed(content: ClusterFile) -> str:
    """Return the note that running pods count as unacknowledged; empty if there are none.

    No report of the file shows their GPUs.
    """
    shown = {
        allocation.pod_uid
        for record in content.records
        if record.report is not None
        for allocation in record.report.allocations
    }
    there = {record.topology.name for record in content.records}
    pods = [
        pod
        for pod in content.pods
        if pod.phase == "Running" and pod.node in there and pod.uid not in shown
    ]
    if not pods:
        return ""
    first, more = f"{pods[0].namespace}/{pods[0].name}", len(pods) - 1
    who = f"{first} and {more:,} more pods count" if more else f"{first} counts"
    whose = "their" if more else "its"
    return f"{who} as assumed, because no status.allocations of a GPUTopology names {whose} GPUs"
