"""Deadlines of tests: the code that measures says when the time is up."""

from collections.abc import Callable

from scheduler_extender.deadline import Deadline


def ending_when(late: Callable[[], bool]) -> Deadline:
    """The deadline that has passed when asked while it is ``late``."""
    return Deadline(lambda: float(late()), 1.0)
