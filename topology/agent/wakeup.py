"""A note that there is news, for one waiting thread; from any thread, and from a signal handler."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Wakeup:
    """Notes are written to an eventfd: a handler that interrupts the waiter cannot deadlock it."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def note(self) -> None:
        """There is news."""
        with suppress(BlockingIOError):  # full: there is news all the same
            os.eventfd_write(self._file, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for news at most so long; whether there was some."""
        select.select([self._file], [], [], max(0.0, seconds))
        try:
            os.eventfd_read(self._file)
        except BlockingIOError:
            return False
        return True
