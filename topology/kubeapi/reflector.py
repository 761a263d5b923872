"""The reflector, which keeps a sink equal to one Kubernetes resource: first a list, then a watch.

Rules:

* The list is read in pages with no ``resourceVersion``. This is the newest state, so a new list
  never goes back in time. The pages are one snapshot. If the server forgets it half way (410), the
  list starts again in one page, which cannot expire. The sink gets each page as it comes, and no
  page is kept once the sink has released its objects.
* The watch resumes from the last version seen, in an event or a bookmark, after any failure that
  leaves this version valid. Only these lead to a new list: 410 (the history is gone), 404 (the CRD
  is gone), an answer that makes no sense, and a sink that asks for a list. The new list shows which
  objects were deleted meanwhile.
* A stream that sends nothing for ``stall_timeout_s`` is dropped and resumed. The server sends a
  bookmark about once a minute.
* After a failure the reflector waits, with exponential backoff and full jitter. The backoff starts
  again from the shortest wait after a watch that lived for ``healthy_s``. The wait is longer if the
  server asks for it (Retry-After). A 410 does not wait unless it follows another one, because the
  server is reachable.
* Only :meth:`Reflector.stop` ends the thread. After that the sink gets no new call, at most one
  more object of a list, and nothing at all once :meth:`Reflector.stop` has returned True.
"""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import msgspec
import structlog

from topology.kubeapi.apiserver import (
    ApiError,
    ApiServer,
    ApiUnreachable,
    GoneError,
    NotFoundError,
    Query,
    Status,
    WatchStream,
    api_error,
)

log = structlog.get_logger(__name__)

# Seconds until an optional collection that is missing, or may not be listed, is tried again.
WHERE_ABSENT = 300.0
FORBIDDEN = 403
LONGEST_ASKED = 30.0  # the most seconds that a server may make us wait with Retry-After


class PageMeta(msgspec.Struct, rename="camel"):
    """The list's version, and the token of the next page, which is empty on the last page."""

    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """A page of a list."""

    metadata: PageMeta
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null


class Event(msgspec.Struct):
    """One line of a watch. Its type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class ObjectMeta(msgspec.Struct, rename="camel"):
    """The metadata of an object, for its version."""

    resource_version: str


class Object(msgspec.Struct):
    """An object of any kind, for its version."""

    metadata: ObjectMeta


decode_list = msgspec.json.Decoder(Page).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_object = msgspec.json.Decoder(Object).decode
decode_status = msgspec.json.Decoder(Status).decode


class Sink(Protocol):
    """The holder of the objects. Only the reflector's thread calls it, one call at a time.

    The sink decodes the objects, and handles the ones that it cannot decode. A ``Raw`` is a view
    into the whole answer. So keep the decoded object (or ``Raw.copy()``), not the view.
    """

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take these objects as the complete set.

        They come from the server page by page, once, while the sink iterates over them. If a page
        fails, the iteration raises, and the sink lets the exception pass. The objects that it has
        taken by then are still new, and the objects that it has not seen are not gone. Then there
        is another list.
        """

    def apply(self, obj: msgspec.Raw) -> None:
        """Add or update one object."""

    def delete(self, obj: msgspec.Raw) -> None:
        """Remove one object, given in its last version."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times that a reflector waits, in seconds."""

    list_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    watch_timeout_s: float = 300.0  # sent to the server, multiplied by 1 to 2 at random
    stall_timeout_s: float = 90.0
    # If the sink has not been known to be complete for so long, list before watching on; None means
    # never. A list shows at once that the sink is complete. A quiet watch would take a minute.
    relist_after_s: float | None = None
    healthy_s: float = 1.0
    # The wait after the n-th failure in a row is uniform between 0 and min(cap, initial * factor **
    # (n - 1)).
    backoff_initial_s: float = 0.2
    backoff_factor: float = 2.0
    backoff_cap_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ReflectorState:
    """The state of a reflector at one time. Times are by its clock, None before the first."""

    synced: bool = False  # whether the sink has received one whole list
    resource_version: str = ""
    # When the server last sent something: a page, a line, or an orderly end of a watch.
    last_contact: float | None = None
    failures: int = 0  # in a row; 0 after any contact
    last_failure: str = ""  # stays after a contact, as does `failure_status`
    failure_status: int | None = None  # the HTTP code of the last failure, if it had one
    lists: int = 0
    watches: int = 0
    events: int = 0  # bookmarks do not count
    sink_failures: int = 0
    streaming: bool = False  # whether a watch is open that the server has accepted
    # When the sink was last known to be complete: after a whole list, an event or a bookmark. Half
    # a list and the end of a watch do not show that.
    whole_at: float | None = None
    # The time of the first failure since a watch was last open. A list that works does not reset
    # it, since the watch may still be refused.
    failing_since: float | None = None


