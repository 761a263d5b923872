"""The map in a real browser without a screen: it draws, obeys the policy, and follows the cluster.

Needs Chromium; without it the tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from scheduler_extender.http.addresses import Addresses
from scheduler_extender.serving import in_memory, in_thread
from tests.scheduler_extender.web.cluster import Building, small
from tests.waiting import PATIENCE, eventually

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
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


class Tab:
    """One page of a browser, driven by its debugging protocol."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._numbers = count(1)

    def send(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._wire.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._wire.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                return answer["result"]

    def value(self, expression: str) -> Any:
        return self.send("Runtime.evaluate", expression=expression)["result"].get("value")


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    assert BROWSER is not None
    profile = folder / "profile"
    process = subprocess.Popen(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = profile / "DevToolsActivePort"
        eventually(lambda: told.is_file() and told.read_text().strip())
        port = told.read_text().split()[0]
        pages = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).json()
        address = next(each for each in pages if each["type"] == "page")["webSocketDebuggerUrl"]
        with connect(address, proxy=None) as wire:
            yield Tab(wire)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_the_page_follows_the_cluster_and_keeps_what_the_reader_does(
    address: str, made: Building, tmp_path: Path
) -> None:
    with tab(tmp_path) as page:
        page.send("Page.navigate", url=f"{address}/map")
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
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=400,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
        for path in ("/map", "/map/waiting", "/map/what-if", "/map/nodes/dgx-01"):
            page.send("Page.navigate", url=address + path)
            there = f"location.pathname == '{path}' && document.readyState == 'complete'"
            eventually(partial(page.value, there))
            assert page.value("document.documentElement.scrollWidth") <= 400, path
