"""Times of day as texts: RFC 3339, as Kubernetes writes it."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_of(text: str) -> float | None:
    """A time of day in seconds since 1970; None if it cannot be read.

    Without a zone it is UTC, whatever the zone of the machine, so a file means the same everywhere.

    >>> seconds_of("1970-01-01T01:00:00+01:00"), seconds_of("1970-01-01T00:00:00")
    (0.0, 0.0)
    """
    try:
        return instant(datetime.fromisoformat(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as a text, to the microsecond.

    >>> time_text(0.0), time_text(0.25), seconds_of(time_text(0.25))
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:00.250000Z', 0.25)
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def age(moment: float | None, today: float) -> float | None:
    """How many seconds ago a moment was; None if the moment is not known."""
    return None if moment is None else max(0.0, today - moment)


def instant(found: datetime) -> datetime:
    """The same moment in UTC; a time without a zone is UTC already.

    Raises :class:`OverflowError` if the zone moves it out of the years that Python knows.
    """
    return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
