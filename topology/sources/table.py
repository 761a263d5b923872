"""The matrix of ``nvidia-smi topo`` as people paste it, read into cells.

This module knows where a cell stands, whatever was done to the text on its way: tabs turned into
spaces or lost, a header run together or gone, rows cut off, columns left out. What stood around
the lines is :mod:`~topology.sources.lines`' matter, what a cell means
:mod:`~topology.sources.smi`'s. Nothing is guessed: a row must have its ``X`` under its own name,
the two cells of a pair must agree, and the last cell of a cut row is not believed (``NV1`` may
have been ``NV18``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from topology.core.graph import MAX_GPUS
from topology.sources.identity import MOST_NVLINKS
from topology.sources.imported import (
    MAX_INDEX,
    MAX_NVLINKS,
    Finding,
    SourceError,
    quoted,
)
from topology.sources.lines import Line

MAX_NICS = 128
SELF = "X"
_PLAIN = "X|SYS|SOC|NODE|PHB|PXB|PIX|PSB"
_ANY = rf"{_PLAIN}|NV(?:[1-5][0-9]|6[0-4]|[1-9])"
CELL = re.compile(_ANY)
_WHOLE = tuple(_PLAIN.split("|"))
"""Words that are whole: no other word begins with them."""
ALLOWED = f"X, NV1 to NV{MAX_NVLINKS}, PSB, PIX, PXB, PHB, NODE, SYS, SOC"
_MERGED = re.compile(rf"(?:{_ANY}){{2,}}")
_MERGED_WITH_CPUS = re.compile(rf"((?:{_ANY})*(?:{_PLAIN}))(?=[0-9])")
_LINK = re.compile(rf"{_PLAIN}|NV[0-9]+|(?:{_ANY}){{2,}}")
"""A word that tells a row from prose, whether or not it can be read."""
P2P = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))
"""What ``nvidia-smi topo -p2p`` prints: whether two GPUs may read each other's memory."""
NOT_P2P = (
    "this is the matrix of `nvidia-smi topo -p2p`, which does not say how GPUs are linked: "
    "paste `nvidia-smi topo -m`"
)
NUMA = "NUMA Affinity"
LABELS = ("CPU Affinity", NUMA, "GPU NUMA ID")
"""The columns after the matrix; older drivers print one or two of them."""
_LABELS = {
    "CPU Affinity": re.compile(r"CPUs?(?: Affinity)?", re.IGNORECASE),
    NUMA: re.compile(r"NUMA Affinity|NUMA(?: Nodes?)?(?= ?\t| ?$)", re.IGNORECASE),
    "GPU NUMA ID": re.compile(r"GPU NUMA ID", re.IGNORECASE),
}
_CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*|N/A")
_NODES = re.compile(r"[0-9]{1,4}(?:[-,][0-9]{1,4})*|N/A")
_TYPED_NUMA = re.compile(r"\s*NUMA(?:\s?node)?\s?[:=#]?\s?([0-9]{1,3})\s*", re.IGNORECASE)

_GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})")
_NIC = re.compile(r"(?:NIC|mlx)[0-9]\w{0,60}", re.ASCII)
_DEVICE = re.compile(r"(?=[^0-9]{0,62}[0-9])[A-Za-z][\w.-]{0,62}", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,3})")
_DOTS = re.compile(r"\.{2,}|\u2026")
_LIKE_A_HEADER = re.compile(r"\s*GPU[0-9]+\s+GPU[0-9]")
_P2P_LEGEND = re.compile(r"\s*OK\s+=\s")
_RUN_TOGETHER = re.compile(r"(?<=\S)(?=(?:GPU|NIC|mlx)[0-9])")


@dataclass(frozen=True, slots=True)
class Cell:
    """One word of the matrix, and its line."""

    word: str
    line: int


@dataclass(frozen=True, slots=True)
class Row:
    """A device's row: the cells that can be believed, and its NUMA column ('' where not told).

    A cell that the text leaves out is None. ``rest`` is what stands behind the matrix unread.
    """

    name: str
    line: int
    cells: tuple[Cell | None, ...]
    numa: str = ""
    rest: str = ""


