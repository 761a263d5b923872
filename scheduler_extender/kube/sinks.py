"""What the reflectors bring is decoded here, and put into the cluster.

An object that cannot be read costs that object, never the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress

import msgspec
import structlog

from scheduler_extender.annotations import RESUME, TERM, asks_for_any, managed_among
from scheduler_extender.kube.bindable import Bindable
from scheduler_extender.limits import MAX_RECORD, MAX_RECORD_VALUES
from scheduler_extender.ratelimit import RateLimit
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.node.departures import UNKNOWN_VERSION
from scheduler_extender.state.pods.record import pod_record
from scheduler_extender.state.pods.standing import amounts_of
from scheduler_extender.wire import Node, ObjectMeta, Pod, node_decoder, pod_decoder
from topology.codec import KnownHardware, Record, RecordError, decode, decode_report
from topology.core.devices import NodeName, PodUid
from topology.core.remembering import remembered
from topology.core.report import Report
from topology.times import seconds_of

log = structlog.get_logger(__name__)

NOT_KEPT = "feature.node.kubernetes.io/"
"""Labels of Node Feature Discovery, hundreds on a node: what a CPU can do is no domain of a group.
A selector that names one matches no node for us: then a plan leaves the node out."""


MOST_OF_A_NODE = 1000  # labels, taints and resources of one Node that are read
OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
PAUSE, RATE, BURST = 3600.0, 0.1, 8
"""Seconds between two log lines about what one Node says; lines a second, at once."""


def _within_bounds(
    node: Node, managed: tuple[str, ...], tell: Callable[[str, dict[str, int]], None]
) -> Node:
    """The node as far as it is read: with more labels than any sane one it counts as one without
    labels, with more taints as cordoned, and with more resources it gives out those of
    :data:`OWN_RESOURCES` and the ``managed`` ones. ``tell`` is told how many each field has."""
    metadata, spec, status = node.metadata, node.spec, node.status
    said = {
        "metadata.labels": len(metadata.labels or ()),
        "spec.taints": len(spec.taints or ()),
        "status.allocatable": len(status.allocatable or ()),
    }
    found = {field: count for field, count in said.items() if count > MOST_OF_A_NODE}
    if not found:
        return node
    tell(metadata.name, found)
    if "metadata.labels" in found:
        metadata = msgspec.structs.replace(metadata, labels=None)
    if "spec.taints" in found:
        spec = msgspec.structs.replace(spec, taints=None, unschedulable=True)
    if "status.allocatable" in found:
        given = status.allocatable or {}
        names = (*OWN_RESOURCES, *managed_among(given, managed)[:MOST_OF_A_NODE])
        left = {name: given[name] for name in names if name in given}
        status = msgspec.structs.replace(status, allocatable=left)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec, status=status)


@remembered
def _label(key: str, value: str) -> tuple[str, str]:
    """A label; nodes with the same one share it."""
    return key, value


class _Named(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class _RecordParts(msgspec.Struct):
    """A GPUTopology object whose parts are not decoded yet; what is not ours is passed over."""

    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


metadata_decoder = msgspec.json.Decoder(_Named)
parts_decoder = msgspec.json.Decoder(_RecordParts)


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _when_answered(pod: Pod) -> tuple[str, bool]:
    """A key by which pods are sorted as their kubelets answered; refused ones are the first of a
    second. Times of Kubernetes are in UTC, so their texts ascend."""
    return pod.status.start_time or "", pod.status.phase != "Failed"


def _names(objects: Iterable[msgspec.Raw], apply: Callable[[msgspec.Raw], str]) -> set[NodeName]:
    """Apply every object of a list; the names of those that have one.

    One that cannot be read must not cost the rest of the list, whether it is bad or we are.
    """
    found = set()
    for raw in objects:
        try:
            found.add(NodeName(apply(raw)))
        except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
            _tell(error)
            if (metadata := _metadata(raw)) is not None:
                found.add(NodeName(metadata.name))
    return found


def _tell(error: Exception) -> None:
    if isinstance(error, _UNREADABLE):
        log.warning("object cannot be read", problem=str(error))
    else:
        log.error("object cannot be taken in", exc_info=error)


def _metadata(raw: msgspec.Raw) -> ObjectMeta | None:
    """An object's metadata; None where not even that can be read."""
    try:
        return metadata_decoder.decode(raw).metadata
    except _UNREADABLE:
        return None


