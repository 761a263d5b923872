"""The matrix of ``nvidia-smi topo`` as people paste it, read into cells.

This module knows where a cell stands, whatever was done to the text on its way: colours, prompts,
quoting, tabs turned into spaces, a header run together or lost, rows cut off. What a cell means is
:mod:`~topology.sources.smi`'s matter. Nothing is guessed: a row must have its ``X`` under its own
name, the two cells of a pair must agree, and the last cell of a cut row is not believed (``NV1``
may have been ``NV18``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from topology.graph import MAX_GPUS
from topology.sources.imported import Finding, SourceError, quoted
from topology.sources.inventory import MOST_NVLINKS

MAX_NICS = 128
SELF = "X"
CELL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV[1-9][0-9]{0,2}")
_WHOLE = ("X", "SYS", "SOC", "NODE", "PHB", "PXB", "PIX", "PSB")
"""Words that are whole: no other word begins with them."""
ALLOWED = "X, NV and a number, PSB, PIX, PXB, PHB, NODE, SYS, SOC"
NUMA = "NUMA Affinity"
LABELS = ("CPU Affinity", NUMA, "GPU NUMA ID")
"""The columns after the matrix; older drivers print one or two of them, always in this order."""

_COLOUR = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|(?:\^\[)?\[[0-9;]{1,8}m|\x1b"
)
_INVISIBLE = re.compile("[\ufeff\u200b-\u200d\u2060]")
_WIDE = re.compile("[\u00a0\u2007\u202f]")
_QUOTING = re.compile(r"(?:\s*>)+ ?")
_GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})")
_NIC = re.compile(r"(?:NIC|mlx)[0-9]\w*")
_DEVICE = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z][\w.-]*", re.ASCII)
_RUN_TOGETHER = re.compile(r"(?<=\S)(?=(?:GPU|NIC|mlx)[0-9])")


def clean(text: str) -> list[str]:
    """The lines without what terminals, mailers and web pages put around them; none is dropped."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [_clean(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Cell:
    """One word of the matrix, and its line."""

    word: str
    line: int


@dataclass(frozen=True, slots=True)
class Row:
    """A device's row: the cells that can be believed, and its NUMA column ('' where not told)."""

    name: str
    line: int
    cells: tuple[Cell, ...]
    numa: str = ""


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


def read_table(lines: Sequence[str], findings: list[Finding]) -> Table:
    """The one matrix among cleaned lines; what was odd about it goes to ``findings``."""
    header: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None
    found: list[tuple[int, str]] = []
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        if named := _header(text, begun=bool(header or found)):
            if header or found:
                begun = header[0] if header else found[0][0]
                message = f"a second table begins, the first is on line {begun}: give one table"
                raise SourceError(number, None, message)
            _check_columns(number, named[0])
            header = number, *named
        elif _is_row(text, header[1] if header else None):
            found.append((number, text))
        elif _GPU.match(text):
            findings.append(Finding(number, f"passed over, it holds no link: {quoted(text)}"))
    last_line = max((n for n, text in enumerate(lines, 1) if text.strip()), default=1)
    if header:
        line, columns, labels = header
        if not found:
            raise SourceError(line, None, "a header, but no row of a GPU below it")
    elif found:
        line, labels = found[0][0], ()
        columns = _columns_by_diagonal(found, last_line, findings)
        _check_columns(line, columns)
    else:
        raise SourceError(1, None, "no matrix of `nvidia-smi topo -m` in this text")
    rows: dict[str, Row] = {}
    for number, text in found:
        row = _row(number, text, columns, labels, last=number == found[-1][0])
        if row.name in rows:
            message = f"this row stands already on line {rows[row.name].line}"
            raise SourceError(number, row.name, message)
        rows[row.name] = row
    has_numa = NUMA in labels or any(row.numa for row in rows.values())
    if has_numa and not labels and header:
        text = f"the header names no columns after the devices: taken as {', '.join(LABELS)}"
        findings.append(Finding(line, text))
    return Table(line, last_line, columns, rows, has_numa)


def _clean(line: str) -> str:
    if not line or line.isspace():
        return ""
    line = _WIDE.sub(" ", _INVISIBLE.sub("", _COLOUR.sub("", line)))
    if quoting := _QUOTING.match(line):
        line = line[quoting.end() :]
    return line.replace("|", "\t")


