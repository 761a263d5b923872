"""The HTTP edge: thin routes around the verbs, and the admin app beside them.

Each verb is one ASGI endpoint (:mod:`.endpoint`) that reads a bounded body, decodes it, calls a
plain function and encodes the answer; nothing of FastAPI's validation runs on that path, which
kube-scheduler waits for. A body that cannot be read is a 400 or 413 with one line, never a 500.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog
from fastapi import FastAPI, HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException as HTTPError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scheduler_extender import preemption, verbs, wire
from scheduler_extender.annotations import Malformed
from scheduler_extender.cluster import Cluster
from scheduler_extender.endpoint import (
    Answer,
    BodyError,
    NotReadyError,
    Verb,
    error_line,
    read,
)
from scheduler_extender.explain import answers, free_and_promised
from scheduler_extender.filecluster import FileBinder
from scheduler_extender.limits import (
    AT_ONCE_STEPS,
    BIND_STARTS_WITHIN,
    BIND_THREADS,
    EVALUATING_THREADS,
    MAX_BIND_BODY,
    MAX_REPORT_BODY,
    VERB_SECONDS,
    Bodies,
)
from scheduler_extender.ratelimit import RateLimit
from scheduler_extender.snapshot import cluster_file
from scheduler_extender.verbs import Binder, BindError
from scheduler_extender.verification import BROKEN, OUTSIDE, Surprise
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest

log = structlog.get_logger(__name__)

Holding = Callable[[], AbstractContextManager[None]]
"""Under what a verb is asked: nothing, or what bounds its work."""

LOG_PAUSE, LOG_RATE, LOG_BURST = 60.0, 1.0, 20
"""Seconds between two log lines about one pod; lines a second about all, and at once."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes need.

    ``unready`` gives the reason why we cannot answer yet, or None. ``file_mode`` opens
    ``POST /v1/reports``. ``bodies`` is the budget of memory that both ports share.
    """

    cluster: Cluster
    binder: Binder
    unready: Callable[[], str | None]
    metrics: Metrics
    file_mode: bool = False
    bodies: Bodies = field(default_factory=Bodies)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._cluster: Cluster | None = None
        self._read: list[tuple[Counter, Callable[[], int]]] = []
        self._looking = threading.Lock()
        self.requests = Counter(
            "gpu_topology_requests",
            "Requests answered, by verb and HTTP status",
            ["verb", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "gpu_topology_request_seconds",
            "Time to answer a request, from its whole body to the answer",
            ["verb"],
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
        )
        self.bind_errors = Counter(
            "gpu_topology_bind_errors", "Binds refused or failed", registry=self.registry
        )
        self.surprises = Counter(
            "gpu_topology_surprises",
            "Pods with GPUs that were not foreseen: outside the outcomes, or a promise broken",
            ["kind"],
            registry=self.registry,
        )
        for kind in (OUTSIDE, BROKEN):
            self.surprises.labels(kind)
        self.watch_age = Gauge(
            "gpu_topology_watch_age_seconds",
            "Seconds since the API server last said something over a watch",
            ["watch"],
            registry=self.registry,
        )
        self.watch_failing = Gauge(
            "gpu_topology_watch_failing",
            "1 while a watch is broken and cannot be opened again",
            ["watch"],
            registry=self.registry,
        )
        self.ready = Gauge(
            "gpu_topology_ready", "1 while /readyz answers 200", registry=self.registry
        )

    def watch(self, cluster: Cluster) -> None:
        """Count and log what reports show and nobody foresaw; the log line replays it.

        Each is counted. A pod is logged once in a while, and a few pods a second.
        """
        limit, lock, untold = RateLimit(LOG_PAUSE, LOG_RATE, LOG_BURST), threading.Lock(), 0

        def note(surprise: Surprise) -> None:
            nonlocal untold
            self.surprises.labels(surprise.kind).inc()
            with lock:
                if not limit.allows((surprise.pod.uid, surprise.kind), time.monotonic()):
                    untold += 1
                    return
                before, untold = untold, 0
            log.error(
                surprise.message,
                kind=surprise.kind,
                pod=f"{surprise.pod.namespace}/{surprise.pod.name}",
                node=surprise.node,
                got=list(surprise.got),
                state=surprise.state,
                untold=before,
            )

        def fault(node: NodeName, error: Exception) -> None:
            log.error("a node could not be evaluated", node=node, exc_info=error)

        cluster.on_surprise(note)
        cluster.on_fault(fault)
        self._cluster = cluster
        self.follow(
            "node_faults",
            "Times that deciding about one node, or verifying its report, has failed",
            lambda: cluster.faults,
        )
        self.follow(
            "reports_out_of_order",
            "Reports that came after newer ones of their node, and were passed over",
            lambda: cluster.reports_out_of_order,
        )

    def follow(self, name: str, what: str, count: Callable[[], int]) -> None:
        """Show a number that only grows and that somebody else counts; ``count`` gives it."""
        self._read.append((Counter(f"gpu_topology_{name}", what, registry=self.registry), count))

    def look(self, now: float) -> None:
        """Bring up to date what others count; ``now`` is the cluster's clock."""
        with self._looking:  # two scrapes at once would each add what is new
            for counter, count in self._read:
                shown = next(iter(counter.collect())).samples[0].value
                counter.inc(max(0.0, count() - shown))
        if self._cluster is None:
            return
        for watch in self._cluster.watches():
            self.watch_age.labels(watch.name).set(watch.age(now))
            self.watch_failing.labels(watch.name).set(watch.failing)


