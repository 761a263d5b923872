"""Conversion of times to and from the text that Kubernetes writes (RFC 3339)."""

from datetime import UTC, datetime


def seconds_of(text: str) -> float | None:
    """Return the time that ``text`` names, in seconds since 1970; None if it cannot be read.

    A text without a zone counts as UTC, whatever the zone of the machine. So a file means the same
    on every machine.

    >>> seconds_of("1970-01-01T01:00:00+01:00"), seconds_of("1970-01-01T00:00:00")
    (0.0, 0.0)
    """
    try:
        return instant(datetime.fromisoformat(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def time_text(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339 text, exact to the microsecond.

    >>> time_text(0.0), time_text(0.25), seconds_of(time_text(0.25))
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:00.250000Z', 0.25)
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def age(moment: float | None, today: float) -> float | None:
    """Return how many seconds before ``today`` a time was, at least 0; None if it is unknown."""
    return None if moment is None else max(0.0, today - moment)


def instant(found: datetime) -> datetime:
    """Return the same time in UTC. A time without a zone counts as UTC already.

    Raises :class:`OverflowError` if the zone moves it out of the years that Python knows.
    """
    return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
