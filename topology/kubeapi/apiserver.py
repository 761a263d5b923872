"""The only adapter to the Kubernetes API server: bytes in, bytes out, errors of our own.

The ``kubernetes`` package reads kubeconfigs, renews credentials, and sets up the connection pool
(TLS, proxies). Its typed models and informers are not used. The caller decodes the answers, with
msgspec.

Every failure is an :class:`ApiFailure`. Either the server answered and refused (:class:`ApiError`),
or it could not be reached (:class:`ApiUnreachable`), or the configuration is unusable
(:class:`ApiMisconfigured`). Nothing is retried here, because only the caller knows what a retry
means.
"""

import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.response import BaseHTTPResponse

from topology.kubeapi.failures import (
    heard,
    misconfigured_text,
    plugin_text,
    reason_text,
    unreachable_text,
)

POOL_SIZE = 16  # idle connections kept open to the API server; more are opened when needed

_READ_BYTES = 64 * 1024

Query = Sequence[tuple[str, str]]  # query parameters in order, not yet percent-encoded


class ApiFailure(Exception):  # noqa: N818 (the root of three kinds, of which one is an error answer)
    """The failure of a request to the API server."""


class ApiMisconfigured(ApiFailure):
    """A kubeconfig, service account or credential plugin that cannot be used."""


class ApiUnreachable(ApiFailure):
    """The lack of an answer, after which a write may have been committed all the same.

    The causes are a refused or broken connection, a TLS failure, a timeout, or a closed client.
    """


class ApiNotSent(ApiUnreachable):
    """The failure to connect. The API server has surely not received the request."""


class ApiError(ApiFailure):
    """An answer of the API server that is not a success.

    ``status`` is the HTTP code. ``reason`` is the machine-readable word of the Status object
    (``Conflict``, ``Expired`` …) or else the HTTP phrase. ``message`` is the server's message.
    """

    retry_after = 0.0  # seconds that the server asks us to wait (mostly with 429)

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"


class NotFoundError(ApiError):
    """404: no such object, or no such resource (a CRD that is not installed)."""


class ConflictError(ApiError):
    """409: the object has changed since it was read, exists already, or fails a precondition."""


class GoneError(ApiError):
    """410: the resource version or the continue token is older than the server's history."""


def api_error(status: int, reason: str, message: str) -> ApiError:
    """Return (not raise) the :class:`ApiError` for an HTTP code, in the code's own class if any.

    >>> api_error(409, "Conflict", "pod is already assigned")
    ConflictError(409, 'Conflict', 'pod is already assigned')
    """
    kinds = {404: NotFoundError, 409: ConflictError, 410: GoneError}
    return kinds.get(status, ApiError)(status, reason, message)


