"""The admin port, for people and Prometheus.

/v1/nodes, /v1/explain, /v1/unblock, /v1/snapshot, /metrics, health, and in file mode
POST /v1/reports.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from fastapi import FastAPI, HTTPException
from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scheduler_extender import wire
from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import within
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.http.bothports import JSON, add_errors, add_health, error_line
from scheduler_extender.http.desk import Desk
from scheduler_extender.http.endpoint import BodyError, read
from scheduler_extender.http.schemas import (
    Error,
    Explanation,
    NodeInBrief,
    NodeWhole,
    ReportBody,
    Unblocking,
)
from scheduler_extender.http.service import Service
from scheduler_extender.limits import (
    EXPLAIN_SECONDS,
    MAX_REPORT_BODY,
    PEOPLE_WAITING,
    SEARCHES_WAITING,
)
from scheduler_extender.membership import Membership
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.groups.groups import by_domain
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.told.answers import Room, instances, room
from scheduler_extender.told.explanation import explanation_of
from scheduler_extender.told.nearest import View
from scheduler_extender.told.sharing import shared_gpus
from scheduler_extender.told.unblocking import unblocking_of
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Rejection
from topology.core.requests import GpuRequest


def create_admin_app(service: Service) -> FastAPI:
    """For people and Prometheus: /v1/nodes, /v1/explain, /v1/unblock, /v1/snapshot, /metrics, and
    health."""
    app = FastAPI(title="gpu-topology admin", docs_url=None, redoc_url=None)
    reading = Desk(1, PEOPLE_WAITING)
    searching = Desk(1, SEARCHES_WAITING)
    _add_nodes(app, service.cluster, reading)
    _add_explain(app, service.cluster, searching)
    _add_unblock(app, service.cluster, searching)
    _add_metrics(app, service)
    if service.file_mode:
        _add_reports(app, service)
    add_health(app, service)
    add_errors(app)
    return app


_REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": Error}, "5XX": {"model": Error}}


def _answers(model: Any) -> dict[int | str, dict[str, Any]]:
    """The answers of a route, for ``/openapi.json``."""
    return {200: {"model": model}, **_REFUSED}


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    """A body that the route reads itself, within its own bounds, for ``/openapi.json``."""
    return {
        "required": True,
        "content": {"application/json": {"schema": model.model_json_schema()}},
    }


def _add_nodes(app: FastAPI, cluster: Cluster, desk: Desk) -> None:
    @app.get("/v1/nodes", response_model=None, responses=_answers(list[NodeInBrief]))
    @desk.encoded
    def nodes() -> list[dict[str, Any]]:
        """Every node in brief."""
        return [_node_brief(cluster, facts) for facts in cluster.all_facts()]

    @app.get("/v1/nodes/{name}", response_model=None, responses=_answers(NodeWhole))
    @desk.encoded
    def node(name: str) -> dict[str, Any]:
        """One node: its record, what is free, its pods, what is wrong."""
        facts = cluster.facts(NodeName(name))
        if not facts.known:
            raise HTTPException(404, f"node {name} is unknown")
        found = _node_brief(cluster, facts)
        found["pods"] = [
            {"uid": p.uid, "namespace": p.namespace, "name": p.name, "asks": _asks(p.request)}
            for p in facts.all_pods
        ]
        if facts.topology is not None:
            found["record"] = codec.encode(facts.topology, facts.report)
        return found

    @app.get(
        "/v1/snapshot",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/yaml": {"schema": {"type": "string"}}}},
            **_REFUSED,
        },
    )
    async def snapshot() -> Response:
        """A cluster file of this very state."""
        return _Snapshot(cluster, desk)


class _Snapshot(Response):
    """A cluster file, made piece by piece while it is read."""

    def __init__(self, cluster: Cluster, desk: Desk) -> None:
        super().__init__()
        self._cluster = cluster
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._desk.stream():
            file = await self._desk.run(lambda: cluster_file(self._cluster))
            pieces = self._desk.pieces(file)
            answer = StreamingResponse(pieces, media_type="application/yaml")
            await answer(scope, receive, send)


def _add_explain(app: FastAPI, cluster: Cluster, desk: Desk) -> None:
    @app.get(
        "/v1/explain/{namespace}/{pod}",
        response_model=None,
        responses=_answers(Explanation),
    )
    @desk.encoded
    def explain(namespace: str, pod: str) -> dict[str, Any]:
        """What every node would answer to a pod now, and what would help where none takes it."""
        found = explained(namespace, pod)
        if found is None:
            raise HTTPException(404, f"pod {namespace}/{pod} is unknown or asks for no GPUs")
        return found

    def explained(namespace: str, pod: str) -> dict[str, Any] | None:
        with cluster.locked():  # the pod and the nodes at one moment
            record, seen = cluster.pod_named(namespace, pod), cluster.cluster_facts()
        if record is None:
            return None
        deadline = within(cluster.clock, EXPLAIN_SECONDS)
        told = explanation_of(cluster, seen, record, View(cluster.today()), deadline=deadline)
        found = told.as_json()
        if record.membership is not None:
            found["group"] = _group(cluster, record.membership)
        return found


def _add_unblock(app: FastAPI, cluster: Cluster, desk: Desk) -> None:
    @app.get(
        "/v1/unblock/{namespace}/{pod}",
        response_model=None,
        responses=_answers(Unblocking),
    )
    @desk.encoded
    def unblock(namespace: str, pod: str) -> dict[str, Any]:
        """Whom to evict so that a waiting pod gets a guaranteed place."""
        found = unblocking_of(cluster, namespace, pod)
        if found is None:
            raise HTTPException(404, f"pod {namespace}/{pod} is unknown or asks for no GPUs")
        return found


def _group(cluster: Cluster, membership: Membership) -> dict[str, Any]:
    """A pod's group, and where its members are."""
    look = cluster.look_at_group(membership)
    return {
        "name": membership.group.name,
        "gang": membership.gang,
        "size": membership.size,
        "domain": membership.domain,
        "come": look.standing.have_come(membership.size),
        "nodes": dict(look.standing.living),
        "domains": dict(by_domain(look.standing, look.domains)) if membership.domain else {},
    }


