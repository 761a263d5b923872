"""One row of a matrix of ``nvidia-smi topo``: its words, its cells, and the text behind them.

The words are found even if tabs were changed or lost. Only cells that can be relied on are kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topology.sources.imported import MAX_NVLINKS, SourceError, quoted
from topology.sources.lines import Line

NUMA = "NUMA Affinity"
# The columns after the matrix; older drivers print one or two of them.
LABELS = ("CPU Affinity", NUMA, "GPU NUMA ID")
SELF = "X"
_PLAIN = "X|SYS|SOC|NODE|PHB|PXB|PIX|PSB"
_ANY = rf"{_PLAIN}|NV(?:[1-5][0-9]|6[0-4]|[1-9])"
CELL = re.compile(_ANY)
# words that cannot be the beginning of a cut word, because no other word begins with them
WHOLE = tuple(_PLAIN.split("|"))
ALLOWED = f"X, NV1 to NV{MAX_NVLINKS}, PSB, PIX, PXB, PHB, NODE, SYS, SOC"
_MERGED = re.compile(rf"(?:{_ANY}){{2,}}")
_MERGED_WITH_CPUS = re.compile(rf"((?:{_ANY})*(?:{_PLAIN}))(?=[0-9])")
# A word that distinguishes a row from prose, whether or not the word can be read.
LINK = re.compile(rf"{_PLAIN}|NV[0-9]+|(?:{_ANY}){{2,}}")
# The words of `nvidia-smi topo -p2p`, which says whether two GPUs may read each other's memory.
P2P = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))

GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})")
NIC = re.compile(r"(?:NIC|mlx)[0-9]\w{0,60}", re.ASCII)
DOTS = re.compile(r"\.{2,}|\u2026")  # dots where people or a terminal left columns out
_CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*|N/A")
_NODES = re.compile(r"[0-9]{1,4}(?:[-,][0-9]{1,4})*|N/A")
_TYPED_NUMA = re.compile(r"\s*NUMA(?:\s?node)?\s?[:=#]?\s?([0-9]{1,3})\s*", re.IGNORECASE)


def is_row(text: str, columns: tuple[str, ...] | None) -> bool:
    """Check whether a line is a device's row, below a header with these columns or without one."""
    name, *words = text.split() or [""]
    if GPU.fullmatch(name):
        known = any(LINK.fullmatch(word) for word in words[:3])
        if known or (columns is not None and not words):
            return True
        may_read = columns is not None and len(words) == len(columns)
        return may_read and (P2P | {SELF}).issuperset(words[:-1])
    named = name in columns if columns else False
    return bool((named or NIC.fullmatch(name)) and words and LINK.fullmatch(words[0]))


