"""One HTTP connection with limits on header bytes, on time and on the number of connections.

With its fast parser uvicorn has none of these limits. A client could send endless headers, or send
half a request and keep the connection open for ever.
"""

import asyncio
import time
from enum import Enum
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from scheduler_extender.clientlimits import Limits
from scheduler_extender.http import browsers
from scheduler_extender.http.bothports import CLOSE, error_line, json_headers, refusing

HEALTH = frozenset({b"/healthz", b"/readyz"})
SPARE = 32  # connections accepted over the limit, so that the kubelet's probes get an answer
MAX_NAMES = 200  # characters of the names in a client's certificate that an error repeats
LAST_WORD = 2.0  # seconds in which a refused client may read the error


class _Phase(Enum):
    IDLE = "between two requests"
    HEADERS = "request headers"
    BODY = "request body"


class _RefusedError(Exception):
    """An exception that stops the parser. :attr:`Connection._refusal` has the reason."""


class Connection(HttpToolsProtocol):
    """A connection of uvicorn with :attr:`limits`.

    If ``allowed`` is not empty, a client's certificate must have one of these names. Every request
    of another client gets a 403. So does a request that a web page of another site may have sent
    (:mod:`.browsers` explains this, and ``local`` and ``public_host``).

    A refusal is one line of JSON, and the connection is closed after it.
    """

    limits = Limits()
    allowed: frozenset[str] = frozenset()
    local = False
    public_host = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection.

        Over the limit a slow connection is cut off for it, or it may only send health probes.
        """
        self._phase = _Phase.IDLE
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._paused_at = self._paused_for = 0.0
        self._header_bytes = self._overhead = 0
        self._progressed = self._crowded = self._is_cut_off = False
        self._unanswered = self._served = 0
        self._refusal: tuple[int, str] | None = None
        self._since = time.monotonic()
        self._foreign = self._foreign_name(transport)
        super().connection_made(transport)
        self._make_room()
        self._allow(self.limits.idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._writing, self._ending):
            if timer is not None:
                timer.cancel()
        self._deadline = self._timer = self._writing = self._ending = None
        super().connection_lost(exc)

    def _foreign_name(self, transport: asyncio.Transport) -> str | None:
        """Return the names in the client's certificate if none of them is allowed; else None.

        These are its common name and its DNS names.
        """
        certificate = transport.get_extra_info("peercert") or {}
        names = {v for kind, v in certificate.get("subjectAltName", ()) if kind == "DNS"}
        for part in certificate.get("subject", ()):
            names |= {value for key, value in part if key == "commonName"}
        if not self.allowed or names & self.allowed:
            return None
        return ", ".join(sorted(names))[:MAX_NAMES] or "none"

    def shutdown(self) -> None:
        """Accept no more requests, for example when the service stops.

        An idle client has :data:`LAST_WORD` seconds to close its side.
        """
        super().shutdown()
        if self.transport.is_closing():
            self._end_within(LAST_WORD)

    def _make_room(self) -> None:
        if len(self.connections) <= self.limits.connections:
            return
        kept = [c for c in self.connections if isinstance(c, Connection) and not c._is_cut_off]
        excess = len(kept) - self.limits.connections
        if excess <= 0:
            return
        slow = [c for c in kept if c is not self and c._is_slow()]
        if slow:
            # Clients that have never got an answer are cut off first.
            min(slow, key=lambda c: (c._served > 0, c._since))._cut_off()
        elif excess > SPARE:
            self._cut_off()
        else:
            self._crowded = True

    def _is_slow(self) -> bool:
        """Check whether the client delays the connection.

        It does if it has not sent a whole request, does not read an answer, or has not closed its
        side.
        """
        unanswered = self._unanswered > (self._phase is _Phase.BODY)
        return not unanswered or self._writing is not None or self.transport.is_closing()

    def _cut_off(self) -> None:
        self._is_cut_off = True
        self.transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if its client waits for no answer."""
        if self._phase is _Phase.IDLE and not self._unanswered and not self.transport.is_closing():
            self.transport.close()

    # Called while the parser reads.

    def data_received(self, data: bytes) -> None:
        """Parse the data, and count the bytes that complete no headers and belong to no body."""
        self._progressed = False
        super().data_received(data)
        if self._progressed:
            self._overhead = 0
        else:
            self._overhead += len(data)
            if self._overhead > self.limits.header_bytes:
                self._refuse(*self._too_long())

    def on_message_begin(self) -> None:
        """Start the time limit for the headers."""
        self._phase = _Phase.HEADERS
        self._header_bytes = 0
        self._allow(self.limits.header_seconds)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Accept a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header, and drop a trailer (after a chunked body).

        A proxy in front of us has checked the headers, but not the trailers.
        """
        self._count(len(name) + len(value) + 4)
        if self._phase is _Phase.HEADERS:
            super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes:
            self._refusal = self._too_long()
            raise _RefusedError

    def on_headers_complete(self) -> None:
        """Start the request's answer and the time limit for its body, or refuse the request."""
        if self._unanswered > self.limits.pipelined:
            self._refusal = 503, "too many requests are waiting on one connection"
            raise _RefusedError
        if sum(name == b"host" for name, _ in self.headers) > 1:  # RFC 9112, 3.2
            self._refusal = 400, "more than one Host header"
            raise _RefusedError
        app = self.app
        crowded = self._crowded and len(self.connections) > self.limits.connections
        if self._foreign is not None:
            said = f"the name in the client certificate is not allowed: {self._foreign}"
            self.app = refusing(403, said)
        elif page := browsers.refusal(self.headers, local=self.local, public_host=self.public_host):
            self.app = refusing(403, page)
        elif crowded and self.url.partition(b"?")[0] not in HEALTH:
            self.app = refusing(503, "too many connections")
        super().on_headers_complete()  # raises if the target is no URL; then no request begins
        self.app = app
        self._phase = _Phase.BODY
        self._progressed = True
        self._unanswered += 1
        self._allow(self.limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        """Accept a part of the body."""
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the time limit of the request, since from now on the client waits for us."""
        self._phase = _Phase.IDLE
        self._progressed = True
        self._allow(None if self._unanswered else self.limits.idle_seconds)
        super().on_message_complete()

    # Called while an answer is written.

    def on_response_complete(self) -> None:
        """Record that the answer is written. The client may not have read it yet."""
        self._unanswered -= 1
        self._served += 1
        self._paused_for = 0.0
        self._since = time.monotonic()
        if self._phase is _Phase.IDLE and not self._unanswered:
            self._allow(self.limits.idle_seconds)
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._end_within(self.limits.write_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read.

        The limit is for all pauses of one answer together.
        """
        super().pause_writing()
        self._paused_at = self.loop.time()
        left = max(0.0, self.limits.write_seconds - self._paused_for)
        self._writing = self.loop.call_later(left, self.transport.abort)
        self._make_answers_fit()

    def _make_answers_fit(self) -> None:
        """Cut off clients that do not read, those that paused first before the others.

        This ends once the unread answers of the remaining clients are within :attr:`Limits.unread`.
        """
        slow = [
            one
            for one in self.connections
            if isinstance(one, Connection) and one._writing is not None
        ]
        unread = sum(one.transport.get_write_buffer_size() for one in slow)
        for one in sorted(slow, key=lambda one: one._paused_at):
            if unread <= self.limits.unread:
                return
            unread -= one.transport.get_write_buffer_size()
            one.transport.abort()

    def resume_writing(self) -> None:
        """Stop the time limit, since the client reads again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
            self._paused_for += self.loop.time() - self._paused_at

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or that was refused while it was parsed."""
        self._refuse(*(self._refusal or (400, "this is not an HTTP/1.1 request")))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client has not read its last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    # Timers.

    def _allow(self, seconds: float | None) -> None:
        """Let this phase last so many seconds at most. None is no limit: the client waits for us.

        Each connection has one timer. The timer is moved only to an earlier time, and compares the
        deadline when it fires. So most requests do not move it.
        """
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer(self._deadline)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._set_timer(self._deadline)
        elif self._phase is _Phase.IDLE:
            self.timeout_keep_alive_handler()
        else:
            first = self._phase is _Phase.HEADERS
            seconds = self.limits.header_seconds if first else self.limits.body_seconds
            self._refuse(408, f"{self._phase.value} not complete within {seconds:g} s")

    def _too_long(self) -> tuple[int, str]:
        return 431, f"headers are longer than {self.limits.header_bytes} bytes"

    def _refuse(self, status: int, message: str) -> None:
        """Answer with one line of JSON and close the connection.

        If that line would answer another request, only close the connection.
        """
        if self.transport.is_closing():
            return
        body_missing = self._phase is _Phase.BODY
        if self._unanswered == body_missing and not (body_missing and self.cycle.response_started):
            body = error_line(message)
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n" + "".join(
                f"{name.decode()}: {value.decode()}\r\n"
                for name, value in [*json_headers(body), CLOSE]
            )
            self.transport.write(head.encode() + b"\r\n" + body)
        self._deadline = None
        self.transport.close()
        self._end_within(LAST_WORD)

    def _end_within(self, seconds: float) -> None:
        """Cut off the closing connection after this many seconds, even if answers are unread."""
        if self._ending is None:
            self._ending = self.loop.call_later(seconds, self.transport.abort)


def connection(
    limits: Limits,
    allowed: frozenset[str] = frozenset(),
    *,
    local: bool = False,
    public_host: str = "",
) -> type[Connection]:
    """Return the class of one port's connections. uvicorn creates the instances."""
    members = {"limits": limits, "allowed": allowed, "local": local, "public_host": public_host}
    return type("Connection", (Connection,), members)
