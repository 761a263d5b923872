"""Every page can be read and used without good eyes and without a mouse, light and dark.

axe-core judges contrast, names, roles and text alternatives in a real browser. ``make axe`` fetches
it; without it, or without Chromium, these tests are skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler_extender.web.browser import BROWSER, Scheme, Tab, tab
from tests.scheduler_extender.web.scenes import SCENES, Served, served

AXE = Path(
    os.environ.get("GPU_TOPOLOGY_AXE")
    or Path(__file__).parents[3] / ".cache" / "axe" / "package" / "axe.min.js"
)
TAB = 9
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: make axe fetches it")
JUDGE = """
axe.run(document, {resultTypes: ['violations']}).then((found) => ({
  violations: found.violations.map((each) => ({
    rule: each.id, why: each.help,
    nodes: each.nodes.map((node) => `${node.target.join(' ')}: ${node.failureSummary}`),
  })),
  passed: found.passes.map((each) => each.id),
}))
"""
FOCUSED = """
(() => {
  const it = document.activeElement;
  if (!it || it === document.body) return null;
  const all = [...document.querySelectorAll('*')];
  const shown = getComputedStyle(it);
  const box = it.getBoundingClientRect();
  return {
    place: all.indexOf(it), tag: it.tagName, words: it.textContent.slice(0, 60),
    ring: shown.outlineStyle !== 'none' && parseFloat(shown.outlineWidth) > 0,
    seen: box.width > 0 && box.height > 0 && box.right > 0 && box.bottom > 0,
  };
})()
"""
# The next press of Tab looks from the top of the page. Without it, it looks from where the browser
# has scrolled to; from there the way to the top leads through the browser's own buttons, and how
# long the focus stays outside the page is not known.
FROM_THE_TOP = """
const start = document.createElement('span');
start.tabIndex = -1;
document.body.prepend(start);
start.focus();
start.remove();
"""
REACHABLE = """
[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter((it) => it.type !== 'hidden' && it.checkVisibility()).length
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("pages")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("browser")) as found:
        yield found


def judged(page: Tab) -> dict[str, Any]:
    """What axe-core says of the page."""
    page.value(AXE.read_text() + "; null")
    return page.value(JUDGE)  # type: ignore[no-any-return]


@needs_axe
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 400)])
@pytest.mark.parametrize("name", SCENES)
def test_axe_finds_nothing(page: Tab, pages: Served, name: str, scheme: Scheme, width: int) -> None:
    page.look(width, scheme=scheme)
    SCENES[name](page, pages)
    found = judged(page)
    assert "color-contrast" in found["passed"], "axe has looked at the page"
    faults = [
        f"{each['rule']} ({each['why']}): {each['nodes'][:4]}" for each in found["violations"]
    ]
    assert not faults, "\n".join(faults)


@needs_axe
def test_axe_sees_what_is_wrong(page: Tab, pages: Served) -> None:
    page.look(1400)
    SCENES["map"](page, pages)
    page.value(
        "document.querySelector('h1').style.color = '#eee';"
        "document.querySelector('svg').removeAttribute('aria-label');"
        "document.querySelector('html').removeAttribute('lang')"
    )
    rules = {each["rule"] for each in judged(page)["violations"]}
    assert {"color-contrast", "svg-img-alt", "html-has-lang"} <= rules


@pytest.mark.parametrize(
    "name", ["map", "node", "pods", "pod", "waiting", "what-if-taken", "report"]
)
def test_the_keyboard_reaches_everything_in_the_order_of_the_page(
    page: Tab, pages: Served, name: str
) -> None:
    page.look(1400)
    SCENES[name](page, pages)
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    page.value(FROM_THE_TOP)
    expected = page.value(REACHABLE)
    places: list[int] = []
    for _ in range(expected + 1):
        page.press("Tab", code=TAB)
        found = page.value(FOCUSED)
        if found is None or found["place"] == next(iter(places), None):
            break  # round once
        assert found["ring"], f"nothing shows where the keyboard is: {found}"
        assert found["seen"], f"the keyboard is where nobody sees it: {found}"
        places.append(found["place"])
    assert len(places) == expected
    assert places == sorted(places)
