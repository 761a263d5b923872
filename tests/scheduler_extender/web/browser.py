"""A browser without a screen, driven by its debugging protocol.

Needs Chromium; :data:`BROWSER` is None without it.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.waiting import PATIENCE, eventually

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
Scheme = Literal["light", "dark"]
# ``--no-sandbox``: as root, and in containers, Chromium refuses to start otherwise.
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
MOST_HEIGHT = 16_000  # Pixels of a screenshot


class PageError(AssertionError):
    """The page raised an error, or the browser refused a command."""


class Tab:
    """One page of a browser."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._numbers = count(1)

    def send(self, method: str, **params: Any) -> Any:
        """Give a command; returns its result. Raises :class:`PageError`."""
        number = next(self._numbers)
        self._wire.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            reply = json.loads(self._wire.recv(timeout=PATIENCE))
            if reply.get("id") != number:
                continue
            if "error" in reply:
                raise PageError(f"{method}: {reply['error']}")
            return reply["result"]

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page, promises awaited; it must be plain data."""
        reply = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise PageError(f"{expression[:200]}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there whole."""
        self.value("window.before = true")
        reply = self.send("Page.navigate", url=url)
        if "errorText" in reply:
            raise PageError(f"{url}: {reply['errorText']}")
        self.loaded()

    def loaded(self) -> None:
        """Wait for the page that comes after the one that was marked by :meth:`open`."""
        eventually(lambda: self.value("!window.before && document.readyState == 'complete'"))

    def click(self, selector: str) -> None:
        """Click, and wait for the page that follows."""
        self.value("window.before = true")
        self.value(f"document.querySelector({json.dumps(selector)}).click()")
        self.loaded()

    def write(self, selector: str, text: str) -> None:
        """Put a text into a field."""
        self.value(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def press(self, key: str, *, code: int, shift: bool = False) -> None:
        """Press a key and let it go. ``code`` is its Windows virtual key code."""
        reply = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown", **reply)
        self.send("Input.dispatchKeyEvent", type="keyUp", **reply)

    def look(self, width: int, height: int = 900, scheme: Scheme = "light") -> None:
        """How wide and high the window is, in pixels, and which colours are preferred."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )

    def picture(self) -> bytes:
        """The whole page, what is below the window included, as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], MOST_HEIGHT),
            "scale": 1,
        }
        reply = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(reply["data"])


@contextmanager
def tab(folder: Path, *options: str) -> Iterator[Tab]:
    """A page of a browser of its own, whose profile is in ``folder``."""
    if BROWSER is None:
        raise RuntimeError("no Chromium is installed")
    profile = folder / "profile"
    process = subprocess.Popen(
        [
            BROWSER,
            *QUIET,
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            *options,
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        reported = profile / "DevToolsActivePort"
        eventually(lambda: reported.is_file() and reported.read_text().strip())
        port = reported.read_text().split()[0]
        pages: list[str] = []

        def has_a_page() -> list[str]:
            """The port is open before there is one."""
            reply = httpx.get(
                f"http://127.0.0.1:{port}/json/list", trust_env=False, timeout=PATIENCE
            )
            found = (each for each in reply.json() if each["type"] == "page")
            pages.extend(each["webSocketDebuggerUrl"] for each in found)
            return pages

        eventually(has_a_page, "the browser has a page")
        with connect(
            pages[0],
            proxy=None,
            max_size=None,
            open_timeout=PATIENCE,
            ping_interval=None,  # a browser that is slow is not gone
        ) as wire:
            yield Tab(wire)
    finally:
        process.terminate()
        process.wait(PATIENCE)