def _add_metrics(app: FastAPI, service: Service) -> None:
    desk = Desk(1, PEOPLE_WAITING)  # of its own: readers of the rest are no reason for a gap

    @app.get("/metrics", response_class=PlainTextResponse, responses=_REFUSED)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(await desk.shared("metrics", text), media_type="text/plain")

    def text() -> bytes:
        service.metrics.look(time.monotonic())
        service.metrics.ready.set(service.not_ready() is None)
        return generate_latest(service.metrics.registry)


def _add_reports(app: FastAPI, service: Service) -> None:
    one = anyio.CapacityLimiter(1)

    @app.post(
        "/v1/reports",
        status_code=204,
        responses=_REFUSED,
        openapi_extra={"requestBody": _json_body(ReportBody)},
    )
    async def reports(request: Request) -> Response:
        """What a kubelet would have reported: node, status, and pods that ended."""
        held = service.bodies.hold()
        try:
            body = await read(request.scope, request.receive, MAX_REPORT_BODY, held)
            return await anyio.to_thread.run_sync(_take_report, service.cluster, body, limiter=one)
        except BodyError as error:
            line = error_line(str(error))
            return Response(line, error.status, media_type=JSON)
        finally:
            held.release()


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
        return Response(error_line(f"body: {error}"), 400, media_type=JSON)
    for uid in args.ended_pods:
        cluster.drop_pod(PodUid(uid))
    if not cluster.put_report(NodeName(args.node), report):
        problem = error_line(f"node: {args.node} is not in the cluster file")
        return Response(problem, 404, media_type=JSON)
    return Response(status_code=204)


def _node_brief(cluster: Cluster, facts: NodeFacts) -> dict[str, Any]:
    topology, report = facts.topology, facts.report
    found: dict[str, Any] = {"node": facts.name, "stale": facts.stale, "problem": facts.problem}
    if facts.streaks:
        found["refusals"] = [*_refusals(cluster, facts)]
    if topology is None:
        return found
    if report is not None and report.not_ready:
        found["notReady"] = report.not_ready
    if facts.missing:
        found["missing"] = [gpu.name for gpu in facts.missing]
    found["gpus"] = len(topology.gpus)
    found["summary"] = topology.summary()
    found["sequence"] = report.sequence if report else None
    rooms: list[Room] = []
    sliced: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    for served in topology.resources:
        try:
            offer = facts.last_offer(served.name)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            cluster.faults.note(facts.name, error)
            found["problem"] = f"internal error: {type(error).__name__}"
            continue
        if isinstance(offer, Rejection):
            found["problem"] = facts.contradiction(served.name)
        else:
            rooms.append(room(offer.devices, offer.availability))
            sliced += [asdict(each) for each in instances(topology, served, offer.availability)]
            shared += [asdict(each) for each in shared_gpus(facts, served)]
    if rooms:  # of several resources the first: whole GPUs, if there are any
        found |= asdict(rooms[0])
    if sliced:
        found["migInstances"] = sliced
    if shared:
        found["sharedGpus"] = shared
    return found


def _refusals(cluster: Cluster, facts: NodeFacts) -> Iterator[dict[str, Any]]:
    """The kubelet's refusals in a row, and when a pod is tried again: of the pods that ask one
    thing, of all pods where two things were refused, and of those that ask what nobody has asked
    here before where many such were refused."""
    ignored = cluster.settings.refusals is Refusals.IGNORE
    for resource, streaks in facts.streaks.items():
        rows = [
            (_kind(kind), facts.refusing(kind) is not None, streak)
            for kind, streak in streaks.of_kind.items()
        ]
        if streaks.closing_to_new is not None:
            new = streaks.closing_to_new
            rows.insert(0, ("anything not tried here before", new.paused, new))
        if streaks.closing is not None:
            last = streaks.closing.refusals[-1].kind
            rows.insert(0, ("anything", facts.refusing(last) is not None, streaks.closing))
        for asks, shut, streak in rows:
            paused = max(0.0, streak.until - cluster.clock()) if streak.paused else 0.0
            yield {
                "resource": resource,
                "asks": asks,
                "inARow": len(streak.refusals),
                "reason": streak.reason,
                "takesNoPods": shut and not ignored,
                "triedAgainInSeconds": round(paused),
            }


def _kind(kind: GpuRequest) -> str:
    """What pods of a kind ask, with what static CPU and Memory Managers would give them."""
    return ", ".join(filter(None, (kind.text, kind.exclusive.text)))


def _asks(request: GpuRequest | Malformed) -> str:
    return request.reason if isinstance(request, Malformed) else request.text
