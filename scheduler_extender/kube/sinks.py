"""Decode the objects that the reflectors bring, and put them into the cluster.

An unreadable object costs only that object, never the others.
"""

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import nullcontext, suppress
from typing import Protocol

import msgspec
import structlog

from scheduler_extender.annotations import IMPLICIT_NAME, RESUME, TERM, asks_for_any, managed_among
from scheduler_extender.clientlimits import MAX_RECORD, MAX_RECORD_VALUES
from scheduler_extender.kube.bindable import Bindable
from scheduler_extender.ratelimit import LogLimit
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.occupants import UNKNOWN_VERSION
from scheduler_extender.state.pods.attributes import amounts_of
from scheduler_extender.state.pods.budgets import Budget, BudgetObject, budget_of
from scheduler_extender.state.pods.record import counting_record
from scheduler_extender.wire import UNREADABLE, Node, ObjectMeta, Pod, node_decoder, pod_decoder
from topology.codec import KnownHardware, Record, RecordError, decode, decode_report
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.memo import memoized
from topology.core.report import Report
from topology.times import seconds_of

log = structlog.get_logger(__name__)

# Labels of Node Feature Discovery, hundreds on a node. The features of a CPU are no domain of a
# group. A selector that names such a label matches no node for us; a plan then leaves the node out.
NOT_KEPT = "feature.node.kubernetes.io/"


MOST_OF_A_NODE = 1000  # the most labels, taints and resources of one Node that are read
OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
# Seconds between two equal log lines about one object; lines a second; lines at once.
PAUSE, RATE, BURST = 3600.0, 0.1, 8
RECORDS_PATH = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS_PATH = "/api/v1/pods"
NODES_PATH = "/api/v1/nodes"
BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"
# Objects in one page of a list. At most two pages are in memory at one time. A record may be 1.5 MB
# large.
PAGE = 500
RECORDS_PAGE = 100


def _within_bounds(node: Node, managed: tuple[str, ...]) -> tuple[Node, dict[str, int]]:
    """Return the node with its over-long lists replaced, and the length of each such list.

    A node with too many labels counts as one without labels, and a node with too many taints as
    cordoned. A node with too many resources offers only those of :data:`OWN_RESOURCES` and the
    ``managed`` ones.
    """
    metadata, spec, status = node.metadata, node.spec, node.status
    said = {
        "metadata.labels": len(metadata.labels or ()),
        "spec.taints": len(spec.taints or ()),
        "status.allocatable": len(status.allocatable or ()),
    }
    excess = {field: count for field, count in said.items() if count > MOST_OF_A_NODE}
    if "metadata.labels" in excess:
        metadata = msgspec.structs.replace(metadata, labels=None)
    if "spec.taints" in excess:
        spec = msgspec.structs.replace(spec, taints=None, unschedulable=True)
    if "status.allocatable" in excess:
        given = status.allocatable or {}
        names = (*OWN_RESOURCES, *managed_among(given, managed)[:MOST_OF_A_NODE])
        left = {name: given[name] for name in names if name in given}
        status = msgspec.structs.replace(status, allocatable=left)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec, status=status), excess


@memoized
def _label(key: str, value: str) -> tuple[str, str]:
    """Return the label. Nodes with the same label share it."""
    return key, value


