"""The matrix of ``nvidia-smi topo`` as people paste it, read into cells.

This module finds the matrix and its rows, even if the text was damaged on its way: tabs turned into
spaces or lost, a header run together or gone, rows cut off, columns left out.
:mod:`~topology.sources.lines` removes what was put around the lines,
:mod:`~topology.sources.columns` reads the header, :mod:`~topology.sources.rows` reads a row's words
and cells, and :mod:`~topology.sources.smi` interprets the cells. Nothing is guessed. A row must
have its ``X`` under its own name. The two cells of a pair must agree. The last cell of a cut row
does not count (``NV1`` may have been ``NV18``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from topology.sources.columns import (
    check_columns,
    columns_by_diagonal,
    only_labels,
    read_header,
    without_gaps,
)
from topology.sources.imported import Findings, SourceError, quoted
from topology.sources.inventory import OWN_LIST
from topology.sources.lines import Line
from topology.sources.rows import (
    CELL,
    GPU,
    NIC,
    NUMA,
    P2P,
    SELF,
    Header,
    Row,
    is_affinity,
    is_row,
    read_row,
    split_row,
)

NOT_P2P = (
    "this is the matrix of `nvidia-smi topo -p2p`, which does not show how GPUs are linked; "
    "paste that of `nvidia-smi topo -m`"
)
_LIKE_A_HEADER = re.compile(r".{0,200}?\bGPU[0-9]+\s+GPU[0-9]")
_LIKE_LABELS = re.compile(r"\s*(?:CPU|NUMA|GPU\s{1,9}NUMA)", re.IGNORECASE)
_TWO_NAMES = re.compile(r"\bGPU0\s{1,20}GPU1\b")
_FIRST_ROW = re.compile(r"\bGPU0\s{1,20}X\b")
_P2P_LEGEND = re.compile(r"\s*OK\s+=\s")


@dataclass(frozen=True)
class Table:
    """A matrix of ``nvidia-smi topo``."""

    line: int  # the line on which it begins
    last_line: int  # the line on which the text ends
    columns: tuple[str, ...]  # the devices of its header
    rows: dict[str, Row]  # the rows that the text has
    has_numa: bool  # whether there is a NUMA column

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs, in the order of the columns."""
        return tuple(name for name in self.columns if GPU.fullmatch(name))

    @cached_property
    def nics(self) -> tuple[str, ...]:
        """The names of all other devices, in the order of the columns."""
        return tuple(name for name in self.columns if not GPU.fullmatch(name))

    @cached_property
    def _at(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.columns)}

    def cell(self, row: str, column: str) -> str | None:
        """Return the cell of ``row`` under ``column``; None if the text lacks it."""
        cells = self.rows[row].cells if row in self.rows else ()
        at = self._at[column]
        return cells[at] if at < len(cells) else None

    def pair(self, a: str, b: str) -> str | None:
        """Return the cell of a pair from either row; refused if the two rows differ."""
        there, back = self.cell(a, b), self.cell(b, a)
        if there and back and there != back:
            raise SourceError(
                self.rows[a].line,
                f"{a}/{b}",
                f"{there} here, but {back} on line {self.rows[b].line} ({b}/{a}); "
                "a matrix must be symmetric; paste it again",
            )
        return there or back


@dataclass(slots=True)
class _Block:
    """A header and the rows below it, or rows without a header."""

    line: int
    header: Header = Header()  # noqa: RUF009 (it never changes)
    rows: list[Line] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    p2p_legend: bool = False
    # The line on which a terminal broke the header, or a row if there is no header.
    wrapped: int | None = None

    def same(self, other: Self) -> bool:
        """Check whether the other block has the same header and rows, of the same machine."""
        mine, its = ([(r.host, r.text.split()) for r in b.rows] for b in (self, other))
        return (self.header[:2], mine) == (other.header[:2], its)

    def is_p2p(self) -> bool:
        """Check whether these rows show what peers may do, and not how they are linked."""
        words = {word for _, text, _ in self.rows for word in text.split()[1:]}
        return words <= P2P | {SELF} and (not words.isdisjoint(P2P) or self.p2p_legend)


def read_table(lines: Sequence[Line], findings: Findings) -> Table:
    """Return the one matrix among cleaned lines; ``findings`` get its oddities."""
    last_line = max((line.number for line in lines if line.text.strip()), default=1)
    block = _the_one(_blocks(_joined(lines, findings), findings), lines, findings)
    found = block.rows
    if block.wrapped is not None:
        raise SourceError(
            block.wrapped,
            None,
            "a line of the table is broken in two here; paste the table with unbroken lines",
        )
    hosts = sorted({line.host for line in found})
    if len(hosts) > 1:
        told = ", ".join(quoted(host) for host in hosts[:3])
        raise SourceError(
            found[0].number,
            None,
            f"the rows are of several machines, by the text before them: {told}; give the rows "
            "of one",
        )
    gaps: dict[int, int] = {}
    header = block.header
    if header.columns is not None:
        columns = without_gaps(header.columns, block.line, gaps, findings)
    else:
        columns = columns_by_diagonal(found, last_line, findings)
    check_columns(block.line, columns)
    rows: dict[str, Row] = {}
    merged: dict[str, int] = {}
    for line in found:
        if (name := line.text.split()[0]) not in columns:
            raise SourceError(line.number, name, "the header has no such column")
    for line in found:
        row = read_row(line, columns, header, gaps, merged, last=line is found[-1])
        if row.name in rows:
            raise SourceError(
                line.number, row.name, f"this row is already on line {rows[row.name].line}"
            )
        rows[row.name] = row
    if merged:
        findings.note(
            min(merged.values()),
            f"cells without a space between them were separated: {', '.join(list(merged)[:8])}",
        )
    if header.unknown:
        findings.note(
            block.line,
            f"the header's {quoted(header.unknown)} is not a known column, so the NUMA nodes are "
            "unknown",
        )
    has_numa = NUMA in header.labels or any(row.numa for row in rows.values())
    if has_numa and not header.labels and header.columns is not None:
        findings.note(
            block.line,
            "the header has no NUMA column, so it is taken from the end of the rows",
        )
    if unread := [row for row in rows.values() if row.rest]:
        text = f"{', '.join(row.name for row in unread[:8])}: not read, because the header "
        text += f"has no column for it: {quoted(unread[0].rest)}"
        findings.note(unread[0].line, text)
    return Table(block.line, last_line, columns, rows, has_numa)


