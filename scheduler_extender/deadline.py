"""A request's deadline, passed down to everything that may be slow."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf

from topology.core.memo import OutOfTimeError, interrupted_at

__all__ = ["NO_DEADLINE", "Deadline", "OutOfTimeError", "within"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time until which an answer may be worked out.

    >>> now = iter([1.0, 2.0])
    >>> deadline = Deadline(now.__next__, until=2.0)
    >>> deadline.passed(), deadline.passed()
    (False, True)
    """

    clock: Callable[[], float]  # seconds; only has to be monotonic
    until: float  # by that clock

    def passed(self) -> bool:
        """Check whether the time is up."""
        return self.clock() >= self.until

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` if the time is up."""
        if self.passed():
            raise OutOfTimeError

    def enforced(self) -> AbstractContextManager[None]:
        """Let the model raise :class:`OutOfTimeError` inside the block once the time is up.

        An outer deadline stays in force.
        """
        return interrupted_at(self.clock, self.until) if self.until < inf else nullcontext()

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Leave the block silently when this deadline has passed.

        An outer deadline still raises.
        """
        try:
            with self.enforced():
                yield
        except OutOfTimeError:
            if not self.passed():
                raise


NO_DEADLINE = Deadline(lambda: 0.0, inf)


def within(clock: Callable[[], float], seconds: float) -> Deadline:
    """Return the deadline that is ``seconds`` from now."""
    return Deadline(clock, clock() + seconds)
