"""Freshness: is what we are told still so? Of each watch, and of each node's agent.

A watch that is broken, or that says nothing although it is open, leaves our picture as it was while
the cluster goes on. The API server sends a bookmark about once a minute where nothing else happens,
so a long silence means that nobody speaks to us. A watch that cannot be opened at all is noticed
sooner. An agent writes at least once a minute; one that has not for long is *stale*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from topology.core.devices import NodeName

SILENT_AFTER = 100.0
"""Seconds without a word on an open watch until it counts as blind. A reflector gives a silent
watch up after 90 s and lists, so this is reached only where the list fails, too."""
FAILING_AFTER = 15.0
"""Seconds for which a watch cannot be opened again until it counts as blind: long enough for an API
server to restart."""
UNREADY_AFTER = 60.0
"""For so many seconds more a blind extender goes on answering; then it says that it is not ready.
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

    def blind_for(self, now: float) -> float:
        """For how many seconds the watch has been blind; below 0 it is not.

        A watch that has been silent for long is no worse in the moment in which it breaks: it is
        opened again, or lists, at once.
        """
        silent = self.age(now) - SILENT_AFTER
        if self.failing_since is None:
            return silent
        return max(silent, now - self.failing_since - FAILING_AFTER)


def blind(watches: Iterable[Watch], now: float) -> tuple[str, ...]:
    """The names of the watches that are blind."""
    return tuple(watch.name for watch in watches if watch.blind_for(now) >= 0)


def unready(watches: Iterable[Watch], now: float) -> tuple[str, ...]:
    """The names of the watches that have been blind for too long to go on answering."""
    return tuple(watch.name for watch in watches if watch.blind_for(now) >= UNREADY_AFTER)


class Staleness:
    """Says which nodes have not reported for too long, by the local clock.

    A node stands in the queue once; when its turn comes and it has reported since, it queues again
    for its new time.
    """

    def __init__(self, after: float | None) -> None:
        self._after = after
        self._heard: dict[NodeName, float] = {}
        self._queued: dict[NodeName, float] = {}
        self._queue: list[tuple[float, NodeName]] = []

    def heard(self, name: NodeName, at: float) -> None:
        """A node's report has changed."""
        if self._after is not None:
            self._heard[name] = at
            if at + self._after < self._queued.get(name, inf):
                self._put(name, at + self._after)

    def forget(self, name: NodeName) -> None:
        """A node has no report any more."""
        self._heard.pop(name, None)
        self._queued.pop(name, None)

    def overdue(self, now: float) -> int:
        """How many turns have come; at least as many as there are nodes to call stale."""
        return sum(when <= now for when, _ in self._queue) if self._any(now) else 0

    def take(self, now: float) -> Iterator[NodeName]:
        """Each node that has become stale, once."""
        while self._any(now):
            when, name = heappop(self._queue)
            if self._queued.get(name) != when or self._after is None:
                continue  # an old entry: the node has been queued anew since, or forgotten
            del self._queued[name]
            deadline = self._heard[name] + self._after
            if deadline > now:
                self._put(name, deadline)
            else:
                yield name

    def _any(self, now: float) -> bool:
        return bool(self._queue) and self._queue[0][0] <= now

    def _put(self, name: NodeName, when: float) -> None:
        self._queued[name] = when
        heappush(self._queue, (when, name))
