"""Hooks of mkdocs for the site of ``docs``, which ``make docs`` builds from the pages as they are.

* The navigation follows the lists of ``docs/index.md``.
* README, CONTRIBUTING, CHANGELOG and SECURITY are pages of the site, too.
* A file outside ``docs`` that a page links to becomes a page that shows the file. So each link
  leads to the same text on GitHub and in the site, which needs neither repository nor network.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contribute/contributing.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "SECURITY.md": "operate/security.md",
}
"""Pages outside ``docs``, and where the site has them."""
DECISIONS = "contribute/adr"
LANGUAGES = {".yaml": "yaml", ".py": "python", ".sh": "sh", ".json": "json"}

_FENCED = re.compile(r"^( *)(```.*?^\1```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_LISTED = re.compile(r"^\* \[[^]]*\]\(([^)\s]+)\)", re.MULTILINE)
_PART = re.compile(r"^## (.+)$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Set the navigation, and how a page is edited if the repository has an address."""
    config.nav = navigation()
    if config.repo_url:
        config.repo_name = "Repository"
        config.edit_uri = f"{os.environ.get('EDIT') or 'edit/main/'}docs/"
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def navigation() -> list[dict[str, list[Any]]]:
    """Return the parts of ``docs/index.md`` with their pages, in its order."""
    parts: list[dict[str, list[Any]]] = [{"Start": ["index.md", {"README": "readme.md"}]}]
    pieces = _PART.split((ROOT / "docs/index.md").read_text())[1:]
    for title, text in zip(pieces[::2], pieces[1::2], strict=True):
        parts.append({title: [in_site(_joined("docs", link)) for link in _LISTED.findall(text)]})
    return parts


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / DECISIONS).glob("0*.md"))


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made of files outside ``docs``."""
    inside = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in OUTSIDE:
        _add(files, config, path, (ROOT / path).read_text())
    _add(files, config, f"docs/{DECISIONS}", _list("Decisions", _decisions()))
    for path in sorted({link for page in (*inside, *OUTSIDE) for link in _linked(page)}):
        if in_site(path).startswith("source/") and (ROOT / path).exists():
            _add(files, config, path, _shown(ROOT / path))
    return files


def _add(files: Files, config: Any, path: str, content: str) -> None:
    """Add a page of the site for a file or folder; it is edited where the file is."""
    listed = not in_site(path).startswith("source/")
    inclusion = InclusionLevel.UNDEFINED if listed else InclusionLevel.NOT_IN_NAV
    file = File.generated(config, in_site(path), content=content, inclusion=inclusion)
    file.edit_uri = None if (ROOT / path).is_dir() else f"../{path}"
    files.append(file)


def _linked(page: str) -> Iterator[str]:
    text = _FENCED.sub("", (ROOT / page).read_text())
    for path, _ in _LINK.findall(text):
        yield _joined(posixpath.dirname(page), path)


def _list(title: str, pages: list[Path]) -> str:
    lines = (f"* [{_title(page)}]({page.name})" for page in pages)
    return "\n".join((f"# {title}", "", *lines, ""))


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def _shown(path: Path) -> str:
    """Return a page that shows a file, or the names of a folder's files."""
    name = path.relative_to(ROOT)
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n"
    if path.is_dir():
        return head + "".join(f"* `{each.name}`\n" for each in sorted(path.iterdir()))
    return f"{head}`````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n`````\n"


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """Return the page with links that lead to pages of the site."""
    there = page.file.src_uri
    if there.startswith(f"{DECISIONS}/") or there == OUTSIDE["CHANGELOG.md"]:
        page.meta["search"] = {"boost": 0.3}  # pages for users come first
    if there.startswith("source/") or there == f"{DECISIONS}/index.md":
        return text
    origin = next((path for path, site in OUTSIDE.items() if site == there), f"docs/{there}")

    def link(found: re.Match[str]) -> str:
        target = in_site(_joined(posixpath.dirname(origin), found[1]))
        return f"]({posixpath.relpath(target, posixpath.dirname(there) or '.')}{found[2] or ''})"

    pieces = re.split(r"(^ *```.*?^ *```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if i % 2 else _LINK.sub(link, piece) for i, piece in enumerate(pieces))


def in_site(path: str) -> str:
    """Return the page of the site for a file or folder of the repository."""
    if path == f"docs/{DECISIONS}":
        return f"{DECISIONS}/index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE.get(path, f"source/{path}.md")


def _joined(folder: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(folder, link))
