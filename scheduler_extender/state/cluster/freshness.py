"""What time alone changes: is what we are told still so, and whose time is up?

A watch that is broken, or that says nothing although it is open, leaves our picture as it was while
the cluster goes on. The API server sends a bookmark about once a minute where nothing else happens,
so a long silence means that nobody speaks to us. A watch that cannot be opened at all is noticed
sooner. An agent writes at least once a minute; one that has not for long is *stale*.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)

SILENT_AFTER = 100.0
"""Seconds without a word on an open watch until it counts as stale. A reflector gives a silent
watch up after 90 s and lists, so this is reached only where the list fails, too."""
FAILING_AFTER = 15.0
"""Seconds for which a watch cannot be opened again until it counts as stale: long enough for an API
server to restart."""
UNREADY_AFTER = 60.0
"""For so many seconds more a stale extender goes on answering; then it says that it is not ready.
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """One watch at one moment, in seconds of the cluster's clock.

    ``heard_at`` is when the server last told us over it what is new, or that nothing is; None
    before the first list. ``failing_since`` is when it broke, None where it is open now: since then
    it could not be opened again.
    """

    name: str
    heard_at: float | None
    failing_since: float | None = None

    @property
    def failing(self) -> bool:
        """Whether it is broken now."""
        return self.failing_since is not None

    def age(self, now: float) -> float:
        """Seconds since the last word; infinite before the first."""
        return float("inf") if self.heard_at is None else now - self.heard_at

    def stale_for(self, now: float) -> float:
        """For how many seconds the watch has been stale; below 0 it is not.

        A watch that has been silent for long is no worse in the moment in which it breaks: it is
        opened again, or lists, at once.
        """
        silent = self.age(now) - SILENT_AFTER
        if self.failing_since is None:
            return silent
        return max(silent, now - self.failing_since - FAILING_AFTER)


def stale_watches(watches: Iterable[Watch], now: float, seconds: float = 0.0) -> tuple[str, ...]:
    """The names of the watches that have been stale for so many seconds."""
    return tuple(watch.name for watch in watches if watch.stale_for(now) >= seconds)


class Due(Generic[K]):
    """Says when the time of something is up, by the local clock.

    A key stands in the queue once. If it is due later by then, it queues again for its new time.
    """

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._queue: list[tuple[float, K]] = []

    def put(self, key: K, at: float) -> None:
        """The key is due at this time, and no more at the one before."""
        self._at[key] = at
        if at < self._queued.get(key, inf):
            self._enqueue(key, at)

    def drop(self, key: K) -> None:
        """The key is not due any more."""
        self._at.pop(key, None)
        self._queued.pop(key, None)

    def take(self, now: float) -> Iterator[K]:
        """Each key that is due, once."""
        while self._queue and self._queue[0][0] <= now:
            when, key = heappop(self._queue)
            if self._queued.get(key) != when:
                continue  # an old entry: the key has been queued anew since, or dropped
            del self._queued[key]
            if self._at[key] > now:
                self._enqueue(key, self._at[key])
            else:
                yield key

    def _enqueue(self, key: K, at: float) -> None:
        self._queued[key] = at
        heappush(self._queue, (at, key))
