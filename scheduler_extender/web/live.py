"""Tells browsers that something has changed: server-sent events that carry a version and no more.

The page then fetches itself again. So a slow reader costs nothing but a few bytes, and whoever may
not see the pages any more learns nothing from a stream that is still open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio

LISTENERS = 32
"""Streams at one time; a browser that gets none looks every 15 seconds instead."""
EVERY = 1.0
"""Seconds between two looks at the version, and at least between two events."""
ALIVE_EVERY = 15
"""Looks after which something is sent though nothing has changed, so that nobody in between takes
the connection for dead, and a reader that is gone is noticed."""
LIFE = 300
"""Looks after which a stream ends. The browser comes again, and its right is judged anew."""


class TooManyListenersError(Exception):
    """There are :data:`LISTENERS` streams already."""


class Listeners:
    """The open streams. Event loop only."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
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
        for look in range(LIFE):
            if self._closed:
                return
            version = self._version()
            if version != told:
                told = version
                yield b"data: %d\n\n" % version
            elif look % ALIVE_EVERY == 0:
                yield b": alive\n\n"
            await anyio.sleep(EVERY)
