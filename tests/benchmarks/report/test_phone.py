"""The page of a report in a browser as narrow as a phone, and where table and drawings meet."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.report.pages import changed, page_of, played, tiny
from tests.scheduler_extender.web.browser import BROWSER, tab


def many_refusals(found: dict[str, Any]) -> None:
    """Figures as long as those of thousands of jobs."""
    for run in found["runs"]:
        run |= {"jobs": 2000, "failed": 80 + 30 * run["seed"], "refused": 900 + 70 * run["seed"]}


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_table_and_drawings_fit_the_window(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    every = tiny(policies=("gpu-topology", "LeastAllocated", "MostAllocated"), seeds=3)
    report.write_text(page_of(changed(played(every), many_refusals)))
    with tab(tmp_path) as page:
        for width, columns in ((390, 1), (760, 2), (1100, 3), (1400, 3)):
            page.look(width, 800)
            page.open(report.as_uri())
            assert page.value("document.documentElement.scrollWidth") <= width
            assert page.value("document.querySelectorAll('table').length") == 1
            box = "document.querySelector('.scroll')"
            assert page.value(f"{box}.scrollWidth - {box}.clientWidth") == 0
            begins = "[...document.querySelectorAll('.scroll, .panel')].map(e => "
            begins = f"new Set({begins}Math.round(e.getBoundingClientRect().left))).size"
            assert page.value(begins) == columns
