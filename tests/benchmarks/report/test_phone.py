"""The page of a report in a browser as narrow as a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.report.pages import page_of, played, tiny
from tests.scheduler_extender.web.browser import BROWSER, tab


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_tables_fit_a_phone(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    every = tiny(policies=("gpu-topology", "LeastAllocated", "MostAllocated"), seeds=3)
    report.write_text(page_of(played(every)))
    with tab(tmp_path) as page:
        page.look(390, 800)
        page.open(report.as_uri())
        assert page.value("document.documentElement.scrollWidth") <= 390
        assert page.value("document.querySelectorAll('table').length") == 1
        box = "document.querySelector('.scroll')"
        assert page.value(f"{box}.scrollWidth - {box}.clientWidth") == 0
