"""One verb as an ASGI endpoint: a bounded body in, one line of JSON out, whatever happens.

What has been worked out before is answered on the event loop, in a millisecond or two. Everything
else is done in a thread: the loop waits for nobody's lock and works nothing out, so that the other
requests, and the kubelet's probes above all, are answered meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import AT_ONCE_BODY, MAX_BODY, Bodies, Held, OverBudgetError
from scheduler_extender.state.lookup import NotRememberedError
from scheduler_extender.wire import Body, TooDenseError

log = structlog.get_logger(__name__)

PIECE = 256 * 1024
"""Bytes of an answer that are handed over at a time; the next when the client has read."""

UNAVAILABLE = 503

Answer = Callable[[Body, float], bytes]
"""From a body, and the moment of :func:`time.monotonic` at which its request came, to an answer.

It raises :class:`msgspec.DecodeError` for a body that cannot be decoded.
"""


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


class Verb:
    """``answer(body, arrived)`` runs in one of ``threads``, if there are some.

    ``at_once`` is tried first, on the event loop: it gives the same answer without waiting for a
    lock or working anything out, or raises :class:`NotRememberedError`. Without ``threads`` the
    answer itself is given on the loop.
    """

    def __init__(
        self,
        name: str,
        answer: Answer,
        metrics: Metrics,
        bodies: Bodies,
        *,
        at_once: Answer | None = None,
        threads: anyio.CapacityLimiter | None = None,
        limit: int = MAX_BODY,
    ) -> None:
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
        except Exception as error:
            # A fault of ours must not take the process, or other requests, with it.
            log.exception("request failed", verb=self._name)
            status, payload = 500, error_line(f"internal error: {type(error).__name__}")
        else:
            self._seconds.observe(time.perf_counter() - started)
            self._ok.inc()
            return 200, payload
        self._requests.labels(self._name, str(status)).inc()
        return status, payload

    async def _answered(self, body: Body, arrived: float) -> bytes:
        if self._at_once is not None and (self._threads is None or len(body) <= AT_ONCE_BODY):
            try:
                return self._at_once(body, arrived)
            except NotRememberedError:
                pass
        return await anyio.to_thread.run_sync(self._answer, body, arrived, limiter=self._threads)


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
