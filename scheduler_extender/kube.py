"""State from a Kubernetes API server, and binds written to it.

Three reflectors keep the cluster equal to the server's GPUTopology objects, pods and nodes. What
they bring is decoded here; an object that cannot be read costs that object, never the others.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.cluster import Cluster
from scheduler_extender.events import EventWriter
from scheduler_extender.ledger import PodRecord, pod_record
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from scheduler_extender.waker import Waker
from scheduler_extender.wire import ObjectMeta, node_decoder, pod_decoder
from topology.codec import RecordError, decode
from topology.devices import NodeName, PodUid
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiServer,
    ApiUnreachable,
    ConflictError,
    NotFoundError,
)
from topology.kubeapi.paths import path
from topology.kubeapi.reflector import Reflector, Timing
from topology.requests import gpu_request

log = structlog.get_logger(__name__)

RECORDS_PATH = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS_PATH = "/api/v1/pods"
NODES_PATH = "/api/v1/nodes"

WRITE_TIMEOUT = 4.0
READ_TIMEOUT = 2.0
"""Seconds. A bind may cost one write and one read, and must end within httpTimeout (10 s)."""

TIMING = Timing(backoff_cap_s=2.0)
"""There is one of us, so we come back soon after an outage: pods wait for what we missed."""


class _Named(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


_metadata = msgspec.json.Decoder(_Named)


def _readable(raw: msgspec.Raw, apply: Callable[[msgspec.Raw], None]) -> str | None:
    """Apply one object of a list; its UID, or None where it cannot be read.

    One such object must not cost the rest of the list.
    """
    try:
        apply(raw)
        return _metadata.decode(raw).metadata.uid
    except msgspec.DecodeError as error:
        log.warning("object cannot be read", problem=str(error))
        return None


class RecordSink:
    """GPUTopology objects into the cluster; one that cannot be read is a problem of its node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        for raw in objects:
            self.apply(raw)
        names = {NodeName(_metadata.decode(raw).metadata.name) for raw in objects}
        self._cluster.keep_records(names)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take an object that is new or changed."""
        name = NodeName(_metadata.decode(obj).metadata.name)
        try:
            record = decode(msgspec.json.decode(obj))
        except RecordError as error:
            log.warning("topology record unusable", node=name, problem=str(error))
            self._cluster.put_problem(name, str(error))
        else:
            self._cluster.put_record(record.topology, record.report)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        self._cluster.drop_record(NodeName(_metadata.decode(obj).metadata.name))


class PodSink:
    """Pods that ask for GPUs into the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        seen = set()
        for raw in objects:
            uid = _readable(raw, self.apply)
            if uid is not None:
                seen.add(PodUid(uid))
        self._cluster.keep_pods(seen)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a pod that is new or changed."""
        record = pod_record(pod_decoder.decode(obj), self._cluster.settings.managed)
        if record is not None:
            self._cluster.put_pod(record)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        self._cluster.drop_pod(PodUid(_metadata.decode(obj).metadata.uid))


class NodeSink:
    """From Node objects we learn whether the device plugin advertises GPUs at all."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        for raw in objects:
            _readable(raw, self.apply)
        names = {NodeName(_metadata.decode(raw).metadata.name) for raw in objects}
        self._cluster.keep_nodes(names)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a node that is new or changed."""
        node = node_decoder.decode(obj)
        offered = node.status.allocatable
        managed = self._cluster.settings.managed
        advertises = offered is None or any(resource in offered for resource in managed)
        self._cluster.put_node(NodeName(node.metadata.name), advertises=advertises)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion; the node's record is owned by it and goes with it."""
        self._cluster.drop_node(NodeName(_metadata.decode(obj).metadata.name))


class _PodApi(Protocol):
    def get(self, path: str, *, timeout: float) -> bytes: ...
    def create(self, path: str, body: bytes, *, timeout: float) -> bytes: ...
    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


