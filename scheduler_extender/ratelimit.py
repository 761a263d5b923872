"""Rate limits for writes: for each key, and in all."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

REMEMBERED = 4096


class RateLimit:
    """A limit of one write in ``pause`` seconds for a key, and a burst of ``burst`` for all.

    The burst refills at ``rate`` a second. Only the latest :data:`REMEMBERED` keys are remembered.
    For one thread at a time.

    >>> limit = RateLimit(pause=60, rate=1, burst=2)
    >>> [limit.allows(key, 0.0) for key in "aabc"]
    [True, False, True, False]
    """

    def __init__(self, pause: float, rate: float, burst: int) -> None:
        self._pause = pause
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at = float("-inf")
        self._last: OrderedDict[Hashable, float] = OrderedDict()

    def allows(self, key: Hashable, now: float) -> bool:
        """Check whether ``key`` may be written now, and if so, count it as written.

        ``now`` is in seconds of any clock.
        """
        if now > self._at:
            grown = self._left + (now - self._at) * self._rate
            self._left, self._at = min(float(self._burst), grown), now
        if self._left < 1 or now - self._last.get(key, float("-inf")) < self._pause:
            return False
        self._left -= 1
        self._last[key] = now
        self._last.move_to_end(key)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True


class LogLimit:
    """A :class:`RateLimit` for log lines that counts the lines left out. For any thread."""

    def __init__(
        self, pause: float, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = RateLimit(pause, rate, burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._untold = 0

    def untold(self, key: Hashable) -> int | None:
        """Return how many lines were left out before this one; None if this one is left out, too.

        >>> limit = LogLimit(60, 1, 8, clock=iter([0.0, 1.0, 2.0, 60.0]).__next__)
        >>> [limit.untold("a") for _ in range(4)]
        [0, None, None, 2]
        """
        with self._lock:
            if not self._limit.allows(key, self._clock()):
                self._untold += 1
                return None
            before, self._untold = self._untold, 0
            return before