@dataclass(frozen=True)
class Table:
    """A matrix: the devices of its header, and the rows that the text has of them.

    ``line`` is where it begins, ``last_line`` where the text ends, ``has_numa`` whether there is a
    NUMA column at all.
    """

    line: int
    last_line: int
    columns: tuple[str, ...]
    rows: dict[str, Row]
    has_numa: bool

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs, in the order of the columns."""
        return tuple(name for name in self.columns if _GPU.fullmatch(name))

    @cached_property
    def nics(self) -> tuple[str, ...]:
        """The names of everything else, in the order of the columns."""
        return tuple(name for name in self.columns if not _GPU.fullmatch(name))

    @cached_property
    def _at(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.columns)}

    def cell(self, row: str, column: str) -> Cell | None:
        """What ``row`` says under ``column``; None where the text lacks it."""
        cells = self.rows[row].cells if row in self.rows else ()
        at = self._at[column]
        return cells[at] if at < len(cells) else None

    def pair(self, a: str, b: str) -> Cell | None:
        """What either row says of the pair; refused where the two say different things."""
        there, back = self.cell(a, b), self.cell(b, a)
        if there and back and there.word != back.word:
            raise SourceError(
                there.line,
                f"{a}/{b}",
                f"{there.word} here, but {back.word} on line {back.line} ({b}/{a}); "
                "a matrix is symmetric: paste it again",
            )
        return there or back


@dataclass(slots=True)
class _Block:
    """A header, where there is one, and the rows below it.

    ``labels`` are the columns after the devices, ``unknown`` words of the header that name none.
    ``wrapped`` is the line on which a terminal broke the header, or, where there is none, a row.
    """

    line: int
    columns: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    unknown: str = ""
    rows: list[Line] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    p2p_legend: bool = False
    wrapped: int | None = None

    def is_p2p(self) -> bool:
        """Whether these rows say what GPUs may do, not how they are linked."""
        words = {word for _, text, _ in self.rows for word in text.split()[1:]}
        return words <= P2P | {SELF} and (not words.isdisjoint(P2P) or self.p2p_legend)


def read_table(lines: Sequence[Line], findings: list[Finding]) -> Table:
    """The one matrix among cleaned lines; what was odd about it goes to ``findings``."""
    last_line = max((line.number for line in lines if line.text.strip()), default=1)
    block = _the_one(_blocks(lines, findings), lines, findings)
    found = block.rows
    if block.wrapped is not None:
        message = "a line of the table is broken in two here: paste it with its lines unbroken"
        raise SourceError(block.wrapped, None, message)
    hosts = sorted({line.host for line in found})
    if len(hosts) > 1:
        told = ", ".join(quoted(host) for host in hosts[:3])
        message = f"rows of several machines, by what stands before them: {told}; give one"
        raise SourceError(found[0].number, None, message)
    gaps: dict[int, int] = {}
    if block.columns is not None:
        columns = _without_gaps(block, gaps, findings)
    else:
        columns = _columns_by_diagonal(found, last_line, findings)
    _check_columns(block.line, columns)
    rows: dict[str, Row] = {}
    merged: dict[str, int] = {}
    for line in found:
        if (name := line.text.split()[0]) not in columns:
            raise SourceError(line.number, name, "the header has no such column")
    for line in found:
        row = _row(line, columns, block.labels, gaps, merged, last=line is found[-1])
        if row.name in rows:
            message = f"this row stands already on line {rows[row.name].line}"
            raise SourceError(line.number, row.name, message)
        rows[row.name] = row
    if merged:
        text = f"cells that run together are read apart: {', '.join(list(merged)[:8])}"
        findings.append(Finding(min(merged.values()), text))
    if block.unknown:
        text = f"the header's {quoted(block.unknown)} is no known column: NUMA nodes unknown"
        findings.append(Finding(block.line, text))
    has_numa = NUMA in block.labels or any(row.numa for row in rows.values())
    if has_numa and not block.labels and block.columns is not None:
        text = "the header names no NUMA column: taken from what stands behind the rows"
        findings.append(Finding(block.line, text))
    if unread := [row for row in rows.values() if row.rest]:
        text = f"{', '.join(row.name for row in unread[:8])}: not read, since no column is named "
        text += f"for it: {quoted(unread[0].rest)}"
        findings.append(Finding(unread[0].line, text))
    return Table(block.line, last_line, columns, rows, has_numa)


def _blocks(lines: Sequence[Line], findings: list[Finding]) -> list[_Block]:
    """Every header with the rows below it, and rows that have none above them."""
    blocks: list[_Block] = []
    above, unread = "", None
    for line in lines:
        number, text, _ = line
        before, above = above, text
        if not text:
            continue
        block = blocks[-1] if blocks else None
        if named := _header(text, block):
            blocks.append(_Block(number, *named))
        elif _is_row(text, block.columns if block else None):
            if block is None:
                block = _Block(number, wrapped=unread)
                blocks.append(block)
            block.rows.append(line)
            block.names.add(text.split(None, 1)[0])
        elif block is None and unread is None and _LIKE_A_HEADER.match(text):
            unread = number
        elif _GPU.match(text):
            findings.append(Finding(number, f"passed over, it holds no link: {quoted(text)}"))
        elif block is not None and _P2P_LEGEND.match(text):
            block.p2p_legend = True
        elif block is not None and _goes_on(text, before, block):
            block.wrapped = block.wrapped or number
    return blocks


def _goes_on(text: str, before: str, block: _Block) -> bool:
    """Whether a terminal broke the header, or a row without one, into this line and ``before``.

    Columns would be lost without a word. A broken row below a whole header is only a cut one.
    """
    if not before or "=" in text:
        return False
    first = [cell for cell, _ in _split(text)[:2]]
    if block.columns is None:
        return bool(_is_row(before, None)) and any(map(CELL.fullmatch, first))
    return not block.rows and any(map(_NIC.fullmatch, first))


def _the_one(blocks: list[_Block], lines: Sequence[Line], findings: list[Finding]) -> _Block:
    """The block that is the matrix. Several are several machines, and refused."""
    told = [block for block in blocks if block.rows and not block.is_p2p()]
    p2p = [block for block in blocks if block.rows and block.is_p2p()]
    if len(told) > 1:
        message = f"a second table begins, the first is on line {told[0].line}: give one table"
        raise SourceError(told[1].line, None, message)
    if told:
        for block in p2p:
            text = "a matrix of `nvidia-smi topo -p2p`: passed over, it does not say the links"
            findings.append(Finding(block.line, text))
        return told[0]
    if p2p:
        raise SourceError(p2p[0].line, None, NOT_P2P)
    if blocks:
        text = "a header, but no row of a GPU below it"
        raise SourceError(blocks[0].line, None, text)
    said = next((line for line in lines if line.text.startswith("ERROR:")), None)
    message = "no matrix of `nvidia-smi topo -m` in this text"
    if said is not None:
        raise SourceError(said.number, None, f"{message}, but {quoted(said.text)}")
    raise SourceError(1, None, message)


def _header(text: str, above: _Block | None) -> tuple[tuple[str, ...], tuple[str, ...], str] | None:
    """Device names, affinity columns and other words, where this line is a matrix's header.

    Dots between two names stay as they are (see :func:`_without_gaps`).
    """
    after = re.search(r"CPU|GPU\s{1,9}NUMA|NUMA", text, re.IGNORECASE)
    names = _RUN_TOGETHER.sub(" ", text[: after.start()] if after else text).split()
    if not names or not _GPU.fullmatch(names[0]):
        return None
    devices = [name for name in names if not _DOTS.fullmatch(name)]
    if any(CELL.fullmatch(name) or not _DEVICE.fullmatch(name) for name in devices):
        return None
    if len(names) == 1 and not after and above and names[0] not in above.names:
        return None  # a row of which only the name is left
    if names[1:] and _DOTS.fullmatch(names[1]) and len(devices) == 1:  # "GPU0 ..." is no header
        return None
    labels, unknown = _labels(text[after.start() :] if after else "")
    return tuple(names), labels, unknown


def _labels(text: str) -> tuple[tuple[str, ...], str]:
    """The affinity columns in their order, and what words are none; then none is a NUMA column."""
    rest = re.sub(" +", " ", re.sub(r" ?\t[ \t]*", "\t", text))
    at: dict[str, int] = {}
    for label in reversed(LABELS):  # "GPU NUMA ID" before "NUMA", which it contains
        if match := _LABELS[label].search(rest):
            at[label] = match.start()
            rest = rest[: match.start()] + "\t" * len(match[0]) + rest[match.end() :]
    unknown = " ".join(rest.split())
    return tuple(sorted((at.keys() - {NUMA}) if unknown else at, key=at.__getitem__)), unknown


def _without_gaps(block: _Block, gaps: dict[int, int], findings: list[Finding]) -> tuple[str, ...]:
    """The columns of a header, those that ``NIC0 ... NIC5`` leaves out named too.

    ``gaps`` gets, by the position of each such place, how many columns it hides.
    """
    names = block.columns or ()
    columns: list[str] = []
    for at, name in enumerate(names):
        if not _DOTS.fullmatch(name):
            columns.append(name)
            continue
        ends = [_NUMBERED.fullmatch(names[i]) for i in (at - 1, at + 1) if i < len(names)]
        first, last = ends if len(ends) == 2 else (None, None)
        hidden = int(last[2]) - int(first[2]) - 1 if first and last else 0
        if not first or not last or first[1] != last[1] or not 0 < hidden <= MAX_NICS:
            message = "columns are left out here and cannot be named: paste the whole table"
            raise SourceError(block.line, name, message)
        gaps[len(columns)] = hidden
        columns += [f"{first[1]}{int(first[2]) + 1 + k}" for k in range(hidden)]
        text = f"columns between {names[at - 1]} and {names[at + 1]} are left out: {hidden} are "
        findings.append(Finding(block.line, text + "taken to be there, at unknown distances"))
    return tuple(columns)


def _is_row(text: str, columns: tuple[str, ...] | None) -> bool:
    name, *words = text.split() or [""]
    if _GPU.fullmatch(name):
        known = any(_LINK.fullmatch(word) for word in words[:3])
        if known or (columns is not None and not words):
            return True
        return columns is not None and len(words) == len(columns) and P2P.issuperset(words[:-1])
    named = name in columns if columns else False
    return bool((named or _NIC.fullmatch(name)) and words and _LINK.fullmatch(words[0]))


def _split(text: str, merged: dict[str, int] | None = None, line: int = 0) -> list[tuple[str, int]]:
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


def _row(
    line: Line,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    gaps: dict[int, int],
    merged: dict[str, int],
    last: bool,
) -> Row:
    number, text, _ = line
    spans = _split(text, merged, number)
    while len(spans) > 1 and set(spans[-1][0]) <= set(".\u2026"):
        spans.pop()
    name = spans[0][0]
    told: list[tuple[str | None, int]] = []
    for word, end in spans[1:]:
        if len(told) >= len(columns):
            break
        hidden = gaps.get(len(told), 0) if _DOTS.fullmatch(word) else 0
        told += [(None, end)] * hidden or [(word, end)]
    words = [word for word, _ in told]
    rest = text[told[-1][1] : spans[-1][1]] if told else ""
    cut_off = last and not rest and words and words[-1] not in _WHOLE
    if words and (cut_off or len(words) < len(columns)):
        words.pop()
    for column, cell_word in zip(columns, words, strict=False):
        if cell_word is None:
            continue
        cell = f"{name}/{column}"
        if not CELL.fullmatch(cell_word):
            message = f"{quoted(cell_word)} is no link; allowed are {ALLOWED}"
            raise SourceError(number, cell, message)
        if (cell_word == SELF) != (column == name):
            message = (
                f"{cell_word} stands here, but the row's X belongs under {name} and nowhere else"
            )
            raise SourceError(number, cell, message + ": the row has a cell too few or too many")
    behind = next((word for word in rest.split() if not _DOTS.fullmatch(word)), "")
    if CELL.fullmatch(behind):
        message = f"{behind} stands behind the last column: the row has a cell too many"
        raise SourceError(number, name, message)
    cells = tuple(
        None if word is None else Cell("SYS" if word == "SOC" else word, number) for word in words
    )
    numa = _numa(labels, rest, last)
    unread = "" if labels or numa or _affinity(rest.split()) else " ".join(rest.split())
    return Row(name, number, cells, numa, unread)


def _numa(labels: tuple[str, ...], rest: str, last: bool) -> str:
    """The NUMA column of a row, from all that follows its matrix cells; '' where not told.

    Only what stands in that column counts, or behind the word NUMA. Empty cells leave fewer values
    than columns; then only tabs tell which one is missing, and the last value of the last row may
    be cut.
    """
    values, parts = rest.split(), [part.strip() for part in rest.split("\t")[1:]]
    if not labels:
        if typed := _TYPED_NUMA.fullmatch(rest):
            return typed[1]
        return values[1] if len(values) > 1 and _affinity(values) else ""
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


def _affinity(values: Sequence[str]) -> bool:
    """Whether words without a header are CPUs, NUMA node and the GPU's own node, as printed."""
    known = (_CPUS, _NODES, _NODES)
    return len(values) <= 3 and all(
        pattern.fullmatch(value) for pattern, value in zip(known, values, strict=False)
    )


