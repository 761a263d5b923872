"""The documents and docstrings: every link leads somewhere."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "tests/**/*.md",
        "examples/**/*.md",
        "manifests/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MODULE = re.compile(r":mod:`~?\.*([\w.]+)`")
PARTS = ("topology", "scheduler_extender", "benchmarks", "manifests", "tests")
SOURCE = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


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


def test_pages_that_the_source_names_are_there() -> None:
    """With their headings: alerts, ``doctor`` and comments name pages of docs."""
    kinds = ("*.py", "*.yaml", "*.txt", "*.html")
    files = [p for part in PARTS for kind in kinds for p in (ROOT / part).rglob(kind)]
    named = [
        (path, page, anchor)
        for path in files
        for page, anchor in re.findall(r"(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text())
    ]
    assert len(named) > 50
    for path, page, anchor in named:
        assert (ROOT / page).exists(), f"{path.relative_to(ROOT)}: {page}"
        assert not anchor or anchor in anchors(ROOT / page), f"{path.relative_to(ROOT)}: {anchor}"


def test_docstrings_name_modules_that_are_there() -> None:
    """By the full name, or as it is named in one of the packages around."""
    for path in SOURCE:
        for module in MODULE.findall(path.read_text()):
            file = module.replace(".", "/")
            around = [parent / file for parent in path.parents if parent.is_relative_to(ROOT)]
            there = any(each.is_dir() or each.with_suffix(".py").exists() for each in around)
            assert there, f"{path.relative_to(ROOT)}: {module}"


def test_the_tree_of_the_architecture_names_what_is_there() -> None:
    tree = re.search(
        r"```text\n(.*?)```", (ROOT / "docs/contribute/architecture.md").read_text(), re.DOTALL
    )
    assert tree is not None
    folders: list[Path] = []
    for line in tree[1].splitlines():
        names = re.split(" {2,}", line.strip())[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = []
        around = folders[-1] if folders else ROOT
        for name in names.split():
            assert (around / name).is_dir() or (around / f"{name}.py").exists(), line
        folders.append(around / names.split()[0])


def test_the_index_leads_to_every_page() -> None:
    """Except to the ADRs: their folder is linked."""
    docs = ROOT / "docs"
    linked = {link.partition("#")[0] for link in LINK.findall((docs / "index.md").read_text())}
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert pages - {"index.md"} <= linked | {p for p in pages if "/adr/" in p}


def test_the_citation_has_the_version_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{cited["version"]}"' in project
