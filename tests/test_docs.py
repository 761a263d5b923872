"""The documents: every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as their links name them, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(_without_code(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_the_readme_leads_to_every_page() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}
    assert pages <= {link.partition("#")[0] for link in linked}


def test_the_citation_has_the_version_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{cited["version"]}"' in project
