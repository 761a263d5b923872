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
TOLD_WHERE_IT_FITS = {
    "impossible": "fits, not now as preferred",
    "never": "fits, never as preferred",
}
"""The same on a node that takes the pod, since it only prefers what the verdict is about."""


def verdict_text(verdict: str, *, passes: bool = False) -> Text:
    """A verdict as people read it; ``passes`` says that the node would take the pod.

    >>> verdict_text("impossible").plain, verdict_text("expected").plain
    ('not now', 'expected')
    >>> verdict_text("never", passes=True).plain
    'fits, never as preferred'
    """
    if passes and verdict in TOLD_WHERE_IT_FITS:
        return Text(TOLD_WHERE_IT_FITS[verdict], STYLES["possible"])
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
