"""One verb as an ASGI endpoint, which reads a bounded body and sends one line of JSON.

The event loop reads the body and sends the answer. A thread decodes the body, computes the answer
and encodes it. So the loop never waits for a lock, and it answers other requests meanwhile, above
all the kubelet's probes.
"""

import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_extender.clientlimits import MAX_BODY, Bodies, Hold
from scheduler_extender.http.bothports import CLOSE, error_line, json_headers
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.workers import Workers
from scheduler_extender.wire import UNREADABLE, Body, TooDenseError

# Bytes of an answer that are sent at a time. The next piece follows when the client has read.
PIECE = 256 * 1024


class NotReadyError(Exception):
    """The cluster is not synced yet, or another replica leads."""


class BodyError(Exception):
    """A body that cannot be used. It has the status of the answer and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read(scope: Scope, receive: Receive, limit: int, hold: Hold) -> Body:
    """Return the whole body.

    Raises :class:`BodyError` if the body is too large, alone or together with the other bodies in
    memory, or if the client disconnects.
    """
    declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
    if int(declared) > limit:
        raise BodyError(413, f"body is larger than {limit} bytes")
    whole = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyError(400, "the client closed the connection")
        chunk: bytes = message.get("body", b"")
        if len(whole) + len(chunk) > limit:
            raise BodyError(413, f"body is larger than {limit} bytes")
        if not hold(len(chunk)):
            raise BodyError(503, "too many request bytes at one time; try again")
        whole += chunk
        if not message.get("more_body", False):
            return whole


# Takes a body and the time (:func:`time.monotonic`) at which its request arrived. Returns the
# answer's body. Raises :class:`msgspec.DecodeError`.
Answer = Callable[[Body, float], bytes]


class _Endpoint:
    """The ASGI endpoint of one verb."""

    def __init__(
        self,
        name: str,
        answer: Answer,
        workers: Workers,
        limit: int,
        metrics: Metrics,
        bodies: Bodies,
    ) -> None:
        self._name = name
        self._answer = answer
        self._workers = workers
        self._limit = limit
        self._bodies = bodies
        self._requests = metrics.requests
        self._ok = metrics.requests.labels(name, "200")
        self._seconds = metrics.seconds.labels(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        arrived = time.monotonic()
        with self._bodies.hold() as hold:
            status, payload = await self._status(scope, receive, hold, arrived)
            headers = [*json_headers(payload), *([CLOSE] if status == 503 else [])]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            start = 0
            while len(payload) - start > PIECE:
                piece = payload[start : start + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                start += PIECE
            await send({"type": "http.response.body", "body": payload[start:]})

    async def _status(
        self, scope: Scope, receive: Receive, hold: Hold, arrived: float
    ) -> tuple[int, bytes]:
        try:
            body = await read(scope, receive, self._limit, hold)
            started = time.perf_counter()
            payload = await self._workers.run(self._answer, body, arrived)
        except BodyError as error:
            status, problem = error.status, str(error)
        except TooDenseError as error:
            status, problem = 413, str(error)
        except UNREADABLE as error:
            status, problem = 400, f"body: {error}"
        except NotReadyError as error:
            status, problem = 503, str(error)
        except Exception:
            self._requests.labels(self._name, "500").inc()
            raise  # Failures answers and logs it
        else:
            self._seconds.observe(time.perf_counter() - started)
            self._ok.inc()
            return 200, payload
        self._requests.labels(self._name, str(status)).inc()
        return status, error_line(problem)


class VerbApp(FastAPI):
    """A FastAPI app with verbs, whose requests bypass all of the app's middleware.

    Middleware costs a tenth of a millisecond. A verb needs no middleware, because it reads, answers
    and reports errors itself. All other requests go through the middleware.
    """

    def __init__(self, metrics: Metrics, bodies: Bodies) -> None:
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None)
        self._metrics = metrics
        self._bodies = bodies
        self._verbs: dict[str, ASGIApp] = {}
        self._workers = set[Workers]()

    def add_verb(self, name: str, answer: Answer, workers: Workers, limit: int = MAX_BODY) -> None:
        """Answer POST at /scheduler/``name`` with these threads, and refuse other methods.

        A body has at most ``limit`` bytes.
        """
        path = f"/scheduler/{name}"
        endpoint = _Endpoint(name, answer, workers, limit, self._metrics, self._bodies)
        self.router.routes.append(Route(path, endpoint, methods=["POST"]))
        self._verbs[path] = endpoint
        self._workers.add(workers)

    def close(self) -> None:
        """End the threads of the verbs."""
        for workers in self._workers:
            workers.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            verb = self._verbs.get(scope["path"])
            if verb is not None:
                await verb(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
