"""The section of a comparison."""

from __future__ import annotations

from tests.benchmarks.report.pages import COMPARED, Page, page_of


def test_published_ours_and_difference() -> None:
    shown = Page(page_of([COMPARED]))
    assert shown.figures_of(0, "FGD") == ["95.39", "94.50", "\N{MINUS SIGN}0.89"]
    assert shown.figures_of(0, "Damage") == ["–", "94.00", "–"]
    assert shown.figures_of(0, "upper bound") == ["–", "97.25", "–"]
    best = [
        row[0] for row, marks in zip(shown.rows, shown.marks, strict=True) if "best" in str(marks)
    ]
    assert best == ["FGD"]


def test_sentences_of_a_comparison() -> None:
    text = page_of([COMPARED])
    assert "met within 0.3 points: 0 of 1; the furthest is FGD on default" in text
    assert "differs from the best published policy here by \N{MINUS SIGN}0.50 points" in text
    assert "to the upper bound it is 2.75 points" in text
