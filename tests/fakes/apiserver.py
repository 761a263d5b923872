"""A Kubernetes API server small enough to read: real HTTP, real watches, real conflicts.

It keeps any collection (``/api/v1/pods``, ``/apis/GROUP/VERSION/PLURAL``; namespaced or not) under
one global resourceVersion, and answers get, list (``limit``/``continue``, one snapshot), watch
(bookmarks, ``timeoutSeconds``, 410 for what history has forgotten), POST, PUT, merge-patch, the
``status`` subresource, ``pods/NAME/binding`` and the selectors ``spec.nodeName=`` and
``key=value,…``. A DELETE of a collection deletes what its selector selects. It asks for no token,
and allows in SelfSubjectAccessReviews all but what is ``denied``, such as ``patch pods/status``.
What it does not do it refuses loudly: other selectors (400), other patch types (415). DELETE
deletes at once; tests mark a pod as one that is being deleted.

The switches make it misbehave: :meth:`~FakeApiServer.stall`, :meth:`~FakeApiServer.drop_streams`,
:meth:`~FakeApiServer.refuse`, :meth:`~FakeApiServer.delay`,
:meth:`~FakeApiServer.commit_then_hang`, :meth:`~FakeApiServer.expire_history`.
"""

import base64
import copy
import json
import re
import select
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]
Key = tuple[str, str]  # Namespace (empty for cluster-scoped objects) and name

# Resources whose status only ``/status`` changes (and, for creations, nobody but a kubelet's).
STATUS_SUBRESOURCE = frozenset({"pods", "nodes", "gputopologies"})

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}