class UnusableAnswerError(Exception):
    """An answer that makes no sense, or a list that the sink could not take. A new list is due."""


class _BrokenOffError(Exception):
    """The end of a list before its last page.

    Its cause says why. Without a cause the reflector is stopping.
    """


@dataclass(frozen=True, slots=True)
class Watched:
    """The collection that a reflector lists and watches."""

    path: str
    name: str = ""  # for logs; without one, the last part of the path
    query: Query = ()  # goes with every request (a field selector, say)
    page_limit: int = 500  # objects of one page of a list
    optional: bool = False  # it may be missing or forbidden; then it is tried again now and then
    # Called after each line of the watch. Returns whether to list again, because the sink has
    # dropped something that it would accept now.
    again: Callable[[], bool] = lambda: False


class Reflector:
    """A daemon thread that lists and watches a collection into ``sink``.

    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        api: ApiServer,
        watched: Watched,
        sink: Sink,
        timing: Timing = Timing(),
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.name = watched.name or watched.path.rpartition("/")[2]
        self._api = api
        self._watched = watched
        self._sink = sink
        self._timing = timing
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self._stopping = threading.Event()
        self._stream: WatchStream | None = None
        self._resume_from: str | None = None  # None if a list is due
        self._attempt = 0  # failures since a healthy watch; a contact alone does not reset it
        self._gone = False  # whether the last failure was a 410
        self.state = ReflectorState()  # as it is now; each state is a snapshot that never changes
        name = f"reflector-{self.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop, and return whether the thread ended within ``timeout`` seconds.

        A wait and a watch end at once. A request that still waits for its answer ends with its own
        timeout, or at once when the API client is closed.
        """
        self._stopping.set()
        # The thread stores the stream and then checks the event. This method sets the event and
        # then reads the stream. So at least one of the two sees the other.
        if (stream := self._stream) is not None:
            stream.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._resume_from is None or self._long_unheard():
                    self._list()
                else:
                    self._watch(self._resume_from)
            except Exception as error:  # noqa: BLE001 (the boundary: nothing may end the thread)
                if not self._stopping.is_set():
                    self._stopping.wait(self._failed(error))

    def _long_unheard(self) -> bool:
        longest, heard = self._timing.relist_after_s, self.state.whole_at
        return longest is not None and heard is not None and self._clock() - heard >= longest

    def _failed(self, error: Exception) -> float:
        """Store a failure. Returns how many seconds to wait."""
        status = error.status if isinstance(error, ApiError) else None
        if isinstance(error, GoneError | NotFoundError | msgspec.DecodeError | UnusableAnswerError):
            self._resume_from = None
        timing, self._attempt = self._timing, self._attempt + 1
        ceiling = timing.backoff_initial_s * timing.backoff_factor ** min(self._attempt - 1, 64)
        wait = self._rng.uniform(0.0, min(timing.backoff_cap_s, ceiling))
        gone = isinstance(error, GoneError)
        if gone and not self._gone:
            wait = 0.0
        if isinstance(error, ApiError):
            wait = max(wait, min(error.retry_after, LONGEST_ASKED))
        absent = self._watched.optional and isinstance(error, NotFoundError)
        if absent or (self._watched.optional and status == FORBIDDEN):
            wait = WHERE_ABSENT
        self._gone = gone
        text = str(error) or type(error).__name__
        failures = self.state.failures + 1
        since = self.state.failing_since
        self._note(
            failures=failures,
            last_failure=text,
            failure_status=status,
            failing_since=self._clock() if since is None else since,
        )
        (log.debug if absent else log.warning)(
            "reflector failed", reflector=self.name, failure=text, failures=failures, wait_s=wait
        )
        return wait

    def _list(self) -> None:
        self._note(lists=self.state.lists + 1)
        try:
            self._take_list(self._watched.page_limit)
        except _BrokenOffError as broken:
            if isinstance(broken.__cause__, GoneError):
                self._take_list(0)
            elif broken.__cause__ is not None:
                raise broken.__cause__ from None

    def _take_list(self, limit: int) -> None:
        """Pass a list to the sink. Raises :class:`_BrokenOffError` after the first page."""
        first = self._page("", limit)
        version = first.metadata.resource_version
        objects = self._objects(first, limit)
        del first  # its memory
        if not self._deliver("LIST", version, self._sink.replace, objects, version):
            raise UnusableAnswerError("the sink could not take the list")
        self._resume_from = version
        self._note(synced=True, resource_version=version, whole_at=self._clock())

    def _objects(self, page: Page, limit: int) -> Iterator[msgspec.Raw]:
        """Yield the objects of a list; its pages are requested when they are needed."""
        while True:
            yield from takewhile(lambda _: not self._stopping.is_set(), page.items or ())
            if self._stopping.is_set():
                raise _BrokenOffError
            token = page.metadata.continue_
            if not token:
                return
            del page  # its memory
            try:
                page = self._page(token, limit)
            except Exception as error:
                raise _BrokenOffError from error

    def _page(self, token: str, limit: int) -> Page:
        query = [*self._watched.query]
        query += [("limit", str(limit))] if limit else []
        query += [("continue", token)] if token else []
        answer = self._api.get(self._watched.path, query, timeout=self._timing.list_timeout_s)
        page = decode_list(answer)
        self._heard()
        return page

    def _watch(self, version: str) -> None:
        timing = self._timing
        seconds = max(1, round(timing.watch_timeout_s * self._rng.uniform(1.0, 2.0)))
        query = [
            *self._watched.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(seconds)),
        ]
        self._note(watches=self.state.watches + 1)
        self._stream = stream = self._api.stream(
            self._watched.path,
            query,
            connect_timeout=timing.connect_timeout_s,
            read_timeout=timing.stall_timeout_s,
        )
        opened = self._clock()
        self._note(streaming=True)
        try:
            if self._stopping.is_set():
                return
            for line in stream:
                self._take(line)
                if self._watched.again():
                    self._resume_from = None
                    return
        finally:
            self._stream = None
            self._note(streaming=False)
            stream.close()
            if self._clock() - opened >= timing.healthy_s:
                self._attempt = 0
                self._note(failing_since=None)  # it was open until now
        if self._stopping.is_set():
            return
        if (lived := self._clock() - opened) < timing.healthy_s:
            raise ApiUnreachable(f"the watch ended after {lived:.3f} s")
        self._heard()

    def _take(self, line: bytes) -> None:
        event = decode_event(line)
        if event.type == "ERROR":
            status = decode_status(event.object)
            raise api_error(status.code, status.reason, status.message)
        version = decode_object(event.object).metadata.resource_version
        events = self.state.events + 1
        if event.type in ("ADDED", "MODIFIED"):
            self._deliver(event.type, version, self._sink.apply, event.object)
        elif event.type == "DELETED":
            self._deliver(event.type, version, self._sink.delete, event.object)
        elif event.type == "BOOKMARK":
            events -= 1
        else:
            raise UnusableAnswerError(f"unknown watch event {event.type!r}")
        self._resume_from = version
        self._heard()
        now = self._clock()
        self._note(resource_version=version, events=events, whole_at=now, failing_since=None)

    def _deliver(self, change: str, version: str, call: Callable[..., None], *args: object) -> bool:
        if self._stopping.is_set():
            return False
        try:
            call(*args)
        except _BrokenOffError:
            raise
        except Exception:
            self._note(sink_failures=self.state.sink_failures + 1)
            log.exception(
                "sink failed", reflector=self.name, change=change, resource_version=version
            )
            return False
        return True

    def _heard(self) -> None:
        self._note(last_contact=self._clock(), failures=0)

    def _note(self, **changes: object) -> None:
        # Only the reflector's thread writes, so readers get either the old state or the new one.
        self.state = dataclasses.replace(self.state, **changes)  # type: ignore[arg-type]
