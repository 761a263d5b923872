"""The screenshots of docs/map.md: ``python -m tests.scheduler_extender.web.screenshots FOLDER``.

Needs Chromium, and Pillow to make them small. Light and dark, 1400 and 400 pixels wide; docs/images
has three of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from scheduler_extender.http.addresses import Addresses
from scheduler_extender.serving import in_memory, in_thread
from tests.scheduler_extender.web.cluster import small
from tests.scheduler_extender.web.test_browser import BROWSER

PAGES = {"map": "/map", "map-node": "/map/nodes/volta-01", "map-waiting": "/map/waiting"}
HEIGHTS = {"map": 1600, "map-node": 1000, "map-waiting": 700}
DARK = "--blink-settings=preferredColorScheme=0"
COLOURS = 96


def take(url: str, file: Path, size: str, *options: str) -> None:
    """One screenshot, with few colours."""
    if BROWSER is None:
        raise SystemExit("no Chromium is installed")
    with tempfile.TemporaryDirectory() as profile:
        known = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        told = [f"--user-data-dir={profile}", f"--window-size={size}", f"--screenshot={file}"]
        command = [BROWSER, *known, *told, "--timeout=5000", *options, url]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(file) as found:
        found.convert("RGB").quantize(COLOURS).save(file, optimize=True)


def main(folder: Path) -> None:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    service, _ = in_memory(small().cluster)
    with in_thread(service, Addresses()) as serving:
        for name, path in PAGES.items():
            url = f"http://127.0.0.1:{serving.ports[1]}{path}"
            for scheme, options in (("", ()), ("-dark", (DARK,))):
                take(url, folder / f"{name}{scheme}.png", f"1400,{HEIGHTS[name]}", *options)
                take(url, folder / f"{name}{scheme}-400.png", "400,1500", *options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
