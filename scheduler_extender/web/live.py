"""Tells browsers that something has changed: server-sent events that carry a version and the time.

The page then fetches itself again; where nothing has changed it is as of that time. So a slow
reader costs nothing but a few bytes, and whoever may not see the pages any more learns nothing from
a stream that is still open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio

LISTENERS = 32
"""Streams at one time; a browser that gets none looks every 15 seconds instead."""
EVERY = 1.0
"""Seconds between two looks at the version, and at least between two events."""
ALIVE_EVERY = 5
"""Looks after which an event is sent though nothing has changed: who reads takes a server that is
silent for longer for gone, and a reader that is gone is noticed."""
RETRY_MS = 1000
"""After how long a browser tries to connect again."""
LIFE = 300
"""Looks after which a stream ends. The browser comes again, and its right is judged anew."""


class TooManyListenersError(Exception):
    """There are :data:`LISTENERS` streams already."""


class Listeners:
    """The open streams. Event loop only."""

    def __init__(self, version: Callable[[], int], today: Callable[[], float]) -> None:
        self._version = version
        self._today = today
        self._open = 0
        self._closed = False

    @property
    def open(self) -> int:
        """How many places are taken."""
        return self._open

    def close(self) -> None:
        """End every stream: the service stops."""
        self._closed = True

    @contextmanager
    def place(self) -> Iterator[None]:
        """A stream's place, from before its answer begins until nobody answers any more, whether
        the stream ever begins or not. Raises :class:`TooManyListenersError`."""
        if self._open >= LISTENERS:
            raise TooManyListenersError
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def events(self) -> AsyncIterator[bytes]:
        """A stream of events; the caller has a :meth:`place` for it."""
        told: int | None = None
        yield b"retry: %d\n\n" % RETRY_MS
        for look in range(LIFE):
            if self._closed:
                return
            now, version = self._today(), self._version()
            if version != told or look % ALIVE_EVERY == 0:
                told = version
                yield b"data: %d %d\n\n" % (version, now)
            await anyio.sleep(EVERY)