def _parts(obj: msgspec.Raw) -> dict[str, bytes]:
    """Spec and status of a GPUTopology object, as far as they are there. Raises
    :class:`RecordError` where they are larger than any agent's, or cannot be read."""
    try:
        parts = msgspec.structs.asdict(parts_decoder.decode(obj))
        given = {part: bytes(raw) for part, raw in parts.items() if raw is not msgspec.UNSET}
        size = sum(map(len, given.values()))
        if size > MAX_RECORD:
            raise RecordError(f"spec and status have {size} bytes; at most {MAX_RECORD} are read")
        if (values := sum(raw.count(b",") for raw in given.values())) > MAX_RECORD_VALUES:
            most = f"at most {MAX_RECORD_VALUES} are read"
            raise RecordError(f"spec and status have more than {values} values; {most}")
    except _UNREADABLE as error:
        raise RecordError(f"the object cannot be read: {error}") from error
    return given


class RecordSink:
    """GPUTopology objects into the cluster; one that cannot be read is a problem of its node.

    ``now`` is the time of day in seconds since 1970: a record tells when its agent looked.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._now = now
        self._hardware = KnownHardware()

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        self._cluster.keep_records(_names(objects, self._take))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take an object that is new or changed."""
        self._take(obj)

    def _take(self, obj: msgspec.Raw) -> str:
        """Take an object; its name."""
        metadata = metadata_decoder.decode(obj).metadata
        name = NodeName(metadata.name)
        try:
            record = self._decoded(metadata.name, _parts(obj))
            age = self._age(record.report)
            self._cluster.put_record(record.topology, record.report, uid=metadata.uid, age=age)
        except RecordError as error:
            log.warning("topology record unusable", node=name, problem=str(error))
            self._cluster.put_problem(name, str(error))
        except Exception as error:
            # A fault of ours costs this node, not the list that it stands in.
            log.exception("topology record cannot be taken in", node=name)
            self._cluster.put_problem(name, f"internal error: {type(error).__name__}")
        return metadata.name

    def _decoded(self, name: str, parts: dict[str, bytes]) -> Record:
        """A record. The hardware of a kind that is known is not decoded again."""
        spec, status = parts.get("spec", b""), parts.get("status")
        known = self._hardware.topology(name, spec) if status is not None else None
        if known is not None and status is not None:
            # Where something is wrong the whole says in which field of the object.
            with suppress(RecordError, *_UNREADABLE):
                return Record(known, decode_report(msgspec.json.decode(status)))
        try:
            values = {part: msgspec.json.decode(raw) for part, raw in parts.items()}
        except _UNREADABLE as error:
            raise RecordError(f"the object cannot be read: {error}") from error
        found = decode({"metadata": {"name": name}, **values})
        self._hardware.keep(spec, found.topology)
        return found

    def _age(self, report: Report | None) -> float:
        """Seconds since the agent looked, by its own clock; 0 where that does not say."""
        observed = seconds_of(report.observed_at) if report is not None else None
        return 0.0 if observed is None else self._now() - observed

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        self._cluster.drop_record(NodeName(metadata_decoder.decode(obj).metadata.name))


