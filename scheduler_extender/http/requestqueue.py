"""Answers people's questions apart from the verbs, with a few threads and a bounded queue.

Threads that compute slow each other and the event loop down: forty threads for forty readers would
keep kube-scheduler waiting. So a queue has few threads, and refuses a question if too many wait.
People who ask the same share one answer.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response

AGAIN = "1"  # seconds after which a refused client may ask again, for ``Retry-After``
PIECES = 8  # pieces of a stream that are made in one turn

_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """Too many wait already."""

    def __init__(self) -> None:
        super().__init__("too many people ask at one time, try again")


class RequestQueue:
    """``threads`` that work, and at most ``waiting`` different questions that wait for one; as many
    streams at one time, too. Event loop only."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._threads = anyio.CapacityLimiter(threads)
        self._most = waiting
        self._places = threads + waiting
        self._streams = 0
        self._pending: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Have it done in a thread. Raises :class:`QueueFullError`."""
        self._take_place()
        return await self._answer(None, work)

    async def shared(self, key: Hashable, work: Callable[[], _Result]) -> _Result:
        """The same; callers with an equal key share the answer if they come before the work begins.
        So no answer is older than its question. Raises :class:`QueueFullError`."""
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
        """A stream's place, for as long as it is sent. Raises :class:`QueueFullError`."""
        if self._streams >= self._most:
            raise QueueFullError
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def encoded(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Make the endpoint of a route. Its answer is worked out and encoded in a thread, once for
        all who ask the same at one time. The arguments come by name, from the path.

        FastAPI would go through the values of an answer on the event loop, one by one: with 5,000
        nodes that held every other request for 0.15 s.
        """

        def made(**named: Any) -> bytes:
            return msgspec.json.encode(endpoint(**named))

        async def answered(**named: Any) -> Response:
            body = await self.shared((endpoint, *named.items()), partial(made, **named))
            return Response(body, media_type="application/json")

        # FastAPI goes by these; with functools.wraps it would take it for the plain function.
        answered.__name__, answered.__doc__ = endpoint.__name__, endpoint.__doc__
        answered.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
        return answered

    async def pieces(self, source: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The pieces of an iterator, a few in each turn, so that a slow client keeps nobody else
        waiting."""
        while True:
            async with self._threads:
                made = await anyio.to_thread.run_sync(lambda: list(islice(source, PIECES)))
            if not made:
                return
            yield b"".join(made)
