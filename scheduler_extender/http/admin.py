"""The port for people (``--admin-port``), on loopback only.

It serves /v1/nodes, /v1/explain, /v1/snapshot, the map's pages, and in file mode POST /v1/reports.
"""

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import msgspec
from fastapi import FastAPI, HTTPException
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from scheduler_extender import wire
from scheduler_extender.clientlimits import (
    EXPLAIN_SECONDS,
    MAX_REPORT_BODY,
    PEOPLE_WAITING,
    SEARCHES_WAITING,
)
from scheduler_extender.deadline import within
from scheduler_extender.explain.explanation import (
    Explanation,
    Unreadable,
    explanation_of,
    group_of,
)
from scheduler_extender.explain.gpustates import Nodes
from scheduler_extender.explain.nodesummary import NodeInBrief, NodeWhole, in_brief, whole
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.http.bothports import JSON, Service, add_errors, error_line
from scheduler_extender.http.endpoint import BodyError, read
from scheduler_extender.http.requestqueue import RequestQueue, Streamed
from scheduler_extender.http.schemas import (
    DESCRIPTION,
    REFUSED,
    ReportBody,
    answers,
    content,
    describe,
)
from scheduler_extender.state.cluster.cache import Cache
from topology import codec, our_version
from topology.core.devices import NodeName, PodUid


def create_admin_app(service: Service) -> FastAPI:
    """Return the app for people, with /v1/nodes, /v1/explain, /v1/snapshot and /openapi.json."""
    app = FastAPI(
        title="gpu-topology admin",
        version=our_version(),
        description=DESCRIPTION,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
    )
    _add_nodes(app, service.cluster, RequestQueue(1, PEOPLE_WAITING))
    _add_questions(app, service.cluster, RequestQueue(1, SEARCHES_WAITING))
    if service.file_mode:
        _add_reports(app, service)
    add_errors(app)
    describe(app)
    return app


def _add_nodes(app: FastAPI, cluster: Cache, queue: RequestQueue) -> None:
    known = Nodes(cluster)

    @app.get("/v1/nodes", response_model=None, responses=answers(NodeInBrief, many=True))
    @queue.encoded
    def nodes() -> list[NodeInBrief]:
        """Return every node in brief."""
        snapshot = cluster.snapshot()
        states = known.of_all(snapshot)
        return [
            in_brief(cluster, info, state.counts)
            for info, state in zip(snapshot.nodes, states, strict=True)
        ]

    @app.get("/v1/nodes/{name}", response_model=None, responses=answers(NodeWhole))
    @queue.encoded
    def node(name: str) -> NodeWhole:
        """Return one node with its record, its free GPUs, its pods and its problems."""
        info = cluster.node_info(NodeName(name))
        if not info.known:
            raise HTTPException(404, f"node {name} is unknown")
        return whole(cluster, info, known.of(info).counts)

    @app.get(
        "/v1/snapshot",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/yaml": {"schema": {"type": "string"}}}},
            **REFUSED,
        },
    )
    async def snapshot() -> Response:
        """Return the extender's current state as a cluster file."""

        async def begin() -> AsyncIterator[bytes]:
            return queue.pieces(await queue.run(lambda: cluster_file(cluster)))

        return Streamed(queue, begin, "application/yaml")


UNKNOWN = "pod {}/{} is unknown or requests no GPUs"


def _add_questions(app: FastAPI, cluster: Cache, queue: RequestQueue) -> None:
    @app.get(
        "/v1/explain/{namespace}/{pod}",
        response_model=None,
        responses=answers(Explanation, Unreadable),
    )
    @queue.encoded
    def explain(namespace: str, pod: str) -> Explanation | Unreadable:
        """Return every node's current answer to a pod, and remedies if no node takes the pod."""
        snapshot = cluster.snapshot()
        record = snapshot.pod_named(namespace, pod)
        if record is None:
            raise HTTPException(404, UNKNOWN.format(namespace, pod))
        told = explanation_of(snapshot, record, deadline=within(cluster.clock, EXPLAIN_SECONDS))
        if record.group_ref is None or isinstance(told, Unreadable):
            return told
        return structs.replace(told, group=group_of(snapshot, record.group_ref))


def _add_reports(app: FastAPI, service: Service) -> None:
    one = anyio.CapacityLimiter(1)

    @app.post(
        "/v1/reports",
        status_code=204,
        responses=REFUSED,
        openapi_extra={"requestBody": {"required": True, "content": content(ReportBody)}},
    )
    async def reports(request: Request) -> Response:
        """Accept a report in place of a kubelet's: the node, its status, and pods that ended."""
        with service.bodies.hold() as hold:
            try:
                body = await read(request.scope, request.receive, MAX_REPORT_BODY, hold)
            except BodyError as error:
                return Response(error_line(str(error)), error.status, media_type=JSON)
            return await anyio.to_thread.run_sync(_take_report, service.cluster, body, limiter=one)


def _take_report(cluster: Cache, body: wire.Body) -> Response:
    try:
        args = msgspec.json.decode(body, type=ReportBody)
        report = codec.decode_report(args.status)
    except (*wire.UNREADABLE, codec.RecordError) as error:
        return Response(error_line(f"body: {error}"), 400, media_type=JSON)
    for uid in args.ended_pods:
        cluster.drop_pod(PodUid(uid))
    if not cluster.put_report(NodeName(args.node), report):
        problem = error_line(f"node: {args.node} is not in the cluster file")
        return Response(problem, 404, media_type=JSON)
    return Response(status_code=204)
