"""Run events in simulated or real time, and draw random numbers."""

import heapq
import queue
import random
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

LONGEST_WAIT = 60.0  # seconds without any event

Event = Callable[[], object]


class Clock:
    """Events in the order of their times; of equal times, the one that was entered first.

    Every actor draws from the same ``rng``, so the seed and the order of the draws decide a run.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._number = 0

    def run(self, until: float = inf) -> None:
        """Run all events that are due by ``until``; by default until none is left."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def at(self, when: float, event: Event) -> None:
        """Schedule an event at a time, in seconds from the start.

        An event at infinity never happens.
        """
        if when < inf:
            self._number += 1
            heapq.heappush(self._events, (when, self._number, event))

    def after(self, seconds: float, event: Event) -> None:
        """Schedule an event so many seconds from now."""
        self.at(self.now + seconds, event)

    def about(self, mean: float, event: Event) -> None:
        """Schedule an event after a random time; see :meth:`drawn`."""
        self.at(self.now + self.drawn(mean), event)

    def drawn(self, mean: float) -> float:
        """Draw seconds from an exponential distribution with this mean.

        A mean of 0 draws nothing.
        """
        return self.rng.expovariate(1 / mean) if mean else 0.0

    def happens(self, probability: float) -> bool:
        """Draw once, and return True with this probability."""
        return self.rng.random() < probability


class WallClock(Clock):
    """A clock in real time that runs until it is stopped.

    One thread runs it; others post events.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._began = time.monotonic()
        self._handed_in: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._running = True

    def post(self, event: Event) -> None:
        """Schedule an event now. Any thread may call it."""
        self._handed_in.put(event)

    def stop(self) -> None:
        """Stop the clock: no more events happen. Any thread may call it."""
        self.post(self._stop)

    def _stop(self) -> None:
        self._running = False

    def play(self) -> None:
        """Run all events at their times."""
        while self._running:
            passed = time.monotonic() - self._began
            self.run(passed)
            self.now = passed
            wait = self._events[0][0] - passed if self._events else LONGEST_WAIT
            with suppress(queue.Empty):
                self._handed_in.get(timeout=min(LONGEST_WAIT, wait))()
