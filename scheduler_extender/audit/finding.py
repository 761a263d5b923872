"""The form of every finding: a sentence with the figures, and a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.explain.wording import listed


@dataclass(frozen=True, slots=True)
class Finding:
    """What one part of the audit has found."""

    name: str  # the key in JSON
    title: str
    headline: str  # the figures, in a sentence without a full stop
    figures: Mapping[str, int] = field(default_factory=dict)  # by their keys in JSON
    columns: Mapping[str, str] = field(default_factory=dict)  # the key in a row, by the header
    rows: Sequence[Mapping[str, Any]] = ()
    known: bool = True  # false if no agent has told what it would take

    def as_json(self) -> dict[str, Any]:
        """Return the finding as data."""
        return {
            "headline": self.headline,
            "known": self.known,
            **self.figures,
            "rows": list(self.rows),
        }


def cell(key: str, row: Mapping[str, Any]) -> str:
    """Return a value of a row as text.

    >>> [cell("a", {"a": value}) for value in (1200, ["a", "b", "c", "d"], None)]
    ['1,200', 'a, b, c and 1 more', 'unknown']
    """
    value = row[key]
    if isinstance(value, (list, tuple)):
        return listed([str(each) for each in value]) or "none"
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
