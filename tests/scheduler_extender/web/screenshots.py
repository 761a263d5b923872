"""Screenshots of every page: ``make screenshots``, or ``python -m
tests.scheduler_extender.web.screenshots FOLDER``.

Light and dark, 1400 and 400 pixels wide. Needs Chromium, and Pillow to make them small. docs/images
has some of them; ``--docs`` takes these anew.
"""

import io
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from PIL import Image

from tests.benchmarks.report.pages import played, tiny
from tests.scheduler_extender.web.browser import BROWSER, Scheme, Tab, tab
from tests.scheduler_extender.web.scenes import SCENES, Served, served

WIDTHS = (1400, 400)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
COLOURS = 256
# What the report tells of.
SWEEP = tiny(
    clusters=("dgx1-v100=4,l40s-8=2",),
    count=200,
    policies=("gpu-topology", "LeastAllocated", "MostAllocated"),
    seeds=5,
)
# The screenshots that docs/images has.
DOCS = ["map-light-1400", "map-dark-400", "report-light-1400"]
IMAGES = Path(__file__).parents[3] / "docs" / "images"


def take(page: Tab, pages: Served, name: str, folder: Path, wanted: frozenset[str]) -> None:
    """The screenshots of one page, with few colours; where ``wanted`` is not empty these alone."""
    for scheme in SCHEMES:
        for width in WIDTHS:
            file = f"{name}-{scheme}-{width}"
            if wanted and file not in wanted:
                continue
            page.look(width, scheme=scheme)
            SCENES[name](page, pages)
            with Image.open(io.BytesIO(page.picture())) as found:
                small = found.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
                small.save(folder / f"{file}.png", optimize=True)


def main(folder: Path, wanted: frozenset[str] = frozenset()) -> None:
    """All of them, or the ``wanted`` ones."""
    if BROWSER is None:
        raise SystemExit("no Chromium is installed")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        reported = not wanted or any(file.startswith("report") for file in wanted)
        pages = stack.enter_context(served(home, played(SWEEP) if reported else None))
        page = stack.enter_context(tab(home))
        for name in SCENES:
            take(page, pages, name, folder, wanted)


def for_docs() -> None:
    """Those of docs/images."""
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), frozenset(DOCS))
        for name in DOCS:
            (IMAGES / f"{name}.png").write_bytes((Path(made) / f"{name}.png").read_bytes())


if __name__ == "__main__":
    if sys.argv[1] == "--docs":
        for_docs()
    else:
        main(Path(sys.argv[1]))
