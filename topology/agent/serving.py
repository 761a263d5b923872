"""The agent's port with ``/metrics``, ``/healthz`` and ``/readyz``.

The kubelet, Prometheus and any other client that reaches the port use it. One thread serves all
clients. Each client sends one request with a short head, and gets its answer in milliseconds. If
there are too many clients, the oldest one is cut off, since it has had enough time. So slow
clients, however many, do not block a probe.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

PLACES = 256  # clients at one time
MAX_HEAD = 8 * 1024  # bytes of a request's head; bodies are not read
# How long a client may take, from its connection to the last byte of its answer.
CLIENT_SECONDS = 10.0
BACKLOG = 64  # connections that are accepted at once; fewer than ``PLACES``
FRESH = 1.0  # seconds for which one scrape's text is reused for all clients

Health = Callable[[], str | None]  # why the agent is not healthy; None if it is


class PortError(Exception):
    """The failure to listen on the port."""


class MetricsServer:
    """The server of the port, in a thread of its own, from :meth:`start` to :meth:`stop`.

    ``/healthz`` is 503 if ``unwell`` returns a reason, ``/readyz`` if ``unready`` does. ``clock``
    returns seconds. Raises :class:`PortError`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        unwell: Health,
        unready: Health,
        host: str,
        port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._health = {b"/healthz": unwell, b"/readyz": unready}
        self._clock = clock
        self._made: tuple[float, bytes] | None = None
        self._clients: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._stopping = asyncio.Event()
        self._running = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (host, port), family=family, dualstack_ipv6=family == socket.AF_INET6
            )
        except OSError as error:
            raise PortError(f"{host}:{port}: {error.strerror}") from error
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """Stop serving."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has stopped already
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running.set()
        server = await asyncio.start_server(
            self._serve_client, sock=self._socket, backlog=BACKLOG, limit=MAX_HEAD
        )
        await self._stopping.wait()
        server.close()
        for writer in self._clients:
            writer.transport.abort()

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the one request of a client. If there are too many clients, cut off the oldest."""
        if len(self._clients) >= PLACES:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.transport.abort()
        self._clients[writer] = None
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()
        # the client left, was cut off, or is late
        except (OSError, EOFError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._clients.pop(writer, None)

    def _answer(self, head: bytes) -> bytes:
        words = head.partition(b"\r\n")[0].split(b" ")
        status, kind, body = "400 Bad Request", "text/plain; charset=utf-8", b"no request of HTTP\n"
        if len(words) == 3 and words[2].startswith(b"HTTP/1."):
            path = words[1].partition(b"?")[0]
            if words[0] != b"GET":
                status, body = "405 Method Not Allowed", b"GET is allowed\n"
            elif path == b"/metrics":
                status, kind, body = "200 OK", CONTENT_TYPE_LATEST, self._metrics()
            elif path in self._health:
                unwell = self._health[path]()
                status = "503 Service Unavailable" if unwell else "200 OK"
                body = f"{unwell or 'ok'}\n".encode()
            else:
                status = "404 Not Found"
                body = b"there are /metrics and " + b", ".join(self._health) + b"\n"
        headers = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
        return f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + body

    def _metrics(self) -> bytes:
        now = self._clock()
        if self._made is None or now - self._made[0] >= FRESH:
            self._made = now, generate_latest(self._registry)
        return self._made[1]