class KubeBinder:
    """Writes one Binding a pod: nodeName, UID as precondition, placement annotation, at once."""

    def __init__(self, api: _PodApi, cluster: Cluster) -> None:
        self._api = api
        self._cluster = cluster

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """The pod as the API server has it; None if it is gone or another one bears its name."""
        try:
            body = self._api.get(_pod_path(namespace, name), timeout=READ_TIMEOUT)
        except NotFoundError:
            return None
        except ApiFailure as error:
            raise BindUnknownError(f"cannot look the pod up: {error}") from error
        pod = pod_decoder.decode(body)
        if pod.metadata.uid != uid:
            return None
        node = NodeName(pod.spec.node_name) if pod.spec.node_name else None
        # A pod without managed GPUs can come here if a foreign resource is listed as managed.
        return pod_record(pod, self._cluster.settings.managed) or PodRecord(
            uid, namespace, name, node, gpu_request(0)
        )

    def write(self, binding: Binding) -> None:
        """Create the Binding; on a conflict or no answer, ask what became of the pod."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": binding.name,
                "namespace": binding.namespace,
                "uid": binding.uid,
                "annotations": {PLACEMENT: binding.placement},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        path = _pod_path(binding.namespace, binding.name) + "/binding"
        try:
            self._api.create(path, msgspec.json.encode(body), timeout=WRITE_TIMEOUT)
        except (ConflictError, ApiUnreachable) as error:
            self._settle(binding, error)
        except ApiError as error:
            if error.status >= 500:
                self._settle(binding, error)
            else:
                raise BindError(f"the API server refused the bind: {error}") from error
        except ApiFailure as error:
            raise BindError(f"the bind could not be sent: {error}") from error

    def _settle(self, binding: Binding, cause: ApiFailure) -> None:
        """The write may have been committed: only the pod itself can tell."""
        found = self.find(binding.namespace, binding.name, binding.uid)
        if found is None:
            raise BindError("the pod is gone, or another one bears its name") from cause
        if found.node is None:
            raise BindError(f"the bind was not written: {cause}") from cause
        if found.node != binding.node:
            raise BindError(f"the pod is bound to {found.node} already") from cause


def _pod_path(namespace: str, name: str) -> str:
    return path("/api/v1/namespaces", namespace, "pods", name)


class Settler:
    """Ends binds in flight that nobody confirms: a live GET must prove a pod unbound or gone."""

    def __init__(self, cluster: Cluster, binder: KubeBinder, *, patience: float = 10.0) -> None:
        self._cluster = cluster
        self._binder = binder
        self._patience = patience
        self._since: dict[PodUid, tuple[PodRecord, float]] = {}

    def round(self, now: float) -> None:
        """Look at every bind that has been in flight for longer than the patience, in seconds."""
        flying = {pod.uid: pod for pod in self._cluster.in_flight()}
        # Each reservation has its own patience, also where a pod is bound once more.
        known = self._since
        self._since = {
            uid: known[uid] if uid in known and known[uid][0] is pod else (pod, now)
            for uid, pod in flying.items()
        }
        for uid, (pod, since) in self._since.items():
            if now - since < self._patience:
                continue
            try:
                found = self._binder.find(pod.namespace, pod.name, uid)
            except BindUnknownError:
                continue
            with self._cluster.locked():
                if self._cluster.reservation(uid) is not pod:
                    continue  # another bind has begun, or the pod is gone meanwhile
                if found is None or found.node is None:
                    self._cluster.release(uid)
                else:
                    self._cluster.put_pod(found)


class KubeSource:
    """The reflectors of one API server, and settler, waker and event writer.

    Each has a thread of its own: what one of them waits for holds up none of the others.
    """

    ROUND = 0.25
    """Seconds between two rounds."""

    def __init__(
        self, api: ApiServer, cluster: Cluster, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._clock = clock
        self.binder = KubeBinder(api, cluster)
        self.waker = Waker(cluster, api)
        self._settler = Settler(cluster, self.binder)
        self._events = EventWriter(api)
        cluster.on_surprise(self._events.note)
        self.reflectors = [
            Reflector(api, path, sink, name=name, timing=TIMING)
            for path, sink, name in (
                (RECORDS_PATH, RecordSink(cluster), "gputopologies"),
                (PODS_PATH, PodSink(cluster), "pods"),
                (NODES_PATH, NodeSink(cluster), "nodes"),
            )
        ]
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work.round,), name=name, daemon=True)
            for name, work in (("settler", self._settler), ("waker", self.waker))
        ]

    def unready(self) -> str | None:
        """Why we cannot answer yet, or None once every list has been taken in whole."""
        missing = [r.name for r in self.reflectors if not r.synced]
        return f"not synced: {', '.join(missing)}" if missing else None

    def start(self) -> None:
        """Start listing and watching, each in a thread of its own."""
        for reflector in self.reflectors:
            reflector.start()
        for thread in self._threads:
            thread.start()
        self._events.start()

    def stop(self) -> None:
        """Stop all threads and close all connections."""
        self._stopping.set()
        self._api.close()  # first: it cuts off requests that wait for their answer
        for reflector in self.reflectors:
            reflector.stop()
        self._events.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5)

    def _run(self, work: Callable[[float], None]) -> None:
        while not self._stopping.wait(self.ROUND * random.uniform(0.8, 1.2)):  # noqa: S311
            try:
                work(self._clock())
            except Exception:
                # One bad round must not end all later ones.
                log.exception("round failed")
