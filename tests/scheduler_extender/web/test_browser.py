"""The map in a real browser without a screen: it draws, obeys the policy, and follows the cluster.

Needs Chromium; without it the tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scheduler_extender.http.addresses import Addresses
from scheduler_extender.serving import in_memory, in_thread
from tests.scheduler_extender.web.browser import BROWSER, tab
from tests.scheduler_extender.web.cluster import Building, small
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def made() -> Building:
    return small()


@pytest.fixture(scope="module")
def address(made: Building) -> Iterator[str]:
    service, _ = in_memory(made.cluster)
    with in_thread(service, Addresses()) as serving:
        yield f"http://127.0.0.1:{serving.ports[1]}"


def browse(url: str, folder: Path, *options: str) -> tuple[str, str]:
    """What the browser has made of a page (its DOM), and what it complained about."""
    assert BROWSER is not None
    run = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--timeout={PATIENCE / 2 * 1000:.0f}",
            *options,
            url,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return run.stdout, run.stderr


@pytest.mark.parametrize("path", ["/map", "/map/waiting", "/map/what-if", "/map/nodes/dgx-01"])
def test_the_browser_finds_nothing_against_the_policy(
    address: str, path: str, tmp_path: Path
) -> None:
    dom, complaints = browse(address + path, tmp_path, "--dump-dom")
    assert "</main>" in dom
    assert "CONSOLE" not in complaints, complaints
    assert "Content Security Policy" not in complaints


def test_the_page_follows_the_cluster_and_keeps_what_the_reader_does(
    address: str, made: Building, tmp_path: Path
) -> None:
    with tab(tmp_path) as page:
        page.open(f"{address}/map")
        eventually(lambda: page.value("document.querySelectorAll('.tiles li').length") == 9)
        page.value("window.same = true")
        page.value("document.querySelector('.legend').open = false")
        page.value("document.querySelector('input[name=name]').value = 'half written'")
        made.node("l40s-4", "new-node")
        eventually(lambda: page.value("document.body.innerText.includes('new-node')"))
        assert page.value("window.same"), "the page was not loaded again"
        assert page.value("document.querySelector('.legend').open") is False
        assert page.value("document.querySelector('input[name=name]').value") == "half written"


def test_the_pages_fit_a_narrow_screen(address: str, tmp_path: Path) -> None:
    with tab(tmp_path) as page:
        page.look(400, 800)
        for path in ("/map", "/map/waiting", "/map/what-if", "/map/nodes/dgx-01"):
            page.open(address + path)
            if page.value("!!document.querySelector('.legend')"):
                eventually(partial(page.value, "!document.querySelector('.legend').open"))
            assert page.value("document.documentElement.scrollWidth") <= 400, path
