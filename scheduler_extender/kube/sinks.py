"""What the reflectors bring is decoded here, and put into the cluster.

An object that cannot be read costs that object, never the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import msgspec
import structlog

from scheduler_extender.annotations import RESUME, asks_for_any
from scheduler_extender.kube.bindable import Bindable
from scheduler_extender.limits import MAX_RECORD, MAX_RECORD_VALUES
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.node import UNKNOWN_VERSION
from scheduler_extender.state.pods import pod_record
from scheduler_extender.wire import ObjectMeta, node_decoder, pod_decoder
from topology.codec import RecordError, decode
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report

log = structlog.get_logger(__name__)


class _Named(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class _Status(msgspec.Struct, rename="camel", frozen=True):
    start_time: str = ""
    phase: str = ""


class _Answered(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class _RecordParts(msgspec.Struct):
    """A GPUTopology object whose parts are not decoded yet; what is not ours is passed over."""

    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


metadata_decoder = msgspec.json.Decoder(_Named)
parts_decoder = msgspec.json.Decoder(_RecordParts)
answer_decoder = msgspec.json.Decoder(_Answered)


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _when_answered(pod: msgspec.Raw) -> tuple[str, bool]:
    """A key by which pods are sorted as their kubelets answered; refused ones are the first of a
    second. Times of Kubernetes are in UTC, so their texts ascend."""
    try:
        status = answer_decoder.decode(pod).status
    except _UNREADABLE:
        return "", False
    return status.start_time, status.phase != "Failed"


def _readable(raw: msgspec.Raw, apply: Callable[[msgspec.Raw], None]) -> ObjectMeta | None:
    """Apply one object of a list; its metadata, or None where not even that can be read.

    One such object must not cost the rest of the list, whether it is bad or we are.
    """
    try:
        apply(raw)
    except _UNREADABLE as error:
        log.warning("object cannot be read", problem=str(error))
    except Exception:
        log.exception("object cannot be taken in")
    try:
        return metadata_decoder.decode(raw).metadata
    except _UNREADABLE:
        return None


def _decoded(name: str, obj: msgspec.Raw) -> dict[str, Any]:
    """Name, spec and status of a GPUTopology object. Raises :class:`RecordError` where they are
    larger than any agent's, or cannot be read."""
    found: dict[str, Any] = {"metadata": {"name": name}}
    try:
        parts = msgspec.structs.asdict(parts_decoder.decode(obj))
        given = {part: bytes(raw) for part, raw in parts.items() if raw is not msgspec.UNSET}
        size = sum(map(len, given.values()))
        if size > MAX_RECORD:
            raise RecordError(f"spec and status have {size} bytes; at most {MAX_RECORD} are read")
        if (values := sum(raw.count(b",") for raw in given.values())) > MAX_RECORD_VALUES:
            most = f"at most {MAX_RECORD_VALUES} are read"
            raise RecordError(f"spec and status have more than {values} values; {most}")
        return found | {part: msgspec.json.decode(raw) for part, raw in given.items()}
    except _UNREADABLE as error:
        raise RecordError(f"the object cannot be read: {error}") from error


class RecordSink:
    """GPUTopology objects into the cluster; one that cannot be read is a problem of its node.

    ``now`` is the time of day in seconds since 1970: a record tells when its agent looked.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._now = now

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        found = [_readable(raw, self.apply) for raw in objects]
        self._cluster.keep_records({NodeName(meta.name) for meta in found if meta is not None})

    def apply(self, obj: msgspec.Raw) -> None:
        """Take an object that is new or changed."""
        metadata = metadata_decoder.decode(obj).metadata
        name = NodeName(metadata.name)
        try:
            record = decode(_decoded(metadata.name, obj))
            age = self._age(record.report)
            self._cluster.put_record(record.topology, record.report, uid=metadata.uid, age=age)
        except RecordError as error:
            log.warning("topology record unusable", node=name, problem=str(error))
            self._cluster.put_problem(name, str(error))
        except Exception as error:
            # A fault of ours costs this node, not the list that it stands in.
            log.exception("topology record cannot be taken in", node=name)
            self._cluster.put_problem(name, f"internal error: {type(error).__name__}")

    def _age(self, report: Report | None) -> float:
        """Seconds since the agent looked, by its own clock; 0 where that does not say."""
        try:
            observed = datetime.fromisoformat(report.observed_at if report else "")
            return self._now() - observed.timestamp()
        except (ValueError, OverflowError):
            return 0.0

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

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list: what kubelets have answered in the order in which they did."""
        seen = set()
        with self._bindable.whole() if self._bindable is not None else nullcontext():
            for raw in sorted(objects, key=_when_answered):
                metadata = _readable(raw, self.apply)
                if metadata is not None:
                    seen.add(PodUid(metadata.uid))
        self._cluster.keep_pods(seen, version_of(resource_version))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a pod that is new or changed."""
        pod, managed = pod_decoder.decode(obj), self._cluster.settings.managed
        record = pod_record(pod, managed)
        try:
            if record is not None:
                age = 0.0 if record.started is None else self._now() - record.started
                self._cluster.put_pod(record, age)
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


def _time(text: str) -> float:
    """A time in RFC 3339 as seconds since 1970; 0 where it cannot be read."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


class NodeSink:
    """From Node objects we learn whether the device plugin advertises GPUs at all, and up to when
    an operator forgives the node's refusals (the annotation :data:`.RESUME`)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        found = [_readable(raw, self.apply) for raw in objects]
        self._cluster.keep_nodes({NodeName(meta.name) for meta in found if meta is not None})

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a node that is new or changed."""
        node = node_decoder.decode(obj)
        offered = node.status.allocatable
        managed = self._cluster.settings.managed
        advertises = offered is None or any(resource in offered for resource in managed)
        resumed = _time((node.metadata.annotations or {}).get(RESUME, ""))
        name = NodeName(node.metadata.name)
        self._cluster.put_node(name, advertises=advertises, resumed=resumed)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion; the node's record is owned by it and goes with it."""
        self._cluster.drop_node(NodeName(metadata_decoder.decode(obj).metadata.name))