def _header(text: str, begun: bool) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Device names and affinity columns, where this line is the header of a matrix."""
    after = re.search(r"CPU|GPU\s+NUMA|NUMA", text)
    names = _RUN_TOGETHER.sub(" ", text[: after.start()] if after else text).split()
    if not names or not _GPU.fullmatch(names[0]):
        return None
    if any(CELL.fullmatch(name) or not _DEVICE.fullmatch(name) for name in names):
        return None
    if len(names) == 1 and not after and begun:  # a row of which only the name is left
        return None
    labels = tuple(label for label in LABELS if re.search(label.replace(" ", r"\s+"), text))
    return tuple(names), labels


def _is_row(text: str, columns: tuple[str, ...] | None) -> bool:
    name, *words = text.split() or [""]
    if _GPU.fullmatch(name):
        known = any(CELL.fullmatch(word) for word in words[:3])
        return known or (columns is not None and not words)
    named = name in columns if columns else False
    return bool((named or _NIC.fullmatch(name)) and words and CELL.fullmatch(words[0]))


def _row(
    line: int, text: str, columns: tuple[str, ...], labels: tuple[str, ...], last: bool
) -> Row:
    spans = list(re.finditer(r"\S+", text))
    while len(spans) > 1 and set(spans[-1][0]) <= set(".…"):
        spans.pop()
    name = spans[0][0]
    if name not in columns:
        raise SourceError(line, name, "the header has no such column")
    matrix = spans[1 : 1 + len(columns)]
    words = [span[0] for span in matrix]
    rest = text[matrix[-1].end() : spans[-1].end()] if matrix else ""
    cut_off = last and not rest and words and words[-1] not in _WHOLE
    if words and (cut_off or len(words) < len(columns)):
        words.pop()
    for column, word in zip(columns, words, strict=False):
        cell = f"{name}/{column}"
        if not CELL.fullmatch(word):
            raise SourceError(line, cell, f"{quoted(word)} is no link; allowed are {ALLOWED}")
        if (word == SELF) != (column == name):
            message = f"{word} stands here, but the row's X belongs under {name} and nowhere else"
            raise SourceError(line, cell, message + ": the row has a cell too few or too many")
    cells = tuple(Cell("SYS" if word == "SOC" else word, line) for word in words)
    return Row(name, line, cells, _numa(labels, rest, last))


def _numa(labels: tuple[str, ...], rest: str, last: bool) -> str:
    """The NUMA column of a row, from all that follows its matrix cells; '' where not told.

    Empty cells leave fewer values than columns; then only tabs tell which one is missing, and
    the last value of the last row may be cut.
    """
    values, parts = rest.split(), [part.strip() for part in rest.split("\t")[1:]]
    if not labels:
        return values[1] if len(values) in (2, 3) else ""
    if NUMA not in labels or len(values) > len(labels):
        return ""
    at = labels.index(NUMA)
    if len(values) == len(labels):
        return values[at]
    if at >= len(parts) or (last and not any(parts[at + 1 :])):
        return ""
    return parts[at]


def _check_columns(line: int, columns: tuple[str, ...]) -> None:
    gpus = sum(bool(_GPU.fullmatch(name)) for name in columns)
    for count, what, most in ((gpus, "GPUs", MAX_GPUS), (len(columns) - gpus, "NICs", MAX_NICS)):
        if count > most:
            raise SourceError(line, None, f"{count} {what}, at most {most} are read")
    for name in columns:
        if columns.count(name) > 1:
            raise SourceError(line, name, "this column stands twice in the header")


def _columns_by_diagonal(
    found: Sequence[tuple[int, str]], last_line: int, findings: list[Finding]
) -> tuple[str, ...]:
    """The columns of a matrix whose header is lost: each row's ``X`` stands under its own name.

    Rows that are lost too leave columns without a name. Where NIC rows follow, no GPU row is lost.
    Behind a switch every GPU is linked, so columns up to the last ``NV#`` are GPUs and the rest
    NICs. Otherwise it cannot be told.
    """
    line = found[0][0]
    names = [text.split()[0] for _, text in found]
    words = [list(takewhile(CELL.fullmatch, text.split()[1:])) for _, text in found]
    width = max(len(row) for row in words)
    gpus = sum(bool(_GPU.fullmatch(name)) for name in names)
    if not gpus:
        raise SourceError(line, names[0], "rows of NICs, but none of a GPU")
    for at, ((number, _), name, row) in enumerate(zip(found, names, words, strict=True)):
        in_order = name == f"GPU{at}" if at < gpus else not _GPU.fullmatch(name)
        if not in_order or (len(row) > at and row[at] != SELF):
            message = "the header row is missing and rows and X do not run from GPU0 on: paste it"
            raise SourceError(number, name, message)
    if len(names) == gpus:
        nvlinks = [[int(w[2:]) if w.startswith("NV") else 0 for w in row] for row in words]
        linked = max(at for row in nvlinks for at, n in enumerate([0, *row]) if n or not at)
        switch = any(sum(row) > MOST_NVLINKS for row in nvlinks)
        lone = width == 1 and not re.match(r"\s*GPU0\s+X\s+[0-9]", found[0][1])  # no CPU list
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
