"""State from a Kubernetes API server, and binds written to it.

Three reflectors keep the cluster equal to the server's GPUTopology objects, pods and nodes. What
they bring is decoded here; an object that cannot be read costs that object, never the others.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
import structlog

from scheduler_extender.annotations import PLACEMENT, asks_for_any
from scheduler_extender.kube.events import EventWriter
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state import freshness
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.freshness import Watch
from scheduler_extender.state.node import UNKNOWN_VERSION
from scheduler_extender.state.pods import PodRecord, pod_record
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from scheduler_extender.wire import ObjectMeta, node_decoder, pod_decoder
from topology.codec import RecordError, decode
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiNotSent,
    ApiServer,
    ApiUnreachable,
    ConflictError,
    NotFoundError,
    Query,
)
from topology.kubeapi.paths import path
from topology.kubeapi.reflector import Reflector, Timing

log = structlog.get_logger(__name__)

RECORDS_PATH = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS_PATH = "/api/v1/pods"
NODES_PATH = "/api/v1/nodes"

WRITE_TIMEOUT = 4.0
READ_TIMEOUT = 2.0
"""Seconds. A bind may cost a look-up, one write and one read, and must end within httpTimeout."""
SERVER_TIMEOUT = 3
"""Seconds that the API server may work on a Binding: sent with it, as ``timeout=``. Shorter than we
wait, so that it is mostly the server who tells us."""
COMMIT_MARGIN = 8.0
"""Seconds for which etcd may still carry out what the API server has given up: its own limit of a
request is 7 s (5 s and two election timeouts)."""
SETTLED_AFTER = WRITE_TIMEOUT + COMMIT_MARGIN
"""Seconds after which a Binding that the API server has begun can no longer be committed."""

TIMING = Timing(backoff_cap_s=2.0, relist_after_s=60.0)
"""There is one of us, so we come back soon after an outage: pods wait for what we missed."""


class _Named(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


_metadata = msgspec.json.Decoder(_Named)


def _readable(raw: msgspec.Raw, apply: Callable[[msgspec.Raw], None]) -> str | None:
    """Apply one object of a list; its UID, or None where not even that can be read.

    One such object must not cost the rest of the list, whether it is bad or we are.
    """
    try:
        apply(raw)
    except msgspec.DecodeError as error:
        log.warning("object cannot be read", problem=str(error))
    except Exception:
        log.exception("object cannot be taken in")
    try:
        return _metadata.decode(raw).metadata.uid
    except msgspec.DecodeError:
        return None


class RecordSink:
    """GPUTopology objects into the cluster; one that cannot be read is a problem of its node.

    ``now`` is the time of day in seconds since 1970: a record tells when its agent looked.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._now = now

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        for raw in objects:
            self.apply(raw)
        names = {NodeName(_metadata.decode(raw).metadata.name) for raw in objects}
        self._cluster.keep_records(names)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take an object that is new or changed."""
        metadata = _metadata.decode(obj).metadata
        name = NodeName(metadata.name)
        try:
            record = decode(msgspec.json.decode(obj))
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
        self._cluster.keep_pods(seen, _version(resource_version))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a pod that is new or changed."""
        record = pod_record(pod_decoder.decode(obj), self._cluster.settings.managed)
        if record is not None:
            self._cluster.put_pod(record)

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        pod = _metadata.decode(obj).metadata
        self._cluster.drop_pod(PodUid(pod.uid), _version(pod.resource_version))


def _version(resource_version: str) -> int:
    """A resourceVersion as a number; :data:`UNKNOWN_VERSION` where it is none."""
    comparable = resource_version.isdecimal() and len(resource_version) <= 20
    return int(resource_version) if comparable else UNKNOWN_VERSION


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
    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes: ...
    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes: ...
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
        managed = self._cluster.settings.managed
        found = pod_record(pod, managed)
        if found is None and asks_for_any(pod, managed):
            # DRA serves what it asks for: no device of a plugin is given to it.
            node = NodeName(pod.spec.node_name) if pod.spec.node_name else None
            found = PodRecord(uid, namespace, name, node, gpu_request(0))
        if found is None:
            raise BindError(
                f"the pod asks for none of {', '.join(managed)}: this extender binds no other pods "
                "(see managedResources in the scheduler's configuration)"
            )
        return found

    def version(self) -> int:
        """A resourceVersion of pods that is not older than this call, as a number."""
        try:
            body = self._api.get(PODS_PATH, (("limit", "1"),), timeout=READ_TIMEOUT)
        except ApiFailure as error:
            raise BindUnknownError(f"cannot list pods: {error}") from error
        return _version(_metadata.decode(body).metadata.resource_version)

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
        limit = (("timeout", f"{SERVER_TIMEOUT}s"),)
        try:
            self._api.create(path, msgspec.json.encode(body), limit, timeout=WRITE_TIMEOUT)
        except ApiNotSent as error:
            raise BindError(f"the bind could not be sent: {error}") from error
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
        """The write may have been committed: only the pod itself can tell.

        That it is unbound tells nothing after an answer that never came, or came too late: the
        write may be committed yet. Only a conflict says that the server is done with it.
        """
        found = self.find(binding.namespace, binding.name, binding.uid)
        if found is None:
            words = "the pod is gone, or another one bears its name"
            if isinstance(cause, ConflictError):
                raise BindError(words) from cause
            raise BindUnknownError(words) from cause  # it may have been bound before it went
        if found.node is None:
            words = f"the bind was not written: {cause}"
            if isinstance(cause, ConflictError):
                raise BindError(words) from cause
            raise BindUnknownError(f"{words} (and may be yet)") from cause
        if found.node != binding.node:
            raise BindError(f"the pod is bound to {found.node} already") from cause


