"""Runs the three apps on their ports, in one process and one event loop, until they are stopped."""

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import anyio.to_thread
import structlog
import uvicorn
import uvloop
from fastapi import FastAPI

from scheduler_extender.clientlimits import DEFAULT, Limits
from scheduler_extender.http import certificates as tls
from scheduler_extender.http.bothports import Failures
from scheduler_extender.http.certificates import Certificates, Tls
from scheduler_extender.http.connection import Connection, connection
from scheduler_extender.http.endpoint import VerbApp
from scheduler_extender.http.listener import Acceptor

log = structlog.get_logger(__name__)

# The collector of reference cycles stops every thread while it runs, for up to 60 ms over all that
# is cached. Hardly any object here is part of a cycle, so full collections are rare.
GC_THRESHOLDS = (50_000, 20, 1000)
# Seconds after which a computing thread yields the interpreter to the event loop. The interpreter's
# default is 5 ms. The loop needs the interpreter several times for one answer.
SWITCH_INTERVAL = 0.0002


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses and ports on which a service listens.

    ``host`` is the address of the ports for kube-scheduler and for metrics and probes. The port for
    people is on loopback; ``public_host`` is the name under which a proxy in the same pod serves
    it. ``dashboard`` is the address of the Grafana dashboard that its pages link to.
    """

    host: str = "127.0.0.1"
    port: int = 0
    admin_port: int = 0
    metrics_port: int = 0
    tls: Tls | None = None
    public_host: str = ""
    dashboard: str = ""


class PortError(OSError):
    """The service cannot listen on a port. The message names the port."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet. Port 0 takes any free port.

    Raises :class:`PortError`.
    """
    if not host:  # a socket would listen on every address then
        raise PortError("the address to listen on is empty; give one, such as 127.0.0.1 or 0.0.0.0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the socket names its protocol. With Nagle every
    # answer waits 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def listen_on_loopback(port: int) -> list[socket.socket]:
    """Return sockets on 127.0.0.1, and on ::1 if this machine has IPv6.

    Port 0 takes any free port, on 127.0.0.1 only. Raises :class:`PortError`.
    """
    listeners = [listen("127.0.0.1", port)]
    if port and _has_ipv6():
        try:
            listeners.append(listen("::1", port))
        except PortError:
            listeners[0].close()
            raise
    return listeners


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def loopback(listener: socket.socket) -> bool:
    """Check whether only programs of this machine (or pod) can reach a bound socket."""
    return ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


class _Server(uvicorn.Server):
    """A uvicorn server with our own acceptor and without uvicorn's signal handlers.

    One pair of signal handlers serves all apps.
    """

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        connections: type[Connection],
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                Failures(app),
                http=connections,
                ws="none",
                # uvicorn logs a line for each bad request. Our own lines are limited and counted.
                log_level="error",
                access_log=False,
                proxy_headers=False,
                timeout_keep_alive=int(connections.limits.idle_seconds),
                timeout_graceful_shutdown=5,
                lifespan="off",
            )
        )
        self._door = Acceptor(listener, self._connection, context, connections.limits)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self._door.start()
        self.servers = [self._door]  # type: ignore[list-item] # it is closed and waited for
        self.started = True

    def admit_anew(self) -> None:
        """Close every connection, so that each client must show its certificate again.

        An answer that is being sent is finished before.
        """
        self._door.give_up_handshakes()
        for each in list(self.server_state.connections):
            each.shutdown()

    def close_idle(self) -> None:
        """Close the connections whose clients wait for no answer."""
        for each in list(self.server_state.connections):
            if isinstance(each, Connection):
                each.close_if_idle()

    def _connection(self) -> Connection:
        return self.config.http_protocol_class(  # type: ignore[return-value]
            config=self.config,
            server_state=self.server_state,  # type: ignore[call-arg]
            app_state=self.lifespan.state,
        )


class Servers:
    """The servers of all ports together.

    :meth:`run` blocks; any thread may call :meth:`stop`. Each port has an app and its sockets.
    ``ports`` are the port numbers for kube-scheduler, for people and for metrics. ``warnings`` are
    for the program that starts the servers. :meth:`stop` calls the functions in ``on_stop``. With
    ``certificates`` the scheduler's port speaks TLS; the other ports speak plain HTTP.
    """

    def __init__(
        self,
        scheduler: tuple[VerbApp, socket.socket],
        people: tuple[FastAPI, Sequence[socket.socket]],
        metrics: tuple[FastAPI, socket.socket],
        certificates: Certificates | None = None,
        limits: Limits = DEFAULT,
        public_host: str = "",
    ) -> None:
        self.ports = (_port(scheduler[1]), _port(people[1][0]), _port(metrics[1]))
        self.warnings: list[str] = []
        self._apps = (scheduler[0], people[0], metrics[0])
        self.on_stop: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._certificates = certificates
        names = certificates.client_names if certificates else frozenset[str]()
        # With TLS a page under another host name fails at the certificate.
        local = certificates is None and loopback(scheduler[1])
        # A function, since each new connection needs the context that is current at that time.
        context = (lambda: certificates.contexts.context) if certificates else None
        of_people = connection(limits, local=True, public_host=public_host)
        of_metrics = connection(limits, local=loopback(metrics[1]))
        self._servers = [
            _Server(*scheduler, connection(limits, names, local=local), context),
            *(_Server(people[0], listener, of_people) for listener in people[1]),
            _Server(*metrics, of_metrics),
        ]

    def run(self, on_started: Callable[[], None] = lambda: None, *, signals: bool = True) -> None:
        """Serve until :meth:`stop`; with ``signals`` also until SIGINT or SIGTERM."""
        # Threads compute in pure Python, so this sets how soon the event loop can run.
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(*GC_THRESHOLDS)
        uvloop.run(self._run(on_started, signals))

    def stop(self) -> None:
        """Make :meth:`run` finish the answers that are being sent, and return."""
        for listener in self.on_stop:
            listener()
        for server in self._servers:
            server.should_exit = True

    def close_idle(self) -> None:
        """Close the idle connections of the scheduler's port. Any thread may call this."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._servers[0].close_idle)

    async def _run(self, on_started: Callable[[], None], signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        # Some libraries load parts at their first use. Without this the first verb would block the
        # loop for 20 ms.
        await anyio.to_thread.run_sync(int)
        for app in self._apps:
            app.middleware_stack = app.build_middleware_stack()
        tasks = [asyncio.create_task(server.serve()) for server in self._servers]
        watching = asyncio.create_task(self._watch_files())
        while not all(server.started for server in self._servers):
            if any(task.done() for task in tasks):
                break
            await asyncio.sleep(0.01)
        else:
            on_started()
        try:
            await asyncio.gather(*tasks)
        finally:
            watching.cancel()
            self._apps[0].close()

    async def _watch_files(self) -> None:
        while self._certificates is not None:
            await asyncio.sleep(tls.LOOK_EVERY)
            authority = self._certificates.contexts.authority
            try:
                await anyio.to_thread.run_sync(self._certificates.look)
            except Exception:
                # A failed check must not end this task.
                log.exception("checking the TLS files failed")
            if self._certificates.contexts.authority != authority:
                # The former CA has let these clients in, or is about to.
                self._servers[0].admit_anew()
