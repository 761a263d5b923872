"""The fenced blocks of the documents, and the statements of those that hold commands."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console")
# What a block may be. Python is run by tests/test_doctests.py; a text is what a program prints.
LANGUAGES = {*SHELLS, "yaml", "text", "python"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it begins, its language and its lines without the indentation."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def asks_a_cluster(self) -> bool:
        """Whether its commands need an API server, or what only its page's other commands make."""
        return bool(re.search(r"\b(kubectl|helm|docker) |--kubeconfig", self.text))


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of all pages, in their order."""
    return tuple(
        block
        for page in PAGES
        for block in blocks_of(page.read_text(), str(page.relative_to(ROOT)))
    )


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """The blocks of one page's text."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found[2].strip(), textwrap.dedent(found[3]))


def following(block: Block) -> Block | None:
    """The block that stands next on the page."""
    every = blocks()
    after = every.index(block) + 1
    return every[after] if after < len(every) and every[after].page == block.page else None


def shell_blocks() -> list[Block]:
    """Those that hold commands."""
    return [block for block in blocks() if block.language in SHELLS]


SECOND = "second scheduler"
# The page that installs on each kind of control plane.
INSTALLING = {
    "kubeadm": "docs/install/kubeadm.md",
    "k3s": "docs/install/kubeadm.md",
    SECOND: "docs/install/second-scheduler.md",
}


def steps(kind: str) -> list[Block]:
    """Return the commands of the five steps of a page on installation, for one kind of control
    plane: those below its name in bold, and those below no name."""
    page = INSTALLING[kind]
    lines = (ROOT / page).read_text().splitlines()
    end = lines.index("## Check the result")
    found = []
    for block in shell_blocks():
        if block.page == page and block.line < end:
            before = next(line for line in reversed(lines[: block.line - 1]) if line)
            bold = re.match(r"\*\*([^*:]+):?\*\*", before)
            if bold is None or bold[1] == kind:
                found.append(block)
    return found


def statements(block: Block) -> list[str]:
    """The statements of a block of commands, comments left out, in the words of the page.

    A statement ends with its line, unless the line ends in a backslash, opens a here-document or a
    loop, or leaves a quote open. Where the block is a ``console``, it is what stands behind ``$``.
    """
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found: list[str] = []
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        whole = "\n".join(pending)
        if not _is_open(whole):
            if shlex.split(_without_heredoc(whole), comments=True):
                found.append(whole.strip())
            pending = []
    if pending:
        raise ValueError(f"{block}: a statement has no end: {pending[0]}")
    return found


def _is_open(text: str) -> bool:
    if text.endswith("\\"):
        return True
    if opened := re.search(r"<<-?'?(\w+)'?", text):
        return text.splitlines()[-1].strip() != opened[1]
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return True
    return words.count("do") != words.count("done")


def _without_heredoc(text: str) -> str:
    return text.partition("\n")[0] if "<<" in text else text
