"""The site that ``make docs`` builds has each page, its anchors, the search, and nothing external.

A broken link or anchor fails the build itself, which is strict. Skips where ``make docs`` has not
installed the builder; ``make lint`` does.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.test_docs import ROOT, anchors

DOCS = ROOT / "docs"
BUILDER = ROOT / ".cache" / "site" / "bin" / "python"
PAGES = sorted(DOCS.rglob("*.md"))
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?([^"'\s>]+)""")
LINKED = re.compile(r"""<link\b[^>]*?\bhref=["']?([^"'\s>]+)""")
IN_A_STYLE = re.compile(r"""(?:url\(|@import )["']?([^"')\s]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with the addresses of a repository."""
    if not BUILDER.exists():
        if os.environ.get("CI"):
            pytest.fail("make docs has not installed mkdocs")
        pytest.skip("make docs installs mkdocs")
    built = tmp_path_factory.mktemp("site")
    subprocess.run(
        [BUILDER, "-m", "mkdocs", "--quiet", "build", "--site-dir", built],
        check=True,
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "REPOSITORY": "https://git.example/gpu-topology",
        },
        timeout=120,
    )
    return built


def built(site: Path, page: Path) -> str:
    """What the site has of a page of docs."""
    name = page.relative_to(DOCS).with_suffix("")
    folder = name.parent if name.name == "index" else name
    return (site / folder / "index.html").read_text()


def test_it_has_each_page_with_the_anchors_that_github_makes(site: Path) -> None:
    for page in PAGES:
        made = set(re.findall(r'<h[1-6] id="([^"]*)"', built(site, page)))
        assert made == anchors(page), page


def test_it_has_the_pages_and_files_outside_docs_that_pages_link_to(site: Path) -> None:
    for name in ("readme", "contribute/contributing", "contribute/changelog", "operate/security"):
        assert (site / name / "index.html").is_file(), name
    outside = list((site / "source").rglob("index.html"))
    assert outside
    assert all("<code" in page.read_text() for page in outside), "they show files"


def test_the_search_finds_each_page(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"].partition("#")[0] for entry in found}
    names = {str(page.relative_to(DOCS).with_suffix("")) + "/" for page in PAGES}
    assert names - {"index/"} <= places
    assert not [place for place in places if place.startswith("source/")]


def test_a_page_is_edited_where_it_is(site: Path) -> None:
    edited = "https://git.example/gpu-topology/edit/main"
    assert f'href="{edited}/docs/tasks/why.md"' in built(site, DOCS / "tasks/why.md")
    contributing = (site / "contribute/contributing/index.html").read_text()
    assert f'href="{edited}/CONTRIBUTING.md"' in contributing


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = []
    for file in site.rglob("*"):
        if file.suffix == ".html":
            text = file.read_text()
            loads = LOADED.findall(text) + LINKED.findall(text)
            assert 'class="mermaid"' not in text, "the theme would load it"
        elif file.suffix == ".css":
            loads = IN_A_STYLE.findall(file.read_text())
        else:
            continue
        elsewhere += [(file.name, load) for load in loads if urlparse(load).netloc]
    assert not elsewhere
