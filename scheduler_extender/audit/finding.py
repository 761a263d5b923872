"""The form of every finding: a sentence with the figures, and a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Finding:
    """What one part of the audit has found."""

    name: str  # the key in JSON
    title: str
    headline: str  # the figures, in a sentence
    rows: Sequence[Any] = ()  # structs
    columns: Sequence[tuple[str, Callable[[Any], str]]] = ()  # the header and the cell of a row
    figures: Sequence[tuple[str, int]] = ()  # the figures by their keys in JSON
    known: bool = True  # false if no agent has told what it would take

    def as_json(self) -> dict[str, Any]:
        """Return the finding as data."""
        return {
            "headline": self.headline,
            "known": self.known,
            **dict(self.figures),
            "rows": msgspec.to_builtins(self.rows),
        }


def many(n: int, word: str) -> str:
    """Return a number of things as text.

    >>> many(1, "pod"), many(2000, "pod")
    ('1 pod', '2,000 pods')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"