def first_row(lines: Sequence[Line]) -> int | None:
    """Return the line of the first row of a matrix of links; None if there is no matrix."""
    found = (block for block in _blocks(lines, Findings()) if block.rows and not block.is_p2p())
    return next((block.rows[0].number for block in found), None)


def _joined(lines: Sequence[Line], findings: Findings) -> list[Line]:
    """Return the lines, joined again if a terminal broke each before its affinity columns."""
    found: list[Line] = []
    broken = False
    for line in lines:
        above = found[-1] if found else Line(0, "")
        goes_on = (
            broken
            and bool(line.text)
            and is_row(above.text, None)
            and is_affinity(line.text.split())
        )
        may_be = bool(above.text) and (broken or bool(_LIKE_LABELS.match(line.text)))
        header = read_header(above.text, None) if may_be and line.text else None
        if header and not header.labels and not header.unknown:
            goes_on = broken = only_labels(line.text)
            if broken:
                findings.note(
                    above.number,
                    "the lines were broken before the affinity columns and have been joined",
                )
        if goes_on:
            found[-1] = above._replace(text=f"{above.text}\t{line.text}")
        else:
            found.append(line)
    return found


def _blocks(lines: Sequence[Line], findings: Findings) -> list[_Block]:
    """Return every header with the rows below it, and rows without a header."""
    blocks: list[_Block] = []
    above, unread = "", None
    for line in lines:
        number, text, _ = line
        before, above = above, text
        if not text:
            continue
        block = blocks[-1] if blocks else None
        if named := read_header(text, block.names if block else None):
            blocks.append(_Block(number, named))
        elif is_row(text, block.header.columns if block else None):
            if block is None:
                block = _Block(number, wrapped=unread)
                blocks.append(block)
            block.rows.append(line)
            block.names.add(text.split(None, 1)[0])
        elif block is None and unread is None and _LIKE_A_HEADER.match(text):
            unread = number
        elif GPU.match(text) and not OWN_LIST.fullmatch(text):
            findings.note(number, f"skipped, because it has no link: {quoted(text)}")
        elif block is not None and _P2P_LEGEND.match(text):
            block.p2p_legend = True
        elif block is not None and _goes_on(text, before, block):
            block.wrapped = block.wrapped or number
    return blocks


def _goes_on(text: str, before: str, block: _Block) -> bool:
    """Check whether a terminal broke a line of the table into this line and ``before``.

    Only the header counts, or a row if there is no header. Otherwise columns would be lost
    silently. A broken row below a whole header is only cut.
    """
    if not before or "=" in text:
        return False
    first = [cell for cell, _ in split_row(text)[:2]]
    if block.header.columns is None:
        return bool(is_row(before, None)) and any(map(CELL.fullmatch, first))
    return not block.rows and any(map(NIC.fullmatch, first))


def _the_one(blocks: list[_Block], lines: Sequence[Line], findings: Findings) -> _Block:
    """Return the block that is the matrix. Several blocks are several machines, and are refused."""
    tables = [block for block in blocks if block.rows and not block.is_p2p()]
    p2p = [block for block in blocks if block.rows and block.is_p2p()]
    for block in [block for block in tables[1:] if block.same(tables[0])]:
        tables.remove(block)
        findings.note(block.line, f"the table of line {tables[0].line} is repeated here; skipped")
    if len(tables) > 1:
        first = tables[0]
        raise SourceError(
            tables[1].line,
            None,
            f"a second table begins here, but the first is on line {first.line}; give one table",
        )
    if tables:
        for block in p2p:
            findings.note(
                block.line,
                "a matrix of `nvidia-smi topo -p2p` was skipped, because it does not show the "
                "links",
            )
        return tables[0]
    if p2p:
        raise SourceError(p2p[0].line, None, NOT_P2P)
    if (line := _run_together(lines)) is not None:
        raise SourceError(line, None, "the table has lost its line breaks; paste it with them")
    if blocks:
        raise SourceError(blocks[0].line, None, "a header without a row of a GPU below it")
    said = next((line for line in lines if line.text.startswith("ERROR:")), None)
    message = "this text has no matrix of `nvidia-smi topo -m`"
    if said is not None:
        raise SourceError(said.number, None, f"{message}, but {quoted(said.text)}")
    raise SourceError(1, None, message)


def _run_together(lines: Sequence[Line]) -> int | None:
    """Return the line that has a header and a row of the matrix; None if there is none."""
    for number, text, _ in lines:
        names = _TWO_NAMES.search(text)
        if names and _FIRST_ROW.search(text, names.end()):
            return number
    return None
