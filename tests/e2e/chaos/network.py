"""The network between kube-scheduler, the replicas and the API server, which can be cut and held.

All of it runs on one event loop in a thread of its own.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

import msgspec

from tests.chaos.history import Answered, Recorder
from tests.programs import free_port
from tests.waiting import PATIENCE

CHUNK = 65536
LOOPBACK = "127.0.0.1"


class Network:
    """An event loop in a thread, while the context is open."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []  # Whoever listens on it; they are closed at the end
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something on the loop, and wait for it; not from the loop's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


class Link:
    """A port of loopback behind which connections are passed on; it can be cut and held.

    Its methods may be called from any thread, the loop's included. With ``tls`` each client
    has to speak TLS.
    """

    def __init__(self, network: Network, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self._network = network
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        network.run(self._listen())

    async def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(
            self._taken, LOOPBACK, self.port, limit=1 << 24, ssl=self._tls
        )
        self._network.servers.append(server)

    def cut(self) -> None:
        """Break every connection, and take no new one until :meth:`mend`."""
        self._soon(self._cut)

    def drop(self) -> None:
        """Break every connection once."""
        self._soon(self._drop)

    def hold(self) -> None:
        """From now on nothing moves until :meth:`mend`; then what was held is delivered."""
        self._soon(self._flows.clear)

    def mend(self) -> None:
        """All is well again."""
        self._soon(self._mend)

    def _soon(self, what: Callable[[], None]) -> None:
        if threading.current_thread().name == "network":
            what()
        else:
            self._network.run(_doing(what))

    def _cut(self) -> None:
        self._is_cut = True
        self._drop()

    def _drop(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _mend(self) -> None:
        self._is_cut = False
        self._flows.set()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _connected(
        self, port: int, source: str = LOOPBACK, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            LOOPBACK, port, local_addr=(source, 0), limit=1 << 24, ssl=tls
        )
        self._open.add(writer)
        return reader, writer


async def _doing(what: Callable[[], None]) -> None:
    what()


class Uplink(Link):
    """Between one replica and the API server; bytes only, for they are encrypted.

    ``source`` is the address from which the API server sees the connections that are made now.
    """

    def __init__(self, network: Network, to: int, source: str) -> None:
        super().__init__(network)
        self._to = to
        self.source = source

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await self._connected(self._to, self.source)
        try:
            there = asyncio.create_task(self._pass(reader, ours, "up"))
            back = asyncio.create_task(self._pass(theirs, writer, "down"))
            done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            if there in done and not there.exception() and there.result():
                # The end of the connection is lost, as on a network that has failed: the API server
                # goes on with what it got late.
                await asyncio.wait({back}, timeout=30)
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        finally:
            self._open.discard(ours)
            ours.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> bool:
        """Pass bytes on up to their end; whether any had been held."""
        held = False
        while data := await reader.read(CHUNK):
            if not self._flows.is_set():
                held = True
                await self._flows.wait()
            writer.write(data)
            await writer.drain()
        return held and way == "up"


class Pass(msgspec.Struct):
    """What a replica answered to kube-scheduler, as far as the history wants it."""

    NodeNames: list[str] | None = None
    Error: str = ""


class _Meta(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class Ask(msgspec.Struct):
    """What kube-scheduler asked, as far as the history wants it."""

    Pod: _Pod | None = None
    PodUID: str = ""
    Node: str = ""


class ServicePort(Link):
    """Stands for kube-proxy: each new connection goes to the address that the Service has then.

    A connection stays with its replica, as with kube-proxy, until either end closes it. ``backend``
    gives the port, 0 where the Service has no address. ``on_bind`` is called in the loop's thread
    with each request to bind (its UID) before it is passed on. Answers go to the ``history``.

    It has the keys of both ends, to read what is asked and answered: to kube-scheduler it speaks as
    the extender, by ``as_extender``, to the replicas as the scheduler, by ``as_scheduler``.
    """

    def __init__(
        self,
        network: Network,
        backend: Callable[[], int],
        as_extender: ssl.SSLContext,
        as_scheduler: ssl.SSLContext,
    ) -> None:
        self._backend = backend
        self._as_scheduler = as_scheduler
        self.history: Recorder | None = None
        self.on_bind: Callable[[str], None] | None = None
        # When (time.monotonic), by which port, to which verb, with which code.
        self.answered: list[tuple[float, int, str, int]] = []
        super().__init__(network, as_extender)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._backend()
        if not port:
            return
        theirs, ours = await self._connected(port, tls=self._as_scheduler)
        try:
            while await self._exchange(port, (reader, writer), (theirs, ours)):
                pass
        finally:
            self._open.discard(ours)
            ours.transport.abort()

    async def _exchange(
        self,
        port: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        replica: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """One request and its answer; whether the connection goes on."""
        answering = asyncio.create_task(replica[0].readuntil(b"\r\n\r\n"))
        asking = asyncio.create_task(client[0].readuntil(b"\r\n\r\n"))
        try:
            done, _ = await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if asking not in done:
                return False  # the replica has closed the idle connection, or talks unasked
            head = asking.result()
            body = await client[0].readexactly(_length(head))
            verb = head.split(b" ", 2)[1].rsplit(b"/", 1)[1].decode()
            asked = self.history.now if self.history is not None else 0.0
            if verb == "bind" and self.on_bind is not None:
                self.on_bind(msgspec.json.decode(body, type=Ask).PodUID)
            await self._flows.wait()
            code, answer = 0, b""
            try:
                replica[1].write(head + body)
                await replica[1].drain()
                reported = await answering
                answer = await replica[0].readexactly(_length(reported))
                code = int(reported.split(b" ", 2)[1])
            finally:
                self._note(asked, port, verb, body, code, answer)
            await self._flows.wait()
            client[1].write(reported + answer)
            await client[1].drain()
            return b"connection: close" not in reported.lower()
        finally:
            for task in (answering, asking):
                task.cancel()
            await asyncio.gather(answering, asking, return_exceptions=True)

    def _note(
        self, asked: float, port: int, verb: str, body: bytes, code: int, answer: bytes
    ) -> None:
        self.answered.append((time.monotonic(), port, verb, code))
        what = reported = None
        with suppress(msgspec.DecodeError):
            what = msgspec.json.decode(body, type=Ask)
        with suppress(msgspec.DecodeError):
            reported = msgspec.json.decode(answer, type=Pass)
        history = self.history
        if history is None:
            return
        uid = (what.Pod.metadata.uid if what.Pod else what.PodUID) if what else ""
        history.add(
            Answered(
                history.now,
                asked,
                port,
                verb,
                code,
                uid,
                what.Node if what else "",
                reported.Error if reported else "",
                len(reported.NodeNames or ()) if reported else 0,
            )
        )


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
