"""When sysfs is read again after part of it could not be read: soon, and then ever more rarely."""

from __future__ import annotations

FIRST = 10.0
LONGEST = 300.0
"""Seconds until the second reading, and at most between two later ones; each pause is twice the one
before."""


class Rereading:
    """For one part of sysfs. Times are in seconds of a clock that only runs forward."""

    def __init__(self) -> None:
        self._pause = FIRST
        self._due = float("inf")

    def was_read(self, now: float, *, complete: bool) -> None:
        """It was read; ``complete`` says that nothing was left that could not be."""
        if complete:
            self._pause, self._due = FIRST, float("inf")
        else:
            self._due = now + self._pause
            self._pause = min(2 * self._pause, LONGEST)

    def is_due(self, now: float) -> bool:
        """Whether to read it again now, though nothing else asks for it."""
        return now >= self._due
