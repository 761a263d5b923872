"""The parts that all ports share: the service behind them, health, and errors in one form."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.clientlimits import Bodies
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.requestqueue import AGAIN, QueueFullError
from scheduler_extender.http.schemas import Error, Healthy, content
from scheduler_extender.ratelimit import LogLimit
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import Binder, BindLimiter, WouldReject
from scheduler_extender.wire import Pod

log = structlog.get_logger(__name__)

JSON = "application/json"
CLOSE = (b"connection", b"close")  # so that the client may find another replica
# Log lines about failed requests: seconds between two lines about the same fault, lines a second
# about all faults, and lines in a burst.
PAUSE, RATE, BURST = 60.0, 0.1, 8

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Service:
    """The cluster, the writer of binds, the metrics, and the settings behind the routes."""

    cluster: Cache
    binder: Binder
    unready: Callable[[], str | None]  # why this replica cannot answer yet, or None
    metrics: Metrics
    standby: Callable[[], str | None] = lambda: None  # why another replica answers verbs, or None
    term: Callable[[], int] = int  # the term in which this replica leads; 0 for a single replica
    saw: Callable[[Pod], None] = lambda pod: None  # is called with the pod of each filter request
    limiter: BindLimiter | None = None  # when a bind may be written; None if no kubelet answers us
    # If this is set, no node is refused, and it is called with the would-be refusals.
    shadow: Callable[[WouldReject], None] | None = None
    file_mode: bool = False  # opens POST /v1/reports
    bodies: Bodies = field(default_factory=Bodies)  # the memory that all ports share

    def not_ready(self) -> str | None:
        """Return why this replica is not Ready, or None. A stale watch does not stop the verbs."""
        stale = self.cluster.unready()
        return self.unready() or (f"stale watches: {', '.join(stale)}" if stale else None)


def error_line(message: str) -> bytes:
    """Return an error as the line of JSON that answers a request."""
    return msgspec.json.encode({"error": message})


def json_headers(body: bytes) -> Headers:
    """Return the headers of an answer in JSON."""
    return [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]


async def send_error(send: Send, status: int, message: str, *more: tuple[bytes, bytes]) -> None:
    """Answer a request with an error; ``more`` are further headers."""
    body = error_line(message)
    headers = [*json_headers(body), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusing(status: int, message: str) -> ASGIApp:
    """Return an app that answers each request with this error and closes the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, status, message, CLOSE)

    return refuse


class Failures:
    """ASGI middleware that wraps the whole app of one port.

    It answers an exception of our code with 500, and logs the same exception at most once a minute,
    however often a client causes it. Only the event loop may use it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._limit = LogLimit(PAUSE, RATE, BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, and answer 500 if the app fails."""
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            place = [(frame.filename, frame.lineno) for frame in last]
            untold = self._limit.untold((type(error), *place))
            if untold is not None:
                log.exception("request failed", untold=untold)
            if not started:
                await send_error(send, 500, f"internal error: {type(error).__name__}")


def add_errors(app: FastAPI) -> None:
    """Make the app answer errors of routing, and a full queue, in the form of all our errors."""

    @app.exception_handler(HTTPException)
    async def error(request: Request, raised: HTTPException) -> Response:
        return Response(error_line(raised.detail), raised.status_code, raised.headers, JSON)

    @app.exception_handler(QueueFullError)
    async def full(request: Request, raised: QueueFullError) -> Response:
        return Response(error_line(str(raised)), 503, {"retry-after": AGAIN}, JSON)


def add_health(app: FastAPI, service: Service) -> None:
    """Add /healthz and /readyz."""

    well, ill = {"content": content(Healthy)}, {"content": content(Error)}

    @app.get("/healthz", response_model=None, responses={200: well})
    async def healthz() -> dict[str, str]:
        """Answer that the process lives."""
        return {"status": "ok"}

    @app.get("/readyz", response_model=None, responses={200: well, 503: ill})
    async def readyz() -> Response:
        """Answer whether the cluster is synced and no watch has been stale for long."""
        reason = service.not_ready()
        if reason is not None:
            return Response(error_line(reason), 503, media_type=JSON)
        return Response(b'{"status":"ok"}', media_type=JSON)