def _check_columns(line: int, columns: tuple[str, ...]) -> None:
    gpus = sum(bool(_GPU.fullmatch(name)) for name in columns)
    for count, what, most in ((gpus, "GPUs", MAX_GPUS), (len(columns) - gpus, "NICs", MAX_NICS)):
        if count > most:
            raise SourceError(line, None, f"{count} {what}, at most {most} are read")
    for name in columns:
        if _GPU.fullmatch(name) and int(name[3:]) > MAX_INDEX:
            raise SourceError(line, name, f"GPUs are numbered 0 to {MAX_INDEX}")
        if columns.count(name) > 1:
            raise SourceError(line, name, "this column stands twice in the header")


def _columns_by_diagonal(
    found: Sequence[Line], last_line: int, findings: list[Finding]
) -> tuple[str, ...]:
    """The columns of a matrix whose header is lost: each row's ``X`` stands under its own name.

    Rows that are lost too leave columns without a name. Where NIC rows follow, no GPU row is lost.
    Behind a switch every GPU is linked, so columns up to the last ``NV#`` are GPUs and the rest
    NICs. Otherwise it cannot be told.
    """
    line = found[0].number
    split = [[word for word, _ in _split(text)] for _, text, _ in found]
    names = [row[0] for row in split]
    words = [list(takewhile(CELL.fullmatch, row[1:])) for row in split]
    width = max(len(row) for row in words)
    gpus = sum(bool(_GPU.fullmatch(name)) for name in names)
    if not gpus:
        raise SourceError(line, names[0], "rows of NICs, but none of a GPU")
    for at, ((number, _, _), name, row) in enumerate(zip(found, names, words, strict=True)):
        in_order = name == f"GPU{at}" if at < gpus else not _GPU.fullmatch(name)
        if not in_order or (len(row) > at and row[at] != SELF):
            message = "the header row is missing and rows and X do not run from GPU0 on: paste it"
            raise SourceError(number, name, message)
    if len(names) == gpus:
        nvlinks = [[int(w[2:]) if w.startswith("NV") else 0 for w in row] for row in words]
        linked = max(at for row in nvlinks for at, n in enumerate([0, *row]) if n or not at)
        switch = any(sum(row) > MOST_NVLINKS for row in nvlinks)
        lone = width == 1 and not re.match(r"\s*GPU0\s+X\s+[0-9]", found[0].text)  # no CPU list
        if lone or (gpus < width and not switch):
            message = f"the header row is missing: columns after GPU{gpus - 1} may be GPUs or NICs"
            raise SourceError(last_line, None, message + "; paste the whole table")
        gpus = max(gpus, linked)
        names = [f"GPU{i}" for i in range(gpus)]
    names += [f"NIC{at - gpus}" for at in range(len(names), width)]
    text = f"the header row is missing: by X and NVLinks the columns are GPU0 to GPU{gpus - 1}"
    nics = f" and {len(names) - gpus} NICs" if len(names) > gpus else ""
    findings.append(Finding(line, text + nics))
    return tuple(names)
