"""Tell browsers of changes by server-sent events that carry a version and the time.

The page then fetches itself again. If nothing has changed, it only shows the later time. So a slow
reader costs only a few bytes, and a reader who may no longer see the pages learns nothing from a
stream that is still open.
"""

from collections.abc import AsyncIterator, Callable

import anyio

# Streams at one time. A browser that gets none polls every 15 seconds instead.
LISTENERS = 32
EVERY = 1.0  # seconds between two checks of the version, and the least between two events
# Checks after which an event is sent even without a change. A browser would take a server that is
# silent for longer for dead, and a browser that has gone is noticed only by sending.
ALIVE_EVERY = 5
RETRY_MS = 1000  # milliseconds after which a browser tries to connect again
# Checks after which a stream ends. The browser connects again, and its right is checked anew.
LIFE = 300


class Listeners:
    """What the open streams tell. For the event loop only."""

    def __init__(self, version: Callable[[], int], today: Callable[[], float]) -> None:
        self._version = version
        self._today = today
        self._closed = False

    def close(self) -> None:
        """End every stream, since the service stops."""
        self._closed = True

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of one stream."""
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
