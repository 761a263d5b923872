"""One verb as an ASGI endpoint: a bounded body in, one line of JSON out.

What takes a moment is answered on the event loop: what has been worked out before, and a few
answers that have not (:data:`.limits.AT_ONCE_SECONDS`). Everything else is done in a thread, and
the loop waits for nobody's lock, so that the other requests, and the kubelet's probes above all,
are answered meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import msgspec
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import AT_ONCE_BODY, MAX_BODY, Bodies, Held, OverBudgetError
from scheduler_extender.state.answers.lookup import NotAtOnceError
from scheduler_extender.wire import Body, TooDenseError

PIECE = 256 * 1024
"""Bytes of an answer that are handed over at a time; the next when the client has read."""

UNAVAILABLE = 503

Args = TypeVar("Args")  # what a verb is asked, decoded
Answer = Callable[[Args, float], bytes]
"""From what a verb is asked, and the moment of :func:`time.monotonic` at which the request came, to
the answer's body."""


class NotReadyError(Exception):
    """The cluster is not synced yet, or another replica leads."""


class BodyError(Exception):
    """A body that cannot be used: the status to answer with, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read(scope: Scope, receive: Receive, limit: int, held: Held) -> Body:
    """The whole body. Raises :class:`BodyError` if it is too large, or too much with the others."""
    size = 0
    declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
    if int(declared) > limit:
        raise BodyError(413, f"body is larger than {limit} bytes")
    whole: Body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyError(400, "the client went away")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyError(413, f"body is larger than {limit} bytes")
        try:
            held.add(len(chunk))
        except OverBudgetError:
            raise BodyError(503, "too many bytes of requests at one time, try again") from None
        if not whole:
            whole = chunk
        elif isinstance(whole, bytearray):
            whole += chunk
        else:
            whole = bytearray(whole) + chunk
        if not message.get("more_body", False):
            return whole


class Verb(Generic[Args]):
    """One verb as an ASGI endpoint. ``answer`` runs in one of ``threads``, if there are some.

    ``decode`` reads a body, on the event loop where it is short, and raises
    :class:`msgspec.DecodeError` where it cannot. ``at_once`` is tried first, on the event
    loop: it gives the same answer without waiting for a lock, or raises
    :class:`NotAtOnceError` where that would take too long. Without ``threads`` the answer
    itself is given on the loop.
    """

    def __init__(
        self,
        name: str,
        decode: Callable[[Body], Args],
        answer: Answer[Args],
        metrics: Metrics,
        bodies: Bodies,
        *,
        at_once: Answer[Args] | None = None,
        threads: anyio.CapacityLimiter | None = None,
        limit: int = MAX_BODY,
    ) -> None:
        self._decode = decode
        self._answer = answer
        self._at_once = answer if threads is None else at_once
        self._name = name
        self._limit = limit
        self._bodies = bodies
        self._threads = threads
        self._requests = metrics.requests
        self._ok = metrics.requests.labels(name, "200")
        self._seconds = metrics.seconds.labels(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        arrived = time.monotonic()
        held = self._bodies.hold()
        try:
            status, payload = await self._status(scope, receive, held, arrived)
            await _send(send, status, payload)
        finally:
            held.release()

    async def _status(
        self, scope: Scope, receive: Receive, held: Held, arrived: float
    ) -> tuple[int, bytes]:
        try:
            body = await read(scope, receive, self._limit, held)
            started = time.perf_counter()
            payload = await self._answered(body, arrived)
        except BodyError as error:
            status, payload = error.status, error_line(str(error))
        except TooDenseError as error:
            status, payload = 413, error_line(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            status, payload = 400, error_line(f"body: {error}")
        except NotReadyError as error:
            status, payload = 503, error_line(str(error))
        except Exception:
            self._requests.labels(self._name, "500").inc()
            raise  # answered and told of by Failures
        else:
            self._seconds.observe(time.perf_counter() - started)
            self._ok.inc()
            return 200, payload
        self._requests.labels(self._name, str(status)).inc()
        return status, payload

    async def _answered(self, body: Body, arrived: float) -> bytes:
        if self._threads is not None and len(body) > AT_ONCE_BODY:
            return await anyio.to_thread.run_sync(
                self._decoded_and_answered, body, arrived, limiter=self._threads
            )
        args = self._decode(body)
        if self._at_once is not None:
            try:
                return self._at_once(args, arrived)
            except NotAtOnceError:
                pass
        return await anyio.to_thread.run_sync(self._answer, args, arrived, limiter=self._threads)

    def _decoded_and_answered(self, body: Body, arrived: float) -> bytes:
        return self._answer(self._decode(body), arrived)


class VerbApp(FastAPI):
    """A FastAPI app with verbs, to which their requests go past all of its middleware.

    Middleware costs a tenth of a millisecond, and nothing of it is needed there: a verb reads,
    answers and reports errors by itself. Everything else takes the usual way.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None, **options)
        self._verbs: dict[str, ASGIApp] = {}

    def add_verb(self, name: str, verb: Verb[Any]) -> None:
        """Answer POST at /scheduler/``name``; another method is refused."""
        path = f"/scheduler/{name}"
        self.router.routes.append(Route(path, verb, methods=["POST"]))
        self._verbs[path] = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            verb = self._verbs.get(scope["path"])
            if verb is not None:
                await verb(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


async def _send(send: Send, status: int, payload: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
    ]
    if status == UNAVAILABLE:
        headers.append((b"connection", b"close"))  # so that the client may find another replica
    await send({"type": "http.response.start", "status": status, "headers": headers})
    start = 0
    while len(payload) - start > PIECE:
        piece = payload[start : start + PIECE]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        start += PIECE
    await send({"type": "http.response.body", "body": payload[start:]})


def error_line(message: str) -> bytes:
    """An error as the one line that answers a request."""
    return msgspec.json.encode({"error": message})
