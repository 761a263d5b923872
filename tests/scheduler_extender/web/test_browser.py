"""The map in a real browser without a screen: it draws, obeys the policy, and follows the cluster.

Needs Chromium; without it the tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.http.addresses import Addresses
from scheduler_extender.serving import in_memory, in_thread
from tests.scheduler_extender.web.cluster import small
from tests.waiting import PATIENCE

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    service, _ = in_memory(small().cluster)
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
            "--timeout=5000",
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
