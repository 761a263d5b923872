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
    headline: str  # the figures, in a sentence
    figures: Mapping[str, int] = field(default_factory=dict)  # by their keys in JSON
    columns: Mapping[str, str] = field(default_factory=dict)  # the key in a row, by the header
    rows: Sequence[Mapping[str, Any]] = ()
    known: bool = True  # false if no agent has told what it would take

    @property
    def sentence(self) -> str:
        """The headline as a sentence of its own."""
        return f"{self.headline[0].upper()}{self.headline[1:]}."

    def as_json(self) -> dict[str, Any]:
        """Return the finding as data."""
        said = {"headline": self.headline, "known": self.known, **self.figures}
        return {**said, "rows": list(self.rows)}


def cell(value: object) -> str:
    """Return a value of a row as text.

    >>> cell(1200), cell(["a", "b", "c", "d"]), cell(None)
    ('1,200', 'a, b, c and 1 more', 'unknown')
    """
    if isinstance(value, (list, tuple)):
        return listed([str(each) for each in value]) or "none"
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def many(n: int, word: str) -> str:
    """Return a number of things as text.

    >>> many(1, "pod"), many(2000, "pod")
    ('1 pod', '2,000 pods')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"