_PATH = re.compile(
    r"^(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?$"
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived, refused ones included."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str | None
    user_agent: str | None

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass(frozen=True, slots=True)
class _Target:
    collection: str
    resource: str
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def key(self) -> Key:
        return (self.namespace or "", self.name or "")


@dataclass(frozen=True, slots=True)
class _Change:
    """What happened to an object, and which node it was on before, None where it was not there."""

    version: int
    collection: str
    namespace: str
    kind: str
    obj: Json
    node_before: str | None

    def line(self, node: str | None) -> bytes | None:
        """The event for a watcher of that node's objects, or None; node None watches all.

        An object that comes into the selection is added to it, whatever it was before.
        """
        if node is None:
            return _line(self.kind, self.obj)
        was, now = self.node_before == node, _node(self.obj) == node
        if self.kind == "MODIFIED" and was != now:
            return _line("ADDED" if now else "DELETED", self.obj)
        return _line(self.kind, self.obj) if now else None


@dataclass(slots=True, eq=False)
class _Watcher:
    collection: str
    namespace: str | None
    bookmarks: bool
    node: str | None
    lines: deque[bytes] = field(default_factory=deque)
    dropped: bool = False
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Hold:
    """Requests that wait, for ``seconds`` or until it is over; the first ``skips`` do not."""

    path: re.Pattern[str]
    seconds: float | None = None
    skips: int = 0
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Refusal:
    status: int
    times: int | None
    path: re.Pattern[str]
    watch: bool | None
    retry_after: int | None


class _StatusAnswer(Exception):  # noqa: N818
    retry_after: int | None = None

    def __init__(self, code: int, message: str, reason: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.body = status_object(code, message, reason)


def status_object(code: int, message: str = "", reason: str | None = None) -> Json:
    """The Status object the API server sends with an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or f"the fake says {code}",
        "reason": reason or REASONS.get(code, "Unknown"),
        "code": code,
    }


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


class FakeApiServer:
    """The server; use it as a context manager, ``url`` says where it is.

    ``history`` is how many changes a watch can catch up on; ``bookmark_every_s`` sends bookmarks
    on its own (:meth:`bookmark` at will); ``gone_as_event`` answers a watch from a forgotten
    version with an ERROR event instead of HTTP 410, as the real server mostly does; ``tls`` makes
    it speak https.
    """

    def __init__(
        self,
        *,
        history: int = 1000,
        bookmark_every_s: float | None = None,
        gone_as_event: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.gone_as_event = gone_as_event
        self.bookmark_every_s = bookmark_every_s
        self.ahead = 0.0  # seconds by which its clock is ahead of this machine's
        self.requests: list[Request] = []
        self.proxied: dict[str, Json] = {}  # what others answer by its proxy, by path
        self.connections_accepted = 0
        self.denied: set[str] = set()
        self._window = history
        self._changed = threading.Condition(threading.RLock())
        self._stopping = threading.Event()
        self._version = 100  # versions are no counts: nobody may rely on starting at 0
        self._forgotten = 0
        self._objects: dict[str, dict[Key, Json]] = {}
        self._history: deque[_Change] = deque()
        self._snapshots: dict[tuple[str, int], list[Json]] = {}
        self._watchers: list[_Watcher] = []
        self._stalled = False
        self._refusals: list[_Refusal] = []
        self._delays: list[_Hold] = []
        self._hangs: list[_Hold] = []
        self._judges: dict[str, Callable[[Json], list[str]]] = {}
        self._sockets: set[socket.socket] = set()
        self._http = _Server(("127.0.0.1", 0), self, tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._let_go()
        self._http.shutdown()
        self._thread.join()
        with self._changed:
            for open_socket in self._sockets:
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # joins the handlers
        if error is None and self._http.failures:
            raise self._http.failures[0]

    def write_kubeconfig(self, path: Path, *, token: str | None = None) -> Path:
        """Write a kubeconfig for this server (JSON, which is YAML) and return its path."""
        cluster: Json = {"server": self.url}
        if self.url.startswith("https"):
            cluster["insecure-skip-tls-verify"] = True
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "fake", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(config))
        return path

    # The store, from the test's side: no request, no switch in between.

    @property
    def resource_version(self) -> int:
        with self._changed:
            return self._version

    @property
    def open_streams(self) -> int:
        with self._changed:
            return len(self._watchers)

    def put(self, path: str, obj: Json) -> Json:
        """Create or overwrite an object, status and all; ``path`` is its collection's."""
        target = _parse(path)
        with self._changed:
            name = obj["metadata"]["name"]
            namespace = target.namespace or obj["metadata"].get("namespace", "")
            return copy.deepcopy(self._store(target, (namespace, name), obj))

    def remove(self, path: str) -> None:
        """Delete the object at ``path``."""
        target = _parse(path)
        with self._changed:
            self._delete(target, target.key)

    def read(self, path: str) -> Json:
        """Return a copy of the object at ``path``; KeyError when there is none."""
        target = _parse(path)
        with self._changed:
            return copy.deepcopy(self._objects[target.collection][target.key])

    def versions(self, path: str) -> list[Json]:
        """Every version that an object has had, as far as the history goes."""
        target = _parse(path)
        with self._changed:
            return [
                c.obj
                for c in self._history
                if c.collection == target.collection and c.obj["metadata"]["name"] == target.name
            ]

    def items(self, path: str) -> list[Json]:
        """Return copies of a collection's objects, in list order."""
        target = _parse(path)
        with self._changed:
            return copy.deepcopy(self._select(target.collection, target.namespace))

    # The switches.

    def stall(self) -> None:
        """Streams, open ones and new ones, are accepted and say nothing until :meth:`resume`."""
        with self._changed:
            self._stalled = True

    def resume(self) -> None:
        """End :meth:`stall`: streams that are still open deliver what they held back."""
        with self._changed:
            self._stalled = False
            self._changed.notify_all()

    def drop_streams(self) -> None:
        """Break every open stream in the middle of its answer."""
        with self._changed:
            for watcher in self._watchers:
                watcher.dropped = True
            self._changed.notify_all()

    def end_streams(self) -> None:
        """End every open stream in good order, as when ``timeoutSeconds`` is up."""
        with self._changed:
            for watcher in self._watchers:
                watcher.ended = True
            self._changed.notify_all()

    def inject(self, line: bytes) -> None:
        """Send a line of the test's making (an ERROR event, garbage) down every open stream."""
        with self._changed:
            for watcher in self._watchers:
                watcher.lines.append(line)
            self._changed.notify_all()

    def repeat(self, collection: str, events: int) -> None:
        """Send the latest events of a collection once more, in their order, down every stream that
        watches all of it: as a server does whose own watch was begun anew."""
        with self._changed:
            lines = [c.line(None) for c in self._history if c.collection == collection]
            for watcher in self._watchers:
                if watcher.collection == collection and watcher.node is None:
                    watcher.lines.extend(line for line in lines[-events:] if line is not None)
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Send a bookmark now, to the watches that allow them."""
        with self._changed:
            for watcher in self._watchers:
                if watcher.bookmarks:
                    watcher.lines.append(self._bookmark_line())
            self._changed.notify_all()

    def expire_history(self) -> None:
        """Forget every version there was, as compaction does; open streams go on."""
        with self._changed:
            self._version += 1  # something else in the cluster moved on
            self._forgotten = self._version
            self._history.clear()
            self._snapshots.clear()

    def refuse(
        self,
        status: int,
        times: int | None = 1,
        *,
        path: str = ".*",
        watch: bool | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Answer the next ``times`` requests (``None``: all until :meth:`allow`) with ``status``.

        ``path`` is a regular expression; ``watch`` picks watches or everything else. With
        ``retry_after`` the client is asked to wait so many seconds.
        """
        with self._changed:
            refusal = _Refusal(status, times, re.compile(path), watch, retry_after)
            self._refusals.append(refusal)

    def allow(self) -> None:
        """End every :meth:`refuse`, :meth:`delay` and :meth:`commit_then_hang`.

        Requests that wait are gone on with; those that hang lose their connection.
        """
        with self._changed:
            self._refusals.clear()
        self._let_go()

    def delay(self, path: str, seconds: float, *, after: int = 0) -> None:
        """Let requests whose path matches wait before anything happens, but the first ``after``."""
        with self._changed:
            self._delays.append(_Hold(re.compile(path), seconds, after))

    def commit_then_hang(self, path: str) -> None:
        """Do the writes whose path matches, and do not answer them."""
        with self._changed:
            self._hangs.append(_Hold(re.compile(path)))

    def validate(self, collection: str, faults: Callable[[Json], list[str]]) -> None:
        """From now on refuse (422) a write into a collection in which ``faults`` finds any."""
        with self._changed:
            self._judges[collection] = faults

    # What the handlers call.

    def _admit(self, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            delays = [delay for delay in self._delays if delay.path.search(request.path)]
            waits = [delay for delay in delays if not delay.skips]
            for delay in delays:
                delay.skips = max(0, delay.skips - 1)
        for delay in waits:
            delay.over.wait(delay.seconds)
        with self._changed:
            for refusal in self._refusals:
                if refusal.watch not in (None, request.watch) or not refusal.path.search(
                    request.path
                ):
                    continue
                if refusal.times is not None:
                    refusal.times -= 1
                    if refusal.times <= 0:
                        self._refusals.remove(refusal)
                answer = _StatusAnswer(refusal.status, "refused by the fake")
                answer.retry_after = refusal.retry_after
                raise answer

    def _hang_if_told(self, path: str) -> bool:
        with self._changed:
            found = [hang for hang in self._hangs if hang.path.search(path)]
        for hang in found:
            hang.over.wait()
        return bool(found)

    def _let_go(self) -> None:
        with self._changed:
            for hold in (*self._delays, *self._hangs):
                hold.over.set()
            self._delays.clear()
            self._hangs.clear()

    def _get(self, target: _Target, query: dict[str, str]) -> Json:
        if target.name is not None:
            with self._changed:
                return self._existing(target)
        limit = int(query.get("limit", 0))
        with self._changed:
            start, version = 0, self._version
            if token := query.get("continue"):
                start, version = json.loads(base64.b64decode(token))
                if (target.collection, version) not in self._snapshots:
                    raise _StatusAnswer(410, "The provided continue parameter is too old")
                items = self._snapshots[target.collection, version]
            else:
                items = self._select(target.collection, target.namespace, None)
                items = _fielded(items, query.get("fieldSelector"))
                items = _labelled(items, query.get("labelSelector"))
            metadata: Json = {"resourceVersion": str(version)}
            end = start + limit if limit else len(items)
            if end < len(items):
                self._snapshots[target.collection, version] = items
                after = json.dumps([end, version]).encode()
                metadata["continue"] = base64.b64encode(after).decode()
                metadata["remainingItemCount"] = len(items) - end
        return {
            "kind": "List",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": items[start:end] or None,
        }

    def _create(self, target: _Target, body: Json) -> Json:
        if target.subresource == "binding" and target.resource == "pods":
            return self._bind(target, body)
        if target.name is not None:
            raise _StatusAnswer(405, "POST goes to a collection")
        if target.resource == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            part = f"/{asked['subresource']}" if asked.get("subresource") else ""
            allowed = f"{asked['verb']} {asked['resource']}{part}" not in self.denied
            return {**body, "status": {"allowed": allowed}}
        body = copy.deepcopy(body)
        metadata = body.setdefault("metadata", {})
        with self._changed:
            if not metadata.get("name") and metadata.get("generateName"):
                metadata["name"] = f"{metadata['generateName']}{self._version:05}"
            if not metadata.get("name"):
                raise _StatusAnswer(422, "name or generateName is required")
            key = (target.namespace or "", metadata["name"])
            if key in self._objects.get(target.collection, {}):
                raise _StatusAnswer(409, f"{key[1]!r} already exists", "AlreadyExists")
            if target.resource in STATUS_SUBRESOURCE and target.resource != "nodes":
                body.pop("status", None)
            self._judge(target, body)
            return self._store(target, key, body)

    def _judge(self, target: _Target, obj: Json) -> None:
        judge = self._judges.get(target.collection)
        if judge is not None and (faults := judge(obj)):
            raise _StatusAnswer(422, f"{target.resource} is invalid: {', '.join(faults[:10])}")

    def _bind(self, target: _Target, binding: Json) -> Json:
        # As the real pods/binding: whatever stands against it is a 409, but for a missing pod.
        metadata = binding.get("metadata", {})
        if metadata.get("name") != target.name:
            raise _StatusAnswer(400, "name in URL does not match name in Binding object")
        if not (node := binding.get("target", {}).get("name")):
            raise _StatusAnswer(422, "target.name is required")
        with self._changed:
            old = self._existing(target)
            for precondition in ("uid", "resourceVersion"):
                wanted = metadata.get(precondition)
                if wanted and wanted != old["metadata"][precondition]:
                    found = old["metadata"][precondition]
                    raise _StatusAnswer(
                        409, f"Precondition failed: {precondition}: {wanted}, in object: {found}"
                    )
            if old["metadata"].get("deletionTimestamp"):
                raise _StatusAnswer(
                    409, f"pod {target.name} is being deleted, cannot be assigned to a host"
                )
            if assigned := old.get("spec", {}).get("nodeName"):
                raise _StatusAnswer(
                    409, f'pod {target.name} is already assigned to node "{assigned}"'
                )
            if old.get("spec", {}).get("schedulingGates"):
                raise _StatusAnswer(409, f"pod {target.name} has non-empty .spec.schedulingGates")
            conditions = [
                condition
                for condition in old.get("status", {}).get("conditions", ())
                if condition["type"] != "PodScheduled"
            ]
            conditions.append({"type": "PodScheduled", "status": "True"})
            change: Json = {
                "metadata": {
                    "annotations": metadata.get("annotations", {}),
                    "labels": metadata.get("labels", {}),
                },
                "spec": {"nodeName": node},
                "status": {"conditions": conditions},
            }
            self._store(target, target.key, merge_patch(old, change))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _patch(self, target: _Target, content_type: str, patch: Json) -> Json:
        if content_type != "application/merge-patch+json":
            raise _StatusAnswer(415, f"the fake knows no {content_type}")
        with self._changed:
            old = self._existing(target)
            return self._change(target, old, merge_patch(old, patch), patch.get("metadata", {}))

    def _replace(self, target: _Target, body: Json) -> Json:
        with self._changed:
            return self._change(target, self._existing(target), body, body.get("metadata", {}))

    def _change(self, target: _Target, old: Json, new: Json, preconditions: Json) -> Json:
        self._check(old, preconditions)
        if target.subresource not in (None, "status"):
            raise _StatusAnswer(404, "the fake knows no such subresource")
        if target.subresource == "status":
            new = {**old, "status": new.get("status", {})}
        elif target.resource in STATUS_SUBRESOURCE:
            new = {field: value for field, value in new.items() if field != "status"}
            if "status" in old:
                new["status"] = old["status"]
        if target.resource == "pods" and new.get("spec") != old.get("spec"):
            raise _StatusAnswer(422, "pod updates may not change fields of the spec")
        self._judge(target, new)
        return self._store(target, target.key, new)

    def _end(self, target: _Target, preconditions: Json) -> Json:
        with self._changed:
            self._check(self._existing(target), preconditions)
            return self._delete(target, target.key)

    def _end_all(self, target: _Target, selector: str | None) -> Json:
        with self._changed:
            for obj in _labelled(self._select(target.collection, target.namespace), selector):
                metadata = obj["metadata"]
                self._delete(target, (metadata.get("namespace", ""), metadata["name"]))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _check(self, old: Json, preconditions: Json) -> None:
        for precondition in ("uid", "resourceVersion"):
            wanted = preconditions.get(precondition)
            if wanted and wanted != old["metadata"][precondition]:
                raise _StatusAnswer(409, "the object has been modified; please apply your changes")

    def _existing(self, target: _Target) -> Json:
        try:
            return self._objects[target.collection][target.key]
        except KeyError:
            raise _StatusAnswer(404, f'{target.resource} "{target.name}" not found') from None

    def _select(
        self, collection: str, namespace: str | None, node: str | None = None
    ) -> list[Json]:
        objects = self._objects.get(collection, {})
        found = [objects[key] for key in sorted(objects) if namespace in (None, key[0])]
        return [obj for obj in found if node in (None, _node(obj))]

    def _store(self, target: _Target, key: Key, obj: Json) -> Json:
        # Objects in the store are never changed, only replaced: snapshots hold on to them.
        objects = self._objects.setdefault(target.collection, {})
        old = objects.get(key)
        new = copy.deepcopy(obj)
        metadata = new["metadata"]
        metadata["name"] = key[1]
        if key[0]:
            metadata["namespace"] = key[0]
        if old is not None:
            for fixed in ("uid", "creationTimestamp", "resourceVersion"):
                metadata[fixed] = old["metadata"][fixed]
            if new == old:  # as in the real one: no new version, no event
                return old
        self._version += 1
        if old is None:
            metadata.setdefault("uid", f"uid-{self._version}")
            metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata["resourceVersion"] = str(self._version)
        objects[key] = new
        kind = "ADDED" if old is None else "MODIFIED"
        self._publish(kind, target.collection, new, None if old is None else _node(old))
        return new

    def _delete(self, target: _Target, key: Key) -> Json:
        self._version += 1
        gone = copy.deepcopy(self._objects[target.collection].pop(key))
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._publish("DELETED", target.collection, gone, _node(gone))
        return gone

    def _publish(self, kind: str, collection: str, obj: Json, node_before: str | None) -> None:
        namespace = obj["metadata"].get("namespace", "")
        change = _Change(self._version, collection, namespace, kind, obj, node_before)
        self._history.append(change)
        while len(self._history) > self._window:
            self._forgotten = self._history.popleft().version
        for watcher in self._watchers:
            here = watcher.collection == collection and watcher.namespace in (None, namespace)
            if here and (line := change.line(watcher.node)) is not None:
                watcher.lines.append(line)
        self._changed.notify_all()

    def _bookmark_line(self) -> bytes:
        return _line("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    @contextmanager
    def _watching(self, target: _Target, query: dict[str, str]) -> Iterator[_Watcher]:
        """Register a watcher with what it missed; 410 when that is no longer known."""
        if "labelSelector" in query:
            raise _StatusAnswer(400, "the fake watches without a label selector")
        node = _selected_node(query)
        watcher = _Watcher(
            target.collection, target.namespace, query.get("allowWatchBookmarks") == "true", node
        )
        with self._changed:
            since = int(query.get("resourceVersion") or 0)
            if since == 0:
                items = self._select(target.collection, target.namespace, node)
                watcher.lines.extend(_line("ADDED", item) for item in items)
            elif since < self._forgotten:
                message = f"too old resource version: {since} ({self._forgotten})"
                if not self.gone_as_event:
                    raise _StatusAnswer(410, message)
                watcher.lines.append(_line("ERROR", status_object(410, message)))
                watcher.ended = True
            else:
                watcher.lines.extend(
                    line
                    for change in self._history
                    if change.version > since
                    and change.collection == target.collection
                    and target.namespace in (None, change.namespace)
                    and (line := change.line(node)) is not None
                )
            self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            with self._changed:
                self._watchers.remove(watcher)

    def _lines(self, watcher: _Watcher, seconds: float, peer: socket.socket) -> Iterator[bytes]:
        """Yield what to send until the watch ends; BrokenPipeError when it is to break."""
        end = time.monotonic() + seconds
        bookmark_at = time.monotonic() + (self.bookmark_every_s or 0)
        while True:
            with self._changed:
                if watcher.dropped or self._stopping.is_set():
                    raise BrokenPipeError
                line = None
                if not self._stalled:
                    now = time.monotonic()
                    if watcher.bookmarks and self.bookmark_every_s and now >= bookmark_at:
                        watcher.lines.append(self._bookmark_line())
                        bookmark_at = now + self.bookmark_every_s
                    if watcher.lines:
                        line = watcher.lines.popleft()
                    elif watcher.ended or now >= end:
                        return
                if line is None:
                    self._changed.wait(0.02)
            if line is not None:
                yield line
            elif select.select([peer], [], [], 0)[0]:  # a watching client only ever hangs up
                raise BrokenPipeError


def _node(obj: Json) -> str:
    return str(obj.get("spec", {}).get("nodeName") or "")


def _selected_node(query: dict[str, str]) -> str | None:
    """The node whose objects are asked for; None for all."""
    field, _, value = query.get("fieldSelector", "").partition("=")
    if field not in ("", "spec.nodeName"):
        raise _StatusAnswer(400, "the fake knows no field selector but spec.nodeName")
    return value if field else None


def _fielded(items: list[Json], selector: str | None) -> list[Json]:
    """The objects that a field selector selects."""
    for part in selector.split(",") if selector else ():
        field, _, wanted = part.partition("=")
        if field not in FIELDS:
            raise _StatusAnswer(400, f"the fake knows no field selector {field}")
        items = [each for each in items if _value(each, field) == wanted]
    return items


def _value(obj: Any, field: str) -> str:
    for key in field.split("."):
        obj = obj.get(key) or {} if isinstance(obj, dict) else {}
    return obj or ""


def _labelled(items: list[Json], selector: str | None) -> list[Json]:
    """The objects that a label selector selects."""
    if not selector:
        return items
    parts = [part.partition("=") for part in selector.split(",")]
    if not all(sign for _, sign, _ in parts) or set(selector) & set("!( )") or "==" in selector:
        raise _StatusAnswer(400, f"the fake selects by key=value,key=value, not {selector!r}")
    wanted = {(key, value) for key, _, value in parts}
    return [o for o in items if wanted <= (o["metadata"].get("labels") or {}).items()]


# The fields by which lists are selected; a watch knows the first alone.
FIELDS = ("spec.nodeName", "status.phase", "type", "involvedObject.kind")


def _line(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def _parse(path: str) -> _Target:
    if (match := _PATH.match(path)) is None:
        raise _StatusAnswer(404, "the server could not find the requested resource")
    return _Target(
        f"{match['root']}/{match['resource']}",
        match["resource"],
        match["namespace"],
        match["name"],
        match["subresource"],
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], api: FakeApiServer, tls: ssl.SSLContext | None
    ) -> None:
        self.api = api
        self.failures: list[BaseException] = []
        self._tls = tls
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, address = super().get_request()
        if self._tls is not None:  # the handshake is left to the connection's own thread
            accepted = self._tls.wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False
            )
        with self.api._changed:
            self.api.connections_accepted += 1
            self.api._sockets.add(accepted)
        return accepted, address

    def shutdown_request(self, request: Any) -> None:
        with self.api._changed:
            self.api._sockets.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # clients come and go
            self.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.server.api.ahead)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        api = self.server.api
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the client is gone in the middle: this is no request
            self.close_connection = True
            return
        url = urlsplit(self.path)
        request = Request(
            self.command,
            url.path,
            dict(parse_qsl(url.query, keep_blank_values=True)),
            self.headers.get("Authorization"),
            self.headers.get("User-Agent"),
        )
        retry_after: int | None = None
        try:
            api._admit(request)
            if (proxied := api.proxied.get(request.path)) is not None:
                self._send(200, proxied)
                return
            target = _parse(request.path)
            if request.watch:
                self._serve_watch(target, request.query)
                return
            document = json.loads(body) if body else {}
            code, answer = 200, self._answer(target, request, document)
            if request.method == "POST":
                code = 201
        except _StatusAnswer as refused:
            code, answer, retry_after = refused.code, refused.body, refused.retry_after
        if request.method != "GET" and code < 300 and api._hang_if_told(request.path):
            self.close_connection = True
            return
        self._send(code, answer, retry_after)

    def _answer(self, target: _Target, request: Request, document: Json) -> Json:
        api = self.server.api
        match request.method:
            case "GET":
                return api._get(target, request.query)
            case "POST":
                return api._create(target, document)
            case "PATCH":
                return api._patch(target, self.headers.get("Content-Type", ""), document)
            case "DELETE":
                if target.name is None:
                    return api._end_all(target, request.query.get("labelSelector"))
                return api._end(target, document.get("preconditions") or {})
            case _:
                return api._replace(target, document)

    def _send(self, code: int, answer: Json, retry_after: int | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve_watch(self, target: _Target, query: dict[str, str]) -> None:
        api = self.server.api
        with api._watching(target, query) as watcher:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                seconds = float(query.get("timeoutSeconds", 3600))
                for line in api._lines(watcher, seconds, self.connection):
                    self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True
