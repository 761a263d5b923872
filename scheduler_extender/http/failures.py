"""Our faults that a request has met: the request gets a 500, and the log names each fault once a
minute, however often a client causes it."""

from __future__ import annotations

import time
import traceback

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.http.endpoint import error_line
from scheduler_extender.ratelimit import RateLimit

log = structlog.get_logger(__name__)

PAUSE, RATE, BURST = 60.0, 0.1, 8
"""Seconds between two log lines about one fault; lines a second, at once."""


class Failures:
    """ASGI: around everything else of one port. Event loop only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._limit = RateLimit(PAUSE, RATE, BURST)
        self._untold = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; 500 where that fails."""
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:  # noqa: BLE001 (told by note)
            self._note(error)
            if not started:
                body = error_line(f"internal error: {type(error).__name__}")
                headers = [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                ]
                await send({"type": "http.response.start", "status": 500, "headers": headers})
                await send({"type": "http.response.body", "body": body})

    def _note(self, error: Exception) -> None:
        """Log it, unless the same fault was logged lately."""
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = [(frame.filename, frame.lineno) for frame in last]
        if not self._limit.allows((type(error), *place), time.monotonic()):
            self._untold += 1
            return
        before, self._untold = self._untold, 0
        log.error("request failed", exc_info=error, untold=before)