def split_row(
    text: str, merged: dict[str, int] | None = None, line: int = 0
) -> list[tuple[str, int]]:
    """Return the words of a row and where each ends.

    Cells that lost the tab between them are separated. No word for a link begins with another one,
    and only ``NV#`` holds a number. So there is only one way to read them, except where ``NV1`` and
    a list of CPUs meet. Those stay one word.
    """
    found: list[tuple[str, int]] = []
    for match in re.finditer(r"\S+", text):
        word, at = match[0], match.start()
        whole = _MERGED.fullmatch(word)
        cells = word if whole else ""
        if not whole and (before := _MERGED_WITH_CPUS.match(word)):
            cells = before[1]
        if not cells or not found:
            found.append((word, match.end()))
            continue
        for cell in CELL.finditer(cells):
            found.append((cell[0], at + cell.end()))
        if not whole:
            found.append((word[len(cells) :], match.end()))
        if merged is not None:
            merged.setdefault(quoted(word), line)
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one device."""

    name: str
    line: int
    # the cells that can be relied on; None for a cell that was left out
    cells: tuple[str | None, ...]
    numa: str = ""  # its NUMA column, if it has one
    rest: str = ""  # unread text behind the matrix


class Header(NamedTuple):
    """The names in a header; all empty if the text has lost it."""

    columns: tuple[str, ...] | None = None  # the devices
    labels: tuple[str, ...] = ()  # the columns after the devices
    unknown: str = ""  # words that name no column
    numa_at: int = -1  # where "NUMA Affinity" begins in a line without tabs


def read_row(
    line: Line,
    columns: tuple[str, ...],
    header: Header,
    gaps: dict[int, int],
    merged: dict[str, int],
    last: bool,
) -> Row:
    """Return the row in a line below a header with these columns.

    ``gaps`` says how many columns are hidden by dots at each position. ``merged`` gets the words
    that hold several cells. The ``last`` row of a text may be cut off.
    """
    number, text, _ = line
    labels = header.labels
    spans = split_row(text, merged, number)
    while len(spans) > 1 and set(spans[-1][0]) <= set(".\u2026"):
        spans.pop()
    name = spans[0][0]
    entries: list[tuple[str | None, int]] = []
    for word, end in spans[1:]:
        if len(entries) >= len(columns):
            break
        hidden = gaps.get(len(entries), 0) if DOTS.fullmatch(word) else 0
        entries += [(None, end)] * hidden or [(word, end)]
    words = [word for word, _ in entries]
    rest = text[entries[-1][1] : spans[-1][1]] if entries else ""
    cut_off = last and not rest and words and words[-1] not in WHOLE
    if words and (cut_off or len(words) < len(columns)):
        words.pop()
    _check_cells(name, columns, words, number)
    behind = next((word for word in rest.split() if not DOTS.fullmatch(word)), "")
    if CELL.fullmatch(behind):
        raise SourceError(
            number, name, f"{behind} is after the last column; the row has a cell too many"
        )
    cells = tuple("SYS" if word == "SOC" else word for word in words)
    numa = _numa(labels, rest, last) or _below(
        header.numa_at, text, entries[-1][1] if entries else 0, last
    )
    values = rest.split()
    known = NUMA in labels or len(values) <= len(labels) or (not labels and is_affinity(values))
    unread = "" if known or numa else " ".join(values)
    return Row(name, number, cells, numa, unread)


def _check_cells(
    name: str, columns: tuple[str, ...], words: Sequence[str | None], line: int
) -> None:
    """Refuse a word that is no cell, and an X that is not under the row's own name."""
    for column, cell_word in zip(columns, words, strict=False):
        if cell_word is None:
            continue
        cell = f"{name}/{column}"
        if not CELL.fullmatch(cell_word):
            raise SourceError(
                line, cell, f"{quoted(cell_word)} is not a link; allowed are {ALLOWED}"
            )
        if (cell_word == SELF) != (column == name):
            message = f"{cell_word} is here, but the row's X must be under {name} and nowhere else"
            raise SourceError(line, cell, message + "; the row has a cell too few or too many")


def _numa(labels: tuple[str, ...], rest: str, last: bool) -> str:
    """Return the NUMA column of a row, from the text behind its cells; '' if there is none.

    Only that column counts, or the number after the word NUMA. If there are fewer values than
    columns, only tabs show which one is missing, and the last value of the last row may be cut.
    """
    values, parts = rest.split(), [part.strip() for part in rest.split("\t")[1:]]
    if not labels:
        if typed := _TYPED_NUMA.fullmatch(rest):
            return typed[1]
        return values[1] if len(values) > 1 and is_affinity(values) else ""
    if NUMA not in labels:
        return ""
    at = labels.index(NUMA)
    found = values
    if len(values) != len(labels):
        cut = last and not any(parts[at + 1 :])
        too_many = len(values) > len(labels)
        in_tabs = len(parts) > len(labels) and all(parts[: at + 1])
        if at >= len(parts) or cut or (too_many and not in_tabs):
            return ""
        found = parts
    cpus = labels.index(LABELS[0]) if LABELS[0] in labels else None
    if cpus is not None and found[cpus] and not _CPUS.fullmatch(found[cpus]):
        return ""
    return found[at]


def _below(at: int, text: str, behind: int, last: bool) -> str:
    """Return the word that begins exactly under the header's NUMA column; '' if there is none.

    The columns before it may be empty. The last word of a text may be cut, so it does not count.
    """
    found = re.compile(r"[0-9]+(?=\s|$)").match(text, at) if at > behind else None
    if found is None or not text[at - 1].isspace() or "\t" in text[behind:]:
        return ""
    return "" if last and not text[found.end() :].strip() else found[0]


def is_affinity(values: Sequence[str]) -> bool:
    """Check whether words without a header are CPUs, a NUMA node and the GPU's own node."""
    return len(values) <= 3 and all(
        pattern.fullmatch(value)
        for pattern, value in zip((_CPUS, _NODES, _NODES), values, strict=False)
    )