def path(collection: str, *parts: str) -> str:
    """Return the path of something below ``collection``, with its parts percent-encoded.

    Servers decode a path before they split it. So a name that would become more than one part, or
    another directory, raises :class:`ApiMisconfigured`.

    >>> path("/api/v1/namespaces", "default", "pods", "a b")
    '/api/v1/namespaces/default/pods/a%20b'
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "%" in part:
            raise ApiMisconfigured(f"{part!r} cannot be a part of a path on the API server")
    return "/".join((collection, *(quote(part, safe="") for part in parts)))


class Status(msgspec.Struct):
    """The object that an error answer, or an ERROR event of a watch, carries."""

    code: int = 500
    reason: str = ""
    message: str = ""


class WatchStream:
    """The lines of one streamed answer, each a whole JSON document without its newline.

    Iterating waits for the next line. It raises :class:`ApiUnreachable` when the connection breaks
    or stays silent for the read timeout. It stops when the server ends the answer or after
    :meth:`close`. One thread iterates; any thread may close.
    """

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response
        self._reading = threading.Lock()
        self._closed = False
        self._ready: deque[bytes] = deque()
        self._tail = b""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        with self._reading:
            while not self._closed:
                if self._ready:
                    return self._ready.popleft()
                data = self._read()
                if not data:
                    self._closed = True
                    self._response.close()
                    if self._tail:
                        return self._tail
                    break
                *lines, self._tail = (self._tail + data).split(b"\n")
                self._ready.extend(line for line in lines if line)
        raise StopIteration

    def close(self) -> None:
        """Close the connection and wake the thread that waits for a line; safe to call twice."""
        self._closed = True
        # This fails if the connection went back to the pool or was closed. Then no thread waits.
        with suppress(OSError, RuntimeError, ValueError):
            self._response.shutdown()
        with self._reading:  # do not take the buffers away while a thread reads
            self._response.close()

    def _read(self) -> bytes:
        try:
            return self._response.read1(_READ_BYTES, decode_content=False)
        except (HTTPError, OSError, ValueError) as error:
            if self._closed:
                return b""
            self._response.close()
            raise ApiUnreachable(f"watch broken: {error}") from error


class ApiServer:
    """A thread-safe client of one API server, with its credentials.

    Build it with :meth:`from_kubeconfig` or :meth:`in_cluster`. Paths are absolute and already
    percent-encoded (``/api/v1/pods``), timeouts are in seconds, answers are the raw JSON bytes. All
    methods raise :class:`ApiError`, :class:`ApiUnreachable` or :class:`ApiMisconfigured`.
    """

    def __init__(self, configuration: Any, plugin: str = "") -> None:
        from kubernetes.client import ApiClient  # takes half a second, which file mode saves

        configuration.connection_pool_maxsize = POOL_SIZE
        configuration.keep_alive = True  # TCP probes show a dead peer on an idle watch, too
        self._configuration = configuration
        self._plugin = plugin
        # The server's last time, as HTTP writes it, and our time then.
        self._dated: tuple[str, float] | None = None
        self._credentials = threading.Lock()
        self._open = _OpenConnections()
        self._pools: urllib3.PoolManager = ApiClient(configuration).rest_client.pool_manager
        self._pools.pool_classes_by_scheme = {
            scheme: self._open.watched(pool_class)
            for scheme, pool_class in self._pools.pool_classes_by_scheme.items()
        }

    @classmethod
    def from_kubeconfig(cls, path: str | Path, context: str | None = None) -> Self:
        """Return a client for a kubeconfig's context (its current one by default).

        The file is never written to. Raises :class:`ApiMisconfigured` when it cannot be used.
        """
        from kubernetes import client, config

        if not any(Path(file).exists() for file in str(path).split(os.pathsep) if file):
            raise ApiMisconfigured(f"kubeconfig {path}: there is no such file")
        configuration = client.Configuration()
        load: Callable[..., None] = config.load_kube_config
        try:
            with heard() as said:
                load(str(path), context, client_configuration=configuration, persist_config=False)
            plugin = plugin_text(str(path), context)
        except Exception as error:  # a bad file raises one of a dozen kinds of exceptions
            raise ApiMisconfigured(f"kubeconfig {path}: {misconfigured_text(error)}") from error
        if said:
            raise ApiMisconfigured(f"{plugin}: {reason_text(said)}")
        return cls(configuration, plugin)

    @classmethod
    def in_cluster(cls) -> Self:
        """Return a client with the pod's service account, whose token is read again every minute.

        Raises :class:`ApiMisconfigured` outside a pod.
        """
        from kubernetes import client, config

        configuration = client.Configuration()
        load: Callable[..., None] = config.load_incluster_config
        try:
            load(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise ApiMisconfigured(f"service account: {misconfigured_text(error)}") from error
        return cls(configuration)

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        """Return an object or a list."""
        return self._request("GET", path, query, timeout=urllib3.Timeout(total=timeout)).data

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        """POST a JSON object to a collection or subresource, and return the created object."""
        return self._request(
            "POST",
            path,
            query,
            content=(body, "application/json"),
            timeout=urllib3.Timeout(total=timeout),
        ).data

    def update(self, path: str, body: bytes, *, timeout: float) -> bytes:
        """PUT a whole JSON object or subresource and return the object as it is now."""
        return self._request(
            "PUT",
            path,
            content=(body, "application/json"),
            timeout=urllib3.Timeout(total=timeout),
        ).data

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        """Merge a patch into an object or subresource and return the object as it is now."""
        return self._request(
            "PATCH",
            path,
            content=(body, "application/merge-patch+json"),
            timeout=urllib3.Timeout(total=timeout),
        ).data

    def delete(self, path: str, options: bytes, query: Query = (), *, timeout: float) -> bytes:
        """DELETE an object or the selected ones, with DeleteOptions; return the answer."""
        content = (options, "application/json")
        limit = urllib3.Timeout(total=timeout)
        return self._request("DELETE", path, query, content=content, timeout=limit).data

    def stream(
        self, path: str, query: Query = (), *, connect_timeout: float, read_timeout: float
    ) -> WatchStream:
        """Open a watch and return its lines once the server has accepted it.

        ``read_timeout`` limits the silence before the answer and between two reads of it.
        """
        response = self._request(
            "GET",
            path,
            query,
            timeout=urllib3.Timeout(connect=connect_timeout, read=read_timeout),
            preload=False,
        )
        return WatchStream(response)

    @property
    def ca_file(self) -> str | None:
        """The certificates that verify the API server's certificate; None for the system's."""
        return self._configuration.ssl_ca_cert  # type: ignore[no-any-return]

    @property
    def ahead(self) -> float:
        """The seconds by which the server's clock is ahead of ours.

        The server's time is the Date of its last answer. The result is 0 for less than two seconds,
        because HTTP gives whole seconds, and while no Date is known.
        """
        date, here = self._dated or ("", 0.0)
        try:
            apart = parsedate_to_datetime(date).timestamp() - here
        except ValueError:
            return 0.0
        return apart if abs(apart) > 2.0 else 0.0

    def today(self) -> float:
        """Return the time by the server's clock, in seconds since 1970."""
        return time.time() + self.ahead

    def close(self) -> None:
        """Close every connection, in use or not. Running and later requests fail at once.

        Only a thread that is just opening a connection still waits for it.
        """
        self._open.shut()
        self._pools.clear()

    def _request(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        timeout: urllib3.Timeout,
        content: tuple[bytes, str] | None = None,
        preload: bool = True,
    ) -> BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "gpu-topology"}
        if content is not None:
            headers["Content-Type"] = content[1]
        headers |= self.authorization()
        host = self._configuration.host
        url = host + path + (f"?{urlencode(query)}" if query else "")
        if self._open.closed:
            raise ApiUnreachable(f"{method} {path}: the client is closed")
        try:
            response = self._pools.request(
                method,
                url,
                body=content[0] if content is not None else None,
                headers=headers,
                timeout=timeout,
                retries=False,  # redirects are not followed either
                preload_content=preload,
            )
            date = response.headers.get("Date")
            self._dated = None if date is None else (date, time.time())
            if 200 <= response.status < 300:
                return response
            answer = response.data
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise ApiNotSent(unreachable_text(f"{method} {path}: {host}", error)) from error
        except (HTTPError, OSError) as error:
            raise ApiUnreachable(unreachable_text(f"{method} {path}: {host}", error)) from error
        try:
            status = msgspec.json.decode(answer, type=Status)
        except msgspec.DecodeError:  # a proxy's page, not an answer of the API server
            page = answer[:200].decode("utf-8", "replace")
            status = Status(message=page or f"{method} {path}: {host} answered without a message")
        failure = api_error(response.status, status.reason or response.reason or "", status.message)
        asked = response.headers.get("Retry-After", "")
        if asked.isdecimal():  # the API server sends seconds, never a date
            failure.retry_after = float(asked[:6])
        raise failure

    def authorization(self) -> dict[str, str]:
        """Return the headers that identify us to this API server.

        Servers that let this API server check credentials, such as the kubelet, accept them, too.
        """
        # A call at each request lets the package renew expired credentials. The lock lets one
        # thread in at a time, so that an exec plugin does not run once per thread.
        with self._credentials:
            try:
                with heard() as said:
                    settings = self._configuration.auth_settings()
            except Exception as error:  # a token file or plugin may fail in any way
                raise ApiMisconfigured(f"credentials cannot be renewed: {error}") from error
        if said:
            raise ApiMisconfigured(f"{self._plugin}: {reason_text(said)}")
        return {
            setting["key"]: setting["value"].strip()  # a token file may end in a newline
            for setting in settings.values()
            if setting["in"] == "header" and setting["value"]
        }


class _OpenConnections:
    """The connections of one client. Closing the client wakes the threads that wait on one.

    urllib3 can interrupt an answer's body, but not the wait for its first line.
    """

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()

    def watched(
        self, pool_class: type[urllib3.HTTPConnectionPool]
    ) -> type[urllib3.HTTPConnectionPool]:
        """Return the pool class whose connections register here when they are open."""
        base: Any = pool_class.ConnectionCls
        add = self._add

        class Watched(base):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                add(self)

        return type(pool_class.__name__, (pool_class,), {"ConnectionCls": Watched})

    def shut(self) -> None:
        with self._lock:
            self.closed = True
            connections = list(self._connections)
        for connection in connections:
            if (sock := connection.sock) is not None:
                with suppress(OSError):  # its own thread closed it first
                    sock.shutdown(socket.SHUT_RDWR)

    def _add(self, connection: HTTPConnection) -> None:
        with self._lock:
            if not self.closed:
                self._connections.add(connection)
                return
        connection.close()
        raise ConnectionAbortedError("the client is closed")
