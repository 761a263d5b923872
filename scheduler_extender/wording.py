"""Verdicts and sets of GPUs as people read them in tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

SHOWN_SETS = 4

STYLES = {
    "guaranteed": "bold green",
    "expected": "green",
    "possible": "yellow",
    "impossible": "red",
    "never": "dim red",
    "unknown": "dim",
}
TOLD = {"possible": "cannot promise", "impossible": "not now"}
"""What people read in place of a verdict's word, where that misleads: "possible" is refused where
constraints are required, and "impossible" may pass a minute later."""


def verdict_text(verdict: str) -> Text:
    """A verdict as people read it.

    >>> verdict_text("impossible").plain, verdict_text("expected").plain
    ('not now', 'expected')
    """
    return Text(TOLD.get(verdict, verdict), STYLES[verdict])


def sets_text(outcomes: Sequence[Sequence[int]], shown: int = SHOWN_SETS) -> str:
    """Some GPU sets in brief.

    >>> sets_text([[0, 1], [2, 3]]), sets_text([[0, 1, 2, 3], [0, 1, 2, 7]])
    ('0,1 | 2,3', '0-3 | 0-2,7')
    """
    text = " | ".join(map(set_text, outcomes[:shown]))
    more = len(outcomes) - shown
    return f"{text} | … {more} more" if more > 0 else text


def set_text(gpus: Sequence[int]) -> str:
    """One GPU set in brief; three and more in a row are a range.

    >>> set_text((0, 1)), set_text((0, 1, 2, 5, 6, 7)), set_text(())
    ('0,1', '0-2,5-7', '')
    """
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs)