class _Named(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class _RecordParts(msgspec.Struct):
    """A GPUTopology object whose parts are not decoded yet. Other parts are skipped."""

    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


metadata_decoder = msgspec.json.Decoder(_Named)
parts_decoder = msgspec.json.Decoder(_RecordParts)
_decode_budget = msgspec.json.Decoder(BudgetObject).decode


def metadata_of(raw: msgspec.Raw) -> ObjectMeta | None:
    """Return an object's metadata; None if not even that can be read."""
    try:
        return metadata_decoder.decode(raw).metadata
    except UNREADABLE:
        return None


class ObjectSink:
    """A sink for the objects of one collection.

    An object that cannot be taken in costs neither the rest of a list nor the watch, whether the
    object or our code is wrong. It is logged once.
    """

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._limit = LogLimit(PAUSE, RATE, BURST)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take in an object that is new or changed."""
        try:
            self._take(obj)
        except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
            self._tell_bad(obj, error)

    def _take(self, obj: msgspec.Raw) -> str:
        """Take in an object and return its name."""
        raise NotImplementedError

    def _names(self, objects: Iterable[msgspec.Raw]) -> set[NodeName]:
        """Take in every object of a list, and return the names of those that have one."""
        names = set()
        for raw in objects:
            try:
                names.add(NodeName(self._take(raw)))
            except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
                self._tell_bad(raw, error)
                if (metadata := metadata_of(raw)) is not None:
                    names.add(NodeName(metadata.name))
        return names

    def _tell_bad(self, obj: msgspec.Raw, error: Exception) -> None:
        metadata = metadata_of(obj) or ObjectMeta()
        which = {"namespace": metadata.namespace, "name": metadata.name}
        key = (metadata.namespace, metadata.name, repr(error))
        if isinstance(error, UNREADABLE):
            self._tell("object cannot be read", key, **which, problem=str(error))
        else:
            self._tell("object cannot be added to the cache", key, **which, exc_info=error)

    def _tell(self, event: str, key: Hashable, **said: object) -> None:
        """Log a problem of an object, once for each ``key``, however often the object is written.

        An ``exc_info`` means that our code is wrong.
        """
        untold = self._limit.untold((event, key))
        if untold is not None:
            write = log.error if "exc_info" in said else log.warning
            write(event, **said, untold=untold)


def _parts(obj: msgspec.Raw) -> dict[str, bytes]:
    """Return the spec and status of a GPUTopology object, if present.

    Raises :class:`RecordError` if they are larger than any agent's, or cannot be read.
    """
    try:
        parts = msgspec.structs.asdict(parts_decoder.decode(obj))
        given = {part: bytes(raw) for part, raw in parts.items() if raw is not msgspec.UNSET}
        size = sum(map(len, given.values()))
        if size > MAX_RECORD:
            raise RecordError(
                f"spec and status have {size} bytes; at most {MAX_RECORD} are allowed"
            )
        if (values := sum(raw.count(b",") for raw in given.values())) > MAX_RECORD_VALUES:
            most = f"at most {MAX_RECORD_VALUES} are allowed"
            raise RecordError(f"spec and status have more than {values} values; {most}")
    except UNREADABLE as error:
        raise RecordError(f"the object cannot be read: {error}") from error
    return given


class RecordFeed(Protocol):
    """What takes in agents' records: :class:`.Cache`, or :class:`.DraNodes` before it."""

    def put_record(
        self, topology: NodeTopology, report: Report | None, *, uid: str, age: float
    ) -> None:
        """Take in a record of a node."""

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Take in that a node's record cannot be used."""

    def drop_record(self, name: NodeName) -> None:
        """Take in that a record is gone."""

    def keep_records(self, names: set[NodeName]) -> None:
        """Take in that all records but these are gone."""


class RecordSink(ObjectSink):
    """A sink that puts GPUTopology objects into the cluster.

    An unreadable one is a problem of its node.

    ``now`` is the time of day in seconds since 1970; a record says when its agent looked. ``feed``
    takes the records, or the cluster itself by default.
    """

    def __init__(
        self,
        cluster: Cache,
        now: Callable[[], float] = time.time,
        feed: RecordFeed | None = None,
    ) -> None:
        super().__init__(cluster)
        self._now = now
        self._feed: RecordFeed = feed or cluster
        self._hardware = KnownHardware()

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list."""
        self._feed.keep_records(self._names(objects))

    def _take(self, obj: msgspec.Raw) -> str:
        metadata = metadata_decoder.decode(obj).metadata
        name = NodeName(metadata.name)
        try:
            record = self._decoded(metadata.name, _parts(obj))
            report = record.report
            # When the agent looked, by its own clock; None if the report does not say.
            observed = seconds_of(report.observed_at) if report is not None else None
            age = 0.0 if observed is None else self._now() - observed
            self._feed.put_record(record.topology, report, uid=metadata.uid, age=age)
        except RecordError as error:
            problem = str(error)
            self._tell("topology record unusable", (name, problem), node=name, problem=problem)
            self._feed.put_problem(name, problem)
        except Exception as error:  # noqa: BLE001 (told)
            # A fault of our code costs this node, not the list with its record.
            key = (name, repr(error))
            self._tell(
                "topology record cannot be added to the cache", key, node=name, exc_info=error
            )
            self._feed.put_problem(name, f"internal error: {type(error).__name__}")
        return metadata.name

    def _decoded(self, name: str, parts: dict[str, bytes]) -> Record:
        """Return a decoded record. Hardware of a known kind is not decoded again."""
        spec, status = parts.get("spec", b""), parts.get("status")
        known = self._hardware.topology(name, spec) if status is not None else None
        if known is not None and status is not None:
            # If the status is wrong, decoding the whole object says in which field.
            with suppress(RecordError, *UNREADABLE):
                return Record(known, decode_report(msgspec.json.decode(status)))
        try:
            values = {part: msgspec.json.decode(raw) for part, raw in parts.items()}
        except UNREADABLE as error:
            raise RecordError(f"the object cannot be read: {error}") from error
        record = decode({"metadata": {"name": name}, **values})
        self._hardware.keep(spec, record.topology)
        return record

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion."""
        self._feed.drop_record(NodeName(metadata_decoder.decode(obj).metadata.name))


class PodSink(ObjectSink):
    """A sink that puts pods that ask for GPUs into the cluster.

    ``now`` is the time of day in seconds since 1970; a pod says when its kubelet answered.
    """

    def __init__(
        self,
        cluster: Cache,
        now: Callable[[], float] = time.time,
        bindable: Bindable | None = None,
    ) -> None:
        super().__init__(cluster)
        self._now = now
        self._bindable = bindable
        names = {
            name.rstrip("*").encode() for name in (*cluster.settings.managed, IMPLICIT_NAME, TERM)
        }
        # A text with nvidia.com/gpu.shared also contains nvidia.com/gpu.
        self._named = [n for n in names if not any(m in n for m in names - {n})]

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list of pods, in the order in which their kubelets have answered."""
        pods: list[tuple[Pod, msgspec.Raw]] = []
        seen = set()
        for raw in filter(self._concerns_us, objects):
            try:
                pods.append((pod_decoder.decode(raw), raw))
            except UNREADABLE as error:
                self._tell_bad(raw, error)
                if (metadata := metadata_of(raw)) is not None:
                    seen.add(PodUid(metadata.uid))
        # Times of Kubernetes are in UTC, so their texts ascend. Among pods of the same second the
        # rejected ones come first.
        pods.sort(
            key=lambda pair: (pair[0].status.start_time or "", pair[0].status.phase != "Failed")
        )
        with self._bindable.whole() if self._bindable is not None else nullcontext():
            for pod, raw in pods:
                seen.add(PodUid(pod.metadata.uid))
                try:
                    self._put(pod, listed=True)
                except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
                    self._tell_bad(raw, error)
        self._cluster.keep_pods(seen, version_of(resource_version))

    def _take(self, obj: msgspec.Raw) -> str:
        if not self._concerns_us(obj):
            return ""
        pod = pod_decoder.decode(obj)
        self._put(pod)
        return pod.metadata.name

    def _concerns_us(self, obj: msgspec.Raw) -> bool:
        """Check whether a pod's text has a managed resource's name, or the mark of a term.

        So most pods of a cluster need not be decoded. An API server writes these names literally:
        its JSON escapes only quotes, control characters, and ``<``, ``>`` and ``&``.
        """
        text = bytes(obj)
        return any(name in text for name in self._named)

    def _put(self, pod: Pod, *, listed: bool = False) -> None:
        managed = self._cluster.settings.managed
        record = counting_record(pod, managed)
        try:
            if record is not None:
                age = 0.0 if record.started is None else self._now() - record.started
                self._cluster.put_pod(record, age, listed=listed)
        finally:
            # Whatever else fails, a takeover must know every pod that could be bound.
            if self._bindable is not None:
                self._bindable.take(pod, managed=record is not None or asks_for_any(pod, managed))

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion."""
        pod = metadata_decoder.decode(obj).metadata
        if self._bindable is not None:
            self._bindable.drop(PodUid(pod.uid))
        self._cluster.drop_pod(PodUid(pod.uid), version_of(pod.resource_version))


def version_of(resource_version: str) -> int:
    """Return a resourceVersion as a number; :data:`UNKNOWN_VERSION` if it is none."""
    comparable = resource_version.isdecimal() and len(resource_version) <= 20
    return int(resource_version) if comparable else UNKNOWN_VERSION


class NodeSink(ObjectSink):
    """A sink for Node objects.

    They say whether the device plugin advertises GPUs at all, and until when an operator forgives
    the node's refusals (the annotation :data:`.RESUME`).
    """

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list."""
        self._cluster.keep_nodes(self._names(objects))

    def _take(self, obj: msgspec.Raw) -> str:
        managed = self._cluster.settings.managed
        node, excess = _within_bounds(node_decoder.decode(obj), managed)
        name = NodeName(node.metadata.name)
        if excess:
            told = {"node": name, "allowed": MOST_OF_A_NODE, **excess}
            self._tell("a Node object is too large", name, **told)
        offered = node.status.allocatable
        advertises = offered is None or bool(managed_among(offered, managed))
        resumed = seconds_of((node.metadata.annotations or {}).get(RESUME, "")) or 0.0
        labels = dict(
            _label(key, value)
            for key, value in (node.metadata.labels or {}).items()
            if not key.startswith(NOT_KEPT)
        )
        node_object = NodeObject(
            advertises_none=not advertises,
            labels=labels,
            cordoned=node.spec.unschedulable,
            taints=tuple(node.spec.taints or ()),
            allocatable=None if offered is None else amounts_of(offered),
        )
        self._cluster.put_node(name, node_object, resumed)
        return node.metadata.name

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion. The node owns its record, so that is deleted with it."""
        self._cluster.drop_node(NodeName(metadata_decoder.decode(obj).metadata.name))


class BudgetSink(ObjectSink):
    """A sink that puts PodDisruptionBudgets into the cluster.

    Nothing waits for them. Until their list has come, and while one of them cannot be read, no
    evictions are planned.
    """

    def __init__(self, cluster: Cache) -> None:
        super().__init__(cluster)
        # None for a budget that cannot be read. One without a readable name is at ("", "") until
        # the next list.
        self._known: dict[tuple[str, str], Budget | None] = {}

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list."""
        self._known = dict(map(self._read, objects))
        self._put()

    def apply(self, obj: msgspec.Raw) -> None:
        """Take in an object that is new or changed."""
        where, budget = self._read(obj)
        self._known[where] = budget
        self._put()

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion."""
        gone = metadata_decoder.decode(obj).metadata
        self._known.pop((gone.namespace, gone.name), None)
        self._put()

    def _put(self) -> None:
        known = [budget for _, budget in sorted(self._known.items()) if budget is not None]
        self._cluster.budgets = tuple(known) if len(known) == len(self._known) else None

    def _read(self, obj: msgspec.Raw) -> tuple[tuple[str, str], Budget | None]:
        """Return a budget, or None if it cannot be read, with its namespace and name."""
        try:
            budget = budget_of(_decode_budget(obj))
        except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
            self._tell_bad(obj, error)
            metadata = metadata_of(obj) or ObjectMeta()
            return (metadata.namespace, metadata.name), None
        return (budget.namespace, budget.name), budget
