"""Answers people's requests separately from the verbs, with a few threads and a bounded queue.

Threads that compute slow down each other and the event loop. Forty threads for forty readers would
delay kube-scheduler. So a queue has few threads, and refuses a request if too many wait. Equal
requests share one answer.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

AGAIN = "1"  # seconds after which a refused client may retry, for ``Retry-After``
PIECES = 8  # pieces of a stream that are made at a time

_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """Too many requests wait already."""

    def __init__(self) -> None:
        super().__init__("too many requests at one time; try again")


class RequestQueue:
    """A queue with ``threads`` worker threads and at most ``waiting`` different waiting requests.

    At most ``waiting`` streams are sent at the same time. Only the event loop may use the queue.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._threads = anyio.CapacityLimiter(threads)
        self._most = waiting
        self._places = threads + waiting
        self._streams = 0
        self._pending: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run ``work`` in a thread, and return its result. Raises :class:`QueueFullError`."""
        self._take_place()
        return await self._answer(None, work)

    async def shared(self, key: Hashable, work: Callable[[], _Result]) -> _Result:
        """Run ``work`` in a thread, and share its result among callers with an equal key.

        Only callers that come before the work begins share it, so no answer is older than its
        request. Raises :class:`QueueFullError`.
        """
        pending = self._pending.get(key)
        if pending is None:
            self._take_place()
            pending = self._pending[key] = asyncio.ensure_future(self._answer(key, work))
        return await asyncio.shield(pending)

    def _take_place(self) -> None:
        if not self._places:
            raise QueueFullError
        self._places -= 1

    async def _answer(self, key: Hashable, work: Callable[[], _Result]) -> _Result:
        try:
            async with self._threads:
                self._pending.pop(key, None)
                return await anyio.to_thread.run_sync(work)
        finally:
            self._places += 1

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream while the block sends it. Raises :class:`QueueFullError`."""
        if self._streams >= self._most:
            raise QueueFullError
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def encoded(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Turn a plain function into the endpoint of a route.

        A thread computes and encodes its answer, once for all equal requests that wait at the same
        time. The arguments come by name, from the path. FastAPI would instead walk through the
        values of an answer on the event loop, one by one. With 5,000 nodes this delayed every other
        request by 0.15 s.
        """

        def made(**named: Any) -> bytes:
            return msgspec.json.encode(endpoint(**named))

        async def answered(**named: Any) -> Response:
            body = await self.shared((endpoint, *named.items()), partial(made, **named))
            return Response(body, media_type="application/json")

        # FastAPI reads these attributes. With functools.wraps it would treat the endpoint as the
        # plain function.
        answered.__name__, answered.__doc__ = endpoint.__name__, endpoint.__doc__
        answered.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
        return answered

    async def pieces(self, source: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the iterator's pieces, joined in groups of at most :data:`PIECES`.

        Each group needs a thread only while it is made, so a slow client delays no other client.
        """
        while True:
            async with self._threads:
                made = await anyio.to_thread.run_sync(lambda: list(islice(source, PIECES)))
            if not made:
                return
            yield b"".join(made)


class Streamed(Response):
    """An answer whose pieces ``begin`` makes while the client reads them.

    It counts as a stream of its queue until it is over, also if the client has gone before the
    first piece.
    """

    def __init__(
        self, queue: RequestQueue, begin: Callable[[], Awaitable[AsyncIterator[bytes]]], kind: str
    ) -> None:
        super().__init__(media_type=kind)
        self._queue, self._begin = queue, begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises :class:`QueueFullError` if there are too many streams."""
        with self._queue.stream():
            answer = StreamingResponse(await self._begin(), media_type=self.media_type)
            await answer(scope, receive, send)
