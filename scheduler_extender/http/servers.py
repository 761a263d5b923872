"""Runs the two apps on their ports, in one process and one event loop, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator

import anyio.to_thread
import uvicorn
from fastapi import FastAPI

from scheduler_extender.http.addresses import Tls
from scheduler_extender.http.connection import Connection, connection
from scheduler_extender.limits import DEFAULT, Limits

GC_THRESHOLDS = (50_000, 20, 1000)
"""The collector of reference cycles stops every thread while it looks, up to 60 ms through all that
is remembered. Hardly anything here is part of a cycle, so it looks at all of it rarely."""
SWITCH_INTERVAL = 0.0002
"""Seconds after which a thread that computes lets the event loop go on; the interpreter's own is
5 ms. An answer of the loop takes several such turns."""


class PortError(OSError):
    """A port cannot be listened on; the message names it."""


def listen(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket; port 0 takes any free one. Raises :class:`PortError`."""
    if not host:  # a socket would take it for every address
        raise PortError("cannot listen on no address: give one, such as 127.0.0.1 or 0.0.0.0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle off only where it is: without that every
    # answer waits 40 ms for a delayed acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return found


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: one pair of handlers serves both apps."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Servers:
    """Both servers together. :meth:`run` blocks; :meth:`stop` may come from any thread.

    ``ports`` are the numbers that they listen on. ``on_stop`` are called, on the event loop, when
    it is told to stop.
    """

    def __init__(
        self,
        app: FastAPI,
        admin: FastAPI,
        sockets: tuple[socket.socket, socket.socket],
        tls: Tls | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._sockets = sockets
        self.ports: tuple[int, int] = (sockets[0].getsockname()[1], sockets[1].getsockname()[1])
        self._apps = (app, admin)
        configs = (_config(app, tls, limits), _config(admin, None, limits))
        self._servers = [_Server(config) for config in configs]
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_stop: list[Callable[[], None]] = []

    def run(self, on_started: Callable[[], None] = lambda: None, *, signals: bool = True) -> None:
        """Serve until stopped, by SIGINT or SIGTERM too if ``signals``."""
        # Threads work answers out in pure Python: so often the event loop gets its turn.
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(*GC_THRESHOLDS)
        asyncio.run(self._run(on_started, signals))

    def stop(self) -> None:
        """Finish what is being answered, then return from :meth:`run`."""
        for listener in self.on_stop:
            listener()
        for server in self._servers:
            server.should_exit = True

    def close_idle(self) -> None:
        """Close the connections to the verbs that wait for no answer; from any thread."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._close_idle)

    def _close_idle(self) -> None:
        for found in list(self._servers[0].server_state.connections):
            if isinstance(found, Connection):
                found.close_if_idle()

    async def _run(self, on_started: Callable[[], None], signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if signals:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        await self._load()
        tasks = [
            asyncio.create_task(server.serve([sock]))
            for server, sock in zip(self._servers, self._sockets, strict=True)
        ]
        while not all(server.started for server in self._servers):
            if any(task.done() for task in tasks):
                break
            await asyncio.sleep(0.01)
        else:
            on_started()
        await asyncio.gather(*tasks)

    async def _load(self) -> None:
        """Load what the libraries load late; else the first verb holds the loop for 20 ms."""
        await anyio.to_thread.run_sync(int)
        for app in self._apps:
            app.middleware_stack = app.build_middleware_stack()


def _config(app: FastAPI, tls: Tls | None, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection(limits, tls.client_names if tls else frozenset()),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=5,
        lifespan="off",
        ssl_certfile=str(tls.certificate) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
