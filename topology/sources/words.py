"""The words of a matrix of ``nvidia-smi topo``: cells and devices, whatever became of the tabs."""

from __future__ import annotations

import re

from topology.sources.imported import MAX_NVLINKS, quoted

SELF = "X"
_PLAIN = "X|SYS|SOC|NODE|PHB|PXB|PIX|PSB"
_ANY = rf"{_PLAIN}|NV(?:[1-5][0-9]|6[0-4]|[1-9])"
CELL = re.compile(_ANY)
WHOLE = tuple(_PLAIN.split("|"))
"""Words that are whole: no other word begins with them."""
ALLOWED = f"X, NV1 to NV{MAX_NVLINKS}, PSB, PIX, PXB, PHB, NODE, SYS, SOC"
_MERGED = re.compile(rf"(?:{_ANY}){{2,}}")
_MERGED_WITH_CPUS = re.compile(rf"((?:{_ANY})*(?:{_PLAIN}))(?=[0-9])")
LINK = re.compile(rf"{_PLAIN}|NV[0-9]+|(?:{_ANY}){{2,}}")
"""A word that tells a row from prose, whether or not it can be read."""
P2P = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))
"""What ``nvidia-smi topo -p2p`` prints: whether two GPUs may read each other's memory."""

GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})")
NIC = re.compile(r"(?:NIC|mlx)[0-9]\w{0,60}", re.ASCII)
DOTS = re.compile(r"\.{2,}|\u2026")
"""Where people or a terminal left columns out."""


def is_row(text: str, columns: tuple[str, ...] | None) -> bool:
    """Whether a line is a device's row, below a header with these columns or below none."""
    name, *words = text.split() or [""]
    if GPU.fullmatch(name):
        known = any(LINK.fullmatch(word) for word in words[:3])
        if known or (columns is not None and not words):
            return True
        return columns is not None and len(words) == len(columns) and P2P.issuperset(words[:-1])
    named = name in columns if columns else False
    return bool((named or NIC.fullmatch(name)) and words and LINK.fullmatch(words[0]))


def split_row(
    text: str, merged: dict[str, int] | None = None, line: int = 0
) -> list[tuple[str, int]]:
    """The words of a row and where each ends; cells that lost the tab between them come apart.

    No word for a link begins with another and none holds a number but ``NV#``, so there is one way
    to read them, except where ``NV1`` and a list of CPUs meet: that is left as it is.
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