def create_app(service: Service) -> FastAPI:
    """The scheduler-facing app: /scheduler/filter, prioritize, bind, preempt, and health."""
    app = FastAPI(title="gpu-topology extender", docs_url=None, redoc_url=None, openapi_url=None)
    cluster = service.cluster
    saw = service.binder.saw if isinstance(service.binder, FileBinder) else None

    def filter_(
        body: wire.Body,
        arrived: float,
        holding: Holding = nullcontext,
        seconds: float | None = VERB_SECONDS,
    ) -> bytes:
        args = wire.scheduling(body)
        if service.unready() is not None:
            return wire.encode(wire.FilterResult(error=verbs.NOT_SYNCED))
        if saw is not None:
            saw(args.pod)
        full = args.full_nodes()
        names = (args.node_names or []) if full is None else [name for name, _ in full]
        with holding():
            result = verbs.filter_nodes(cluster, args.pod, names, seconds)
        if full is None:
            return wire.encode(result)
        passed = set(result.node_names or ())
        kept = {"metadata": {}, "items": [raw for name, raw in full if name in passed]}
        return wire.encode(msgspec.structs.replace(result, nodes=kept, node_names=None))

    def prioritize(
        body: wire.Body,
        arrived: float,
        holding: Holding = nullcontext,
        seconds: float | None = VERB_SECONDS,
    ) -> bytes:
        args = wire.scheduling(body)
        if service.unready() is not None:
            raise NotReadyError(verbs.NOT_SYNCED)
        full = args.full_nodes()
        names = (args.node_names or []) if full is None else [name for name, _ in full]
        with holding():
            scores = verbs.prioritize(cluster, args.pod, names, seconds)
        return wire.encode(scores)

    def bind(body: wire.Body, arrived: float) -> bytes:
        args = wire.binding_decoder.decode(body)
        if service.unready() is not None:
            return wire.encode(wire.BindingResult(verbs.NOT_SYNCED))
        try:
            _names_checked(args)
            verbs.bind(
                cluster,
                service.binder,
                args,
                _now,
                late=lambda: time.monotonic() - arrived > BIND_STARTS_WITHIN,
            )
        except BindError as error:
            service.metrics.bind_errors.inc()
            names = {"pod": args.pod_name[:253], "node": args.node[:253]}
            log.info("bind refused", **names, reason=str(error))
            return wire.encode(wire.BindingResult(str(error)))
        return wire.encode(wire.BindingResult())

    def preempt(body: wire.Body, arrived: float) -> bytes:
        args = wire.preempting(body)
        if service.unready() is not None:
            raise NotReadyError(verbs.NOT_SYNCED)
        started = time.monotonic()
        return wire.encode(
            preemption.preempt(cluster, args, lambda: time.monotonic() - started > VERB_SECONDS)
        )

    def remembered() -> AbstractContextManager[None]:
        return cluster.bounded(AT_ONCE_STEPS, wait=False)

    evaluating = anyio.CapacityLimiter(EVALUATING_THREADS)
    working: tuple[tuple[str, Answer, Answer | None], ...] = (
        ("filter", filter_, partial(filter_, holding=remembered, seconds=None)),
        ("prioritize", prioritize, partial(prioritize, holding=remembered, seconds=None)),
        ("preempt", preempt, None),
    )
    for name, answer, at_once in working:
        verb = Verb(
            name, answer, service.metrics, service.bodies, at_once=at_once, threads=evaluating
        )
        app.router.routes.append(Route(f"/scheduler/{name}", verb, methods=["POST"]))
    binding = Verb(
        "bind",
        bind,
        service.metrics,
        service.bodies,
        threads=anyio.CapacityLimiter(BIND_THREADS),
        limit=MAX_BIND_BODY,
    )
    app.router.routes.append(Route("/scheduler/bind", binding, methods=["POST"]))
    _add_health(app, service)
    _add_errors(app)
    return app


def _names_checked(args: wire.BindingArgs) -> None:
    problem = args.problem()
    if problem is not None:
        raise BindError(problem)