def _pod_path(namespace: str, name: str) -> str:
    return path("/api/v1/namespaces", namespace, "pods", name)


@dataclass(slots=True)
class _Flight:
    """A bind in flight as the settler follows it: since when, and when it was first read as unbound
    after the patience; times in seconds. ``before`` is the one whose place it took."""

    pod: PodRecord
    since: float
    unbound_at: float | None = None
    before: _Flight | None = None


class Settler:
    """Ends binds in flight that nobody confirms.

    A pod that is read as bound, or as gone, settles its bind at once. One that is read as unbound
    may be bound yet, by a write that is still under way: in the API server for as long as we told
    it, in etcd for a margin more, and for any time in the socket of a server that does not run. So
    two readings have to say unbound, each after the ``patience`` in seconds: the first shows that
    the server runs, and what had reached it by then is done with at the second.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: KubeBinder,
        *,
        patience: float = SETTLED_AFTER,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cluster = cluster
        self._binder = binder
        self._patience = patience
        self._clock = clock
        self._flights: dict[PodUid, _Flight] = {}

    def round(self, now: float) -> None:
        """Look at every bind that has been in flight for longer than the patience.

        One reading may take seconds, and the next bind is read so much later than ``now``: the
        ``clock`` tells how much. By default no time passes.
        """
        began = self._clock()
        flying = self._cluster.in_flight()
        self._flights = {pod.uid: self._flight(pod, now) for pod in flying}
        for flight in self._flights.values():
            last = flight.since if flight.unbound_at is None else flight.unbound_at
            if now - last >= self._patience:
                try:
                    self._settle(flight, lambda: now + self._clock() - began)
                except Exception:
                    # What fails for one pod must not keep the others in flight.
                    log.exception("a bind could not be settled", pod=flight.pod.name)

    def _flight(self, pod: PodRecord, now: float) -> _Flight:
        """A reservation's flight: each has its own patience, also where a pod is bound once more.

        One that comes back, since the bind after it was surely not written, goes on with its own.
        """
        known = self._flights.get(pod.uid)
        if known is None:
            return _Flight(pod, now)
        if known.pod is pod:
            return known
        if known.before is not None and known.before.pod is pod:
            return known.before
        known.before = None
        return _Flight(pod, now, before=known)

    def _settle(self, flight: _Flight, clock: Callable[[], float]) -> None:
        pod = flight.pod
        try:
            found = self._binder.find(pod.namespace, pod.name, pod.uid)
            version = self._binder.version() if found is None else 0
        except (BindUnknownError, BindError) as error:
            log.info("a bind in flight cannot be looked up", pod=pod.name, cause=str(error))
            return
        with self._cluster.locked():
            if self._cluster.reservation(pod.uid) is not pod:
                return  # another bind has begun, or the pod is gone meanwhile
            if found is None:
                self._cluster.drop_flight(pod.uid, version)
            elif found.node is not None:
                self._cluster.put_pod(found)
            elif flight.unbound_at is None:
                flight.unbound_at = clock()
            else:
                self._cluster.release(pod.uid)
                # The pod was refused everywhere else, so any node may be news to it.
                self._cluster.sighted()


class KubeSource:
    """The reflectors of one API server, and lookout, settler, waker and event writer.

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
        self._settler = Settler(cluster, self.binder, clock=clock)
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
        self._cluster = cluster
        self._blind = False
        cluster.watches = self.watches
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (
                ("lookout", self._look_out),
                ("settler", self._settler.round),
                ("waker", self.waker.round),
            )
        ]

    def unready(self) -> str | None:
        """Why we cannot answer yet, or None once every list has been taken in whole."""
        missing = [r.name for r in self.reflectors if not r.synced]
        return f"not synced: {', '.join(missing)}" if missing else None

    def tell(self, follow: Callable[[str, str, Callable[[], int]], None]) -> None:
        """Hand over the numbers that the threads count, by metric, to whoever shows them."""
        waker, events = self.waker, self._events
        follow(
            "wakes", "Waiting pods woken, since a changed node may take them", lambda: waker.woken
        )
        follow(
            "waker_failures",
            "Times that a waiting pod's request could not be worked out",
            lambda: waker.failed,
        )
        follow("events_dropped", "Events not written: too many, or refused", lambda: events.dropped)

    def watches(self) -> list[Watch]:
        """How fresh each watch is."""
        found = []
        for reflector in self.reflectors:
            state = reflector.state
            failing = None if state.streaming else state.failing_since
            found.append(Watch(reflector.name, state.whole_at, failing))
        return found

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

    def _look_out(self, now: float) -> None:
        """Once every watch tells us something again, whoever waits may be woken anew."""
        was, self._blind = self._blind, self._cluster.blind()
        if self._blind and not was:
            names = freshness.blind(self.watches(), now)
            log.error("required pods are refused: watches say nothing", watches=names)
        elif was and not self._blind:
            log.info("all watches say something again")
            self._cluster.sighted()

    def _run(self, work: Callable[[float], None]) -> None:
        while not self._stopping.wait(self.ROUND * random.uniform(0.8, 1.2)):  # noqa: S311
            try:
                work(self._clock())
            except Exception:
                # One bad round must not end all later ones.
                log.exception("round failed", thread=threading.current_thread().name)