class PodSink:
    """Pods that ask for GPUs into the cluster.

    ``now`` is the time of day in seconds since 1970: a pod tells when its kubelet answered.
    """

    def __init__(
        self,
        cluster: Cluster,
        now: Callable[[], float] = time.time,
        bindable: Bindable | None = None,
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._bindable = bindable
        names = {name.rstrip("*").encode() for name in (*cluster.settings.managed, TERM)}
        # Who names nvidia.com/gpu.shared names nvidia.com/gpu, too.
        self._named = [n for n in names if not any(m in n for m in names - {n})]

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list: what kubelets have answered in the order in which they did."""
        pods, seen = [], set()
        for raw in filter(self._concerns_us, objects):
            try:
                pods.append(pod_decoder.decode(raw))
            except _UNREADABLE as error:
                _tell(error)
                if (metadata := _metadata(raw)) is not None:
                    seen.add(PodUid(metadata.uid))
        with self._bindable.whole() if self._bindable is not None else nullcontext():
            for pod in sorted(pods, key=_when_answered):
                seen.add(PodUid(pod.metadata.uid))
                try:
                    self._take(pod, listed=True)
                except Exception as error:  # noqa: BLE001 (told, and the next one is taken)
                    _tell(error)
        self._cluster.keep_pods(seen, version_of(resource_version))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a pod that is new or changed."""
        if self._concerns_us(obj):
            self._take(pod_decoder.decode(obj))

    def _concerns_us(self, obj: msgspec.Raw) -> bool:
        """Whether a managed resource, or the mark of a term, is named anywhere in a pod.

        Most pods of a cluster are not decoded for that. An API server writes these names as they
        are: its JSON escapes quotes, control characters, and ``<``, ``>`` and ``&``.
        """
        text = bytes(obj)
        return any(name in text for name in self._named)

    def _take(self, pod: Pod, *, listed: bool = False) -> None:
        managed = self._cluster.settings.managed
        record = pod_record(pod, managed)
        try:
            if record is not None:
                age = 0.0 if record.started is None else self._now() - record.started
                self._cluster.put_pod(record, age, listed=listed)
        finally:
            # Whatever else fails: a takeover has to know every pod that could be bound.
            if self._bindable is not None:
                self._bindable.take(pod, managed=record is not None or asks_for_any(pod, managed))

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        pod = metadata_decoder.decode(obj).metadata
        if self._bindable is not None:
            self._bindable.drop(PodUid(pod.uid))
        self._cluster.drop_pod(PodUid(pod.uid), version_of(pod.resource_version))


def version_of(resource_version: str) -> int:
    """A resourceVersion as a number; :data:`UNKNOWN_VERSION` where it is none."""
    comparable = resource_version.isdecimal() and len(resource_version) <= 20
    return int(resource_version) if comparable else UNKNOWN_VERSION


class NodeSink:
    """From Node objects we learn whether the device plugin advertises GPUs at all, and up to when
    an operator forgives the node's refusals (the annotation :data:`.RESUME`)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._limit = RateLimit(PAUSE, RATE, BURST)

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        self._cluster.keep_nodes(_names(objects, self._take))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a node that is new or changed."""
        self._take(obj)

    def _take(self, obj: msgspec.Raw) -> str:
        """Take a node; its name."""
        managed = self._cluster.settings.managed
        node = _within_bounds(node_decoder.decode(obj), managed, self._tell_excess)
        offered = node.status.allocatable
        advertises = offered is None or bool(managed_among(offered, managed))
        resumed = seconds_of((node.metadata.annotations or {}).get(RESUME, "")) or 0.0
        name = NodeName(node.metadata.name)
        labels = dict(
            _label(key, value)
            for key, value in (node.metadata.labels or {}).items()
            if not key.startswith(NOT_KEPT)
        )
        cordoned, taints = node.spec.unschedulable, tuple(node.spec.taints or ())
        self._cluster.put_node(
            name,
            advertises=advertises,
            resumed=resumed,
            labels=labels,
            cordoned=cordoned,
            taints=taints,
            allocatable=None if offered is None else amounts_of(offered),
        )
        return node.metadata.name

    def _tell_excess(self, name: str, found: dict[str, int]) -> None:
        """Log that a Node says too much, however often it is written."""
        if self._limit.allows(name, time.monotonic()):
            log.warning("a Node says too much", node=name, allowed=MOST_OF_A_NODE, **found)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion; the node's record is owned by it and goes with it."""
        self._cluster.drop_node(NodeName(metadata_decoder.decode(obj).metadata.name))