def create_admin_app(service: Service) -> FastAPI:
    """For people and Prometheus: /v1/nodes, /v1/explain, /v1/snapshot, /metrics, and health."""
    app = FastAPI(title="gpu-topology admin", docs_url=None, redoc_url=None)
    cluster = service.cluster

    @app.get("/v1/nodes")
    def nodes() -> list[dict[str, Any]]:
        """Every node in brief."""
        return [_node_brief(cluster, name) for name in cluster.names()]

    @app.get("/v1/nodes/{name}")
    def node(name: str) -> dict[str, Any]:
        """One node: its record, what is free, its pods, what is wrong."""
        if NodeName(name) not in cluster.names():
            raise HTTPException(404, f"node {name} is unknown")
        topology, report, _, _ = cluster.node(NodeName(name))
        found = _node_brief(cluster, NodeName(name))
        found["pods"] = [
            {"uid": p.uid, "namespace": p.namespace, "name": p.name, "asks": _asks(p.request)}
            for p in cluster.pods_on(NodeName(name))
        ]
        if topology is not None:
            found["record"] = codec.encode(topology, report)
        return found

    @app.get("/v1/explain/{namespace}/{pod}")
    def explain(namespace: str, pod: str) -> dict[str, Any]:
        """What every node would answer to a pod now."""
        record = cluster.pod_named(namespace, pod)
        if record is None:
            raise HTTPException(404, f"pod {namespace}/{pod} is unknown or asks for no GPUs")
        found: dict[str, Any] = {"pod": f"{namespace}/{pod}", "node": record.node}
        if isinstance(record.request, Malformed):
            return {**found, "reason": record.request.reason}
        found["asks"] = record.request.text
        found["nodes"] = [
            {
                "node": row.node,
                "verdict": row.decision.verdict,
                "score": row.score,
                "reason": row.reason,
                "note": row.note,
                "hazards": row.hazards,
                "resolvable": row.resolvable,
            }
            for row in answers(cluster, record.request, bound=record)
        ]
        return found

    @app.get("/v1/snapshot")
    def snapshot() -> StreamingResponse:
        """A cluster file of this very state."""
        return StreamingResponse(cluster_file(cluster), media_type="application/yaml")

    @app.get("/metrics")
    def metrics() -> Response:
        """Prometheus metrics."""
        service.metrics.look(time.monotonic())
        service.metrics.ready.set(_unready(service) is None)
        return Response(generate_latest(service.metrics.registry), media_type="text/plain")

    if service.file_mode:

        @app.post("/v1/reports")
        async def reports(request: Request) -> Response:
            """What a kubelet would have reported: node, status, and pods that ended."""
            held = service.bodies.hold()
            try:
                body = await read(request.scope, request.receive, MAX_REPORT_BODY, held)
                return await anyio.to_thread.run_sync(_take_report, cluster, body)
            except BodyError as error:
                line = error_line(str(error))
                return Response(line, error.status, media_type="application/json")
            finally:
                held.release()

    _add_health(app, service)
    _add_errors(app)
    return app


class _ReportBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    node: str
    status: dict[str, Any]
    ended_pods: list[str] = []


def _take_report(cluster: Cluster, body: wire.Body) -> Response:
    try:
        args = msgspec.json.decode(body, type=_ReportBody)
        report = codec.decode_report(args.status)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        codec.RecordError,
    ) as error:
        return Response(error_line(f"body: {error}"), 400, media_type="application/json")
    for uid in args.ended_pods:
        cluster.drop_pod(PodUid(uid))
    if not cluster.put_report(NodeName(args.node), report):
        problem = error_line(f"node: {args.node} is not in the cluster file")
        return Response(problem, 404, media_type="application/json")
    return Response(status_code=204)


def _unready(service: Service) -> str | None:
    """Why nobody should be sent here; verbs go on answering while a watch is blind."""
    blind = service.cluster.unready()
    return service.unready() or (f"blind watches: {', '.join(blind)}" if blind else None)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPError)
    async def error(request: Request, found: HTTPError) -> Response:
        """In the one form that all our errors have."""
        line = error_line(found.detail)
        return Response(line, found.status_code, found.headers, "application/json")


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """The cluster is synced, and no watch has been blind for long."""
        reason = _unready(service)
        if reason is not None:
            return Response(error_line(reason), 503, media_type="application/json")
        return Response(b'{"status":"ok"}', media_type="application/json")


def _node_brief(cluster: Cluster, name: NodeName) -> dict[str, Any]:
    topology, report, problem, stale = cluster.node(name)
    found: dict[str, Any] = {"node": name, "stale": stale, "problem": problem}
    if topology is None:
        return found
    if report is not None and report.not_ready:
        found["notReady"] = report.not_ready
    found["gpus"] = len(topology.gpus)
    found["summary"] = topology.summary()
    found["sequence"] = report.sequence if report else None
    for served in topology.resources:
        view = cluster.view(name, served.name)
        if isinstance(view, str):
            found["problem"] = view
        else:
            found |= free_and_promised(topology, view)
    return found


def _asks(request: GpuRequest | Malformed) -> str:
    return request.reason if isinstance(request, Malformed) else request.text


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
