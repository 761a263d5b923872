"""How long whoever asks can wait for an answer: one value, passed to all that may take long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from scheduler_extender.limits import AT_ONCE_SECONDS
from topology.core.remembering import Interruption, interrupted_by


class OutOfTimeError(Interruption):
    """There is no time left to work an answer out."""


class NotAtOnceError(Exception):
    """The event loop cannot answer at once: it would take too long, or somebody else holds the
    cluster's lock. A thread has to answer."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when an answer may be worked out.

    >>> now = iter([1.0, 2.0])
    >>> deadline = Deadline(now.__next__, until=2.0)
    >>> deadline.passed(), deadline.passed()
    (False, True)
    """

    clock: Callable[[], float]  # seconds; only has to run forward
    until: float  # by that clock
    at_once: bool = False  # the event loop asks: what would take long is left to a thread

    def passed(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self.until

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` where the time is up."""
        if self.passed():
            raise OutOfTimeError

    def need_quick(self, quick: bool) -> None:
        """Raise :class:`NotAtOnceError` where the event loop asks, and the answer is not
        ``quick`` to be had."""
        if self.at_once and not quick:
            raise NotAtOnceError

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise :class:`OutOfTimeError` from what the core works out inside, once the time is up.

        A deadline around this one is enforced, too.
        """
        with interrupted_by(self.check):
            yield

    @contextmanager
    def ends(self) -> Iterator[None]:
        """End the block without a word where this deadline has passed; not where only one around it
        has."""
        try:
            yield
        except OutOfTimeError:
            if not self.passed():
                raise


NO_DEADLINE = Deadline(lambda: 0.0, inf)


def within(clock: Callable[[], float], seconds: float) -> Deadline:
    """The deadline in so many seconds from now."""
    return Deadline(clock, clock() + seconds)


def immediate(clock: Callable[[], float]) -> Deadline:
    """The event loop's deadline: see :data:`.AT_ONCE_SECONDS`."""
    return Deadline(clock, clock() + AT_ONCE_SECONDS, at_once=True)
