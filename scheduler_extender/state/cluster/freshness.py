"""What time alone changes: watches and nodes become stale, and deadlines pass.

A watch may be broken, or open but silent. The cached state then stays as it was while the cluster
goes on. The API server sends a bookmark about once a minute if nothing else happens. So a long
silence means that the connection is dead. A watch that cannot be opened at all is noticed sooner.
An agent writes at least once a minute. A node whose agent has not written for too long is *stale*.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)

# Seconds without an event on an open watch until it counts as stale. A reflector closes a silent
# watch after 90 s and lists. So this limit is reached only if the list fails, too.
SILENT_AFTER = 100.0
# Seconds during which a broken watch cannot be opened again until it counts as stale. This is long
# enough for an API server to restart.
FAILING_AFTER = 15.0
# Seconds for which a stale extender goes on answering. After that it says that it is not ready.
UNREADY_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of one watch, with times in seconds of the cluster's clock.

    ``heard_at`` is when the server last sent an event or a bookmark over it, None before the first
    list. ``failing_since`` is when it broke and since when it could not be opened again, None if it
    is open now.
    """

    name: str
    heard_at: float | None
    failing_since: float | None = None

    @property
    def failing(self) -> bool:
        """Whether the watch is broken now."""
        return self.failing_since is not None

    def age(self, now: float) -> float:
        """Return the seconds since the last event or bookmark; infinity before the first list."""
        return float("inf") if self.heard_at is None else now - self.heard_at

    def stale_for(self, now: float) -> float:
        """Return for how many seconds the watch has been stale; below 0 if it is not.

        A watch that was silent for long does not count as staler at the instant at which it breaks:
        the reflector opens it again, or lists, at once.
        """
        silent = self.age(now) - SILENT_AFTER
        if self.failing_since is None:
            return silent
        return max(silent, now - self.failing_since - FAILING_AFTER)


def stale_watches(watches: Iterable[Watch], now: float, seconds: float = 0.0) -> tuple[str, ...]:
    """Return the names of the watches that have been stale for at least so many ``seconds``."""
    return tuple(watch.name for watch in watches if watch.stale_for(now) >= seconds)


class Due(Generic[K]):
    """A queue of keys with the times at which they are due, by the local clock.

    A key is queued for one time. If its time was moved back meanwhile, it is queued again for that
    time. The heap also has old entries. It is built again once most of its entries are old, so its
    size does not depend on how often a time is changed.
    """

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._queue: list[tuple[float, K]] = []

    def put(self, key: K, at: float) -> None:
        """Set the time at which a key is due; this replaces its earlier time."""
        self._at[key] = at
        if at < self._queued.get(key, inf):
            self._enqueue(key, at)

    def drop(self, key: K) -> None:
        """Remove a key."""
        self._at.pop(key, None)
        self._queued.pop(key, None)
        self._remove_old()

    def take(self, now: float) -> Iterator[K]:
        """Yield each key that is due, once."""
        while self._queue and self._queue[0][0] <= now:
            when, key = heappop(self._queue)
            if self._queued.get(key) != when:
                continue  # an old entry: the key was queued again since, or dropped
            del self._queued[key]
            if self._at[key] > now:
                self._enqueue(key, self._at[key])
            else:
                yield key

    def _enqueue(self, key: K, at: float) -> None:
        self._queued[key] = at
        heappush(self._queue, (at, key))
        self._remove_old()

    def _remove_old(self) -> None:
        """Build the heap again if most of its entries are old."""
        if len(self._queue) > 2 * len(self._queued):
            self._queue = [(at, key) for key, at in self._queued.items()]
            heapify(self._queue)
