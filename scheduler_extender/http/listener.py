"""Accepts the connections of one port, and limits the number and duration of TLS handshakes.

uvicorn counts a connection only after its handshake. Before that a client has not authenticated, so
its handshake has a time limit, and the number of simultaneous handshakes is limited, too.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from scheduler_extender.clientlimits import Limits

# Seconds until the next try if the system has no file descriptor for another connection.
ACCEPT_PAUSE = 0.2
BACKLOG = 2048  # connections that the system queues for us; uvicorn's own value

Factory = Callable[[], HttpToolsProtocol]


class Acceptor:
    """The listener of one port. uvicorn's server holds it in place of asyncio's own.

    ``context`` returns the TLS context for each new connection; None means plain HTTP.
    """

    def __init__(
        self,
        listener: socket.socket,
        factory: Factory,
        context: Callable[[], ssl.SSLContext] | None,
        limits: Limits,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._context = context
        self._limits = limits
        # In order of arrival, so the first has waited longest.
        self._beginning: dict[asyncio.Task[None], None] = {}
        self._unowned: set[socket.socket] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen. Only the event loop may call this."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and cut off those whose handshake is not over."""
        if self._accepting is not None:
            self._accepting.cancel()
        self.give_up_handshakes()

    def give_up_handshakes(self) -> None:
        """Cut off the connections whose handshake is not over. Their clients may try again."""
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until :meth:`close` is done."""
        tasks = [*self._beginning, *filter(None, [self._accepting])]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    sock, _ = await loop.sock_accept(self._listener)
                except OSError:
                    await asyncio.sleep(ACCEPT_PAUSE)
                    continue
                self._make_room()
                self._unowned.add(sock)
                task = loop.create_task(self._begin(sock))
                self._beginning[task] = None
                task.add_done_callback(partial(self._begun, sock))
                # While clients wait, ``sock_accept`` returns without yielding to the event loop.
                # This lets other tasks run.
                await asyncio.sleep(0)
        finally:
            self._listener.close()

    def _make_room(self) -> None:
        if len(self._beginning) >= self._limits.handshakes:
            longest = next(iter(self._beginning))
            del self._beginning[longest]
            longest.cancel()

    def _begun(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)
        if sock in self._unowned:  # cancelled before its first step; after it asyncio closes it
            self._unowned.discard(sock)
            sock.close()

    async def _begin(self, sock: socket.socket) -> None:
        self._unowned.discard(sock)
        loop = asyncio.get_running_loop()
        connection = self._factory()
        try:
            if self._context is None:
                await loop.connect_accepted_socket(lambda: connection, sock)
                return
            await loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context(),
                ssl_handshake_timeout=self._limits.handshake_seconds,
                # The client ends TLS when it has read everything.
                ssl_shutdown_timeout=self._limits.write_seconds,
            )
        except asyncio.CancelledError:
            if connection.transport is not None:
                # The connection has begun in this same iteration of the event loop, and uvloop does
                # not report its end to it.
                connection.connection_lost(None)
            raise
        except OSError:
            pass  # the handshake failed; the client gets the error and may try again
