"""One word for one thing: the words that pages and code do not use, and what they say instead.

The words that they do use are explained in the glossary. A word of the table may stand only within
one of the texts that ``except_in`` names.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCE = sorted(
    path
    for package in ("topology", "scheduler_extender", "benchmarks", "manifests")
    for kind in ("*.py", "*.html", "*.yaml")
    for path in (ROOT / package).rglob(kind)
)
EVERYWHERE = [*PAGES, *SOURCE]


@dataclass(frozen=True, slots=True)
class Unused:
    """A word that is not used."""

    word: str  # a regular expression; case does not count
    instead: str
    files: tuple[Path, ...]
    except_in: tuple[str, ...] = ()  # Regular expressions of texts in which the word may stand

    def places(self, text: str) -> list[str]:
        """The lines in which the word stands all the same."""
        allowed = re.compile("|".join(self.except_in) or r"(?!)", re.IGNORECASE)
        word = re.compile(self.word, re.IGNORECASE)
        return [line.strip() for line in text.splitlines() if word.search(allowed.sub("", line))]


UNUSED = (
    Unused(r"\bkept[ _-]?places?\b", "reservation", tuple(EVERYWHERE)),
    Unused(r"\bGPU sets?\b", "set of GPUs", tuple(EVERYWHERE)),
    Unused(
        r"\bpod groups?\b",
        "group",
        tuple(EVERYWHERE),
        (r"Kueue pod group", r"pod groups? of Kueue"),
    ),
    Unused(
        r"\bslices?\b",
        "MIG instance",
        tuple(PAGES),
        (r"mig-slices", r"one of three slices|by slices", r"resource slices?"),
    ),
    Unused(
        r"\b(an?|the|one|two|three|each|last|second|first|next|no) looks?\b(?!-)",
        "say who asks whom: a question, an answer, a snapshot",
        tuple(PAGES),
    ),
    Unused(r"\bcustom resources?\b", "the resource GPUTopology, or a record of it", tuple(PAGES)),
    Unused(r"\bplug-ins?\b", "plugin", tuple(EVERYWHERE)),
    Unused(r"\bpre-empt\w*", "preempt", tuple(EVERYWHERE)),
    Unused(
        r"\bask(s|ed|ing)? for\b",
        "a pod requests GPUs",
        tuple(p for p in EVERYWHERE if p.suffix in (".md", ".html") and p.stem != "CHANGELOG"),
        (r"asks for no credentials",),
    ),
)

VAGUE = re.compile(r"\b(whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
# Fewer places than this have a word for persons in place of the thing that is meant.
MOST_VAGUE = 30

# Former names. Their new ones are in the CHANGELOG, under *Renamed*.
FORMER = re.compile(
    r"\b(NodeFacts|KubeletFacts|AllocatorFacts|Belief|Merit|Prospect|Mix"
    r"|AskedNode|Destinations|destinations|in_flight|kept_for|Unreported|departing"
    r"|Standing|Membership|membership|LatelySent|lately|glance|nodewords|belief_states|inFlight"
    r"|WouldRefuse|would_have_refused|GPUPlacementWouldBeRefused|DRA_ONLY|OfClaims)\b"
    r"|\b(scheduler_extender[./]told|topology[./]agent[./](asks|decides))\b"
)


@pytest.mark.parametrize("unused", UNUSED, ids=lambda unused: unused.instead)
def test_a_word_that_is_not_used_is_on_no_page(unused: Unused) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line[:120]}"
        for path in unused.files
        for line in unused.places(path.read_text())
    ]
    assert not found, f"write {unused.instead}:\n" + "\n".join(found)


def test_a_word_is_found_and_its_exceptions_are_not() -> None:
    unused = next(each for each in UNUSED if each.instead == "group")
    kept = "It reads the pod group of Kueue."
    assert unused.places(kept) == []
    assert unused.places(f"{kept}\nIt has a pod group.") == ["It has a pod group."]


def test_sentences_seldom_have_a_vague_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()[:120]}"
        for path in EVERYWHERE
        if path.name != "CHANGELOG.md"
        for line in path.read_text().splitlines()
        for _ in VAGUE.findall(line)
    ]
    assert len(found) < MOST_VAGUE, "name the pod, client or person:\n" + "\n".join(found)


def test_former_names_are_gone() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name[0]}"
        for path in EVERYWHERE
        if path.name != "CHANGELOG.md"
        for name in FORMER.finditer(path.read_text())
    ]
    assert not found, "see Renamed in the CHANGELOG:\n" + "\n".join(found)


def test_the_glossary_explains_words_that_are_used() -> None:
    """Each word of the glossary stands on another page, or in the code."""
    glossary = ROOT / "docs" / "concepts" / "glossary.md"
    words = re.findall(r"\*\*([^*]+)\*\*", glossary.read_text())
    assert len(words) > 20
    texts = [path.read_text().lower() for path in EVERYWHERE if path != glossary]
    assert [word for word in words if not any(word.lower() in text for text in texts)] == []


NAME_IN_BRACES = re.compile(r"\{[a-zA-Z_][\w.]*(\[[^]]*\]|\([^)]*\))*\}")
TWICE = re.compile(r"\b([a-z]+(?: \w+)*),? \1\b")
# Paths, drawings, manifests and formats that a library fills.
TEMPLATES = re.compile(r"^…?[/#<]|</|^apiVersion|fields\[|^\{why\}$")


def texts(path: Path) -> Iterator[str]:
    """The texts of a module that a person may read, in whole; a value stands as ``…``."""
    tree = ast.parse(path.read_text())
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and id(each) not in parts | alone:
            yield str(each.value)


def test_no_message_repeats_itself_or_names_a_variable() -> None:
    """As after a careless replacement: "…, which is not supported, which is not supported"."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in SOURCE
        if path.suffix == ".py"
        for text in texts(path)
        if not TEMPLATES.search(text) and (NAME_IN_BRACES.search(text) or TWICE.search(text))
    ]
    assert found == []
