"""How long whoever asks can wait for an answer: one value, passed to all that may take long."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf

from topology.core.memo import OutOfTimeError, interrupted_at

__all__ = ["NO_DEADLINE", "Deadline", "OutOfTimeError", "within"]


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

    def passed(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self.until

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` where the time is up."""
        if self.passed():
            raise OutOfTimeError

    def enforced(self) -> AbstractContextManager[None]:
        """Raise :class:`OutOfTimeError` from what the core works out inside, once the time is up.

        A deadline around this one is enforced, too.
        """
        return interrupted_at(self.clock, self.until) if self.until < inf else nullcontext()

    @contextmanager
    def ends(self) -> Iterator[None]:
        """The same, and end the block without a word where this deadline has passed; not where only
        one around it has."""
        try:
            with self.enforced():
                yield
        except OutOfTimeError:
            if not self.passed():
                raise


NO_DEADLINE = Deadline(lambda: 0.0, inf)


def within(clock: Callable[[], float], seconds: float) -> Deadline:
    """The deadline in so many seconds from now."""
    return Deadline(clock, clock() + seconds)
