"""Takes the connections of one port, and limits how many TLS handshakes run and for how long.

uvicorn counts a connection only when its handshake is over. Before that a client has shown nothing,
so it gets some seconds, and only so many such clients are served at one time.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from scheduler_extender.clientlimits import Limits

# Seconds until we try again if the system has no descriptor for one more connection.
ACCEPT_PAUSE = 0.2
BACKLOG = 2048  # connections that the system holds for us, as uvicorn has it

Factory = Callable[[], HttpToolsProtocol]


class Acceptor:
    """The listener of one port; uvicorn's server holds it in place of asyncio's own.

    ``context`` gives the TLS context for each new connection; None means plain HTTP.
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
        # In the order in which they came: the first has waited longest.
        self._beginning: dict[asyncio.Task[None], None] = {}
        self._unowned: set[socket.socket] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen. Inside the event loop."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Take no more connections, and give up those that have only begun."""
        if self._accepting is not None:
            self._accepting.cancel()
        self.give_up_handshakes()

    def give_up_handshakes(self) -> None:
        """Cut off the connections that have only begun: their clients may try again."""
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until :meth:`close` is done."""
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
                # ``sock_accept`` returns without a pause while others wait: let other tasks run.
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
        if sock in self._unowned:  # cancelled before its first step; later asyncio closes it
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
                # It has begun in this very turn. uvloop does not tell it of its end.
                connection.connection_lost(None)
            raise
        except OSError:
            pass  # the handshake failed: the client is told, and may try again
