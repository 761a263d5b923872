"""Listens in between a kubelet and NVIDIA's device plugin: which allocation was asked for, and got.

Neither of them tells what it was asked. So the plugin registers here instead, and this registers
with the kubelet; every message is passed on as the bytes that came. Where the plugin dies, the
kubelet sees its call and its stream fail, as without a relay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from tests.e2e.deviceplugin import REGISTRATION, SERVICE, channel_to
from tests.e2e.proto.deviceplugin_pb2 import (
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    RegisterRequest,
)

POLL = 0.1
TIMEOUT = 120.0
WORKERS = 16  # each stream of devices holds one until its end


@dataclass(frozen=True, slots=True)
class Preference:
    """One question for a preferred allocation, by device ids; no answer where the plugin died."""

    available: tuple[str, ...]
    required: tuple[str, ...]
    size: int
    answer: tuple[str, ...] | None


def _same(message: bytes) -> bytes:
    return message


class Relay:
    """A relay while the context is open.

    ``folder`` is for its own socket, where the plugin is to register; ``plugins`` is the kubelet's
    folder for device plugins. ``pause`` is called before every preferred allocation.
    """

    def __init__(
        self, folder: Path, plugins: Path, pause: Callable[[], object] = lambda: None
    ) -> None:
        self.socket = folder / "kubelet.sock"
        self._plugins = plugins
        self._pause = pause
        self._lock = threading.Lock()
        self._preferences: list[Preference] = []
        self._registration: grpc.Server | None = None
        self._served: dict[str, tuple[grpc.Server, grpc.Channel]] = {}
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watcher.join()
        self._close()

    def preferences(self) -> list[Preference]:
        """Every question for a preferred allocation so far, with its answer."""
        with self._lock:
            return list(self._preferences)

    def _watch(self) -> None:
        """Offer a fresh socket whenever the kubelet has one: a plugin registers anew then."""
        kubelet = self._plugins / "kubelet.sock"
        seen: tuple[int, int] | None = None
        while not self._stop.wait(POLL):
            try:
                found = kubelet.stat()
            except OSError:
                continue
            if (found.st_ino, found.st_ctime_ns) != seen:
                seen = (found.st_ino, found.st_ctime_ns)
                self._close()
                self._registration = _server(self.socket, self._registered)

    def _close(self) -> None:
        if self._registration is not None:
            self._registration.stop(None).wait()
        with self._lock:
            served, self._served = self._served, {}
        for server, channel in served.values():
            channel.close()
            server.stop(None).wait()

    def _registered(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if method != f"{REGISTRATION}/Register":
            return None

        def register(request: bytes, context: grpc.ServicerContext) -> bytes:
            asked = RegisterRequest.FromString(request)
            self._serve(asked.endpoint)
            asked.endpoint = _relayed(asked.endpoint)
            with channel_to(self._plugins / "kubelet.sock") as channel:
                call = channel.unary_unary(method, _same, _same)
                return call(asked.SerializeToString(), timeout=TIMEOUT, wait_for_ready=True)

        return grpc.unary_unary_rpc_method_handler(register, _same, _same)

    def _serve(self, endpoint: str) -> None:
        """Stand in for a plugin's socket; in place of what stood there for its last start."""
        channel = channel_to(self._plugins / endpoint)
        with self._lock:
            before = self._served.pop(endpoint, None)
        if before is not None:
            before[1].close()
            before[0].stop(None).wait()
        handlers = _Passing(channel, self._note, self._pause)
        server = _server(self._plugins / _relayed(endpoint), handlers.handler)
        with self._lock:
            self._served[endpoint] = (server, channel)

    def _note(self, request: bytes, answer: bytes | None) -> None:
        asked = PreferredAllocationRequest.FromString(request).container_requests
        reported = PreferredAllocationResponse.FromString(answer or b"").container_responses
        with self._lock:
            for i, each in enumerate(asked):
                self._preferences.append(
                    Preference(
                        tuple(each.available_deviceIDs),
                        tuple(each.must_include_deviceIDs),
                        each.allocation_size,
                        None if answer is None else tuple(reported[i].deviceIDs),
                    )
                )


class _Passing:
    """Passes the calls for one plugin on to it."""

    def __init__(
        self,
        channel: grpc.Channel,
        note: Callable[[bytes, bytes | None], None],
        pause: Callable[[], object],
    ) -> None:
        self._channel = channel
        self._note = note
        self._pause = pause

    def handler(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if not method.startswith(f"{SERVICE}/"):
            return None
        if method == f"{SERVICE}/ListAndWatch":
            stream = self._channel.unary_stream(method, _same, _same)

            def watch(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
                found = stream(request)

                def leave() -> None:
                    found.cancel()

                context.add_callback(leave)
                with _telling(context):
                    yield from found

            return grpc.unary_stream_rpc_method_handler(watch, _same, _same)
        call = self._channel.unary_unary(method, _same, _same)
        preferring = method == f"{SERVICE}/GetPreferredAllocation"

        def ask(request: bytes, context: grpc.ServicerContext) -> bytes:
            answer = None
            if preferring:
                self._pause()
            with _telling(context):
                try:
                    answer = call(request, timeout=TIMEOUT)
                finally:
                    if preferring:
                        self._note(request, answer)
            assert answer is not None
            return answer

        return grpc.unary_unary_rpc_method_handler(ask, _same, _same)


@contextmanager
def _telling(context: grpc.ServicerContext) -> Iterator[None]:
    """Within it, an error of the plugin's becomes the answer to the kubelet."""
    try:
        yield
    except grpc.RpcError as error:
        context.abort(error.code(), error.details() or "")


class _Generic(grpc.GenericRpcHandler):
    def __init__(
        self, handler: Callable[[str], grpc.RpcMethodHandler[bytes, bytes] | None]
    ) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handler(details.method)


def _server(
    socket: Path, handler: Callable[[str], grpc.RpcMethodHandler[bytes, bytes] | None]
) -> grpc.Server:
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(WORKERS), handlers=[_Generic(handler)])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


def _relayed(endpoint: str) -> str:
    return f"relayed-{endpoint}"
