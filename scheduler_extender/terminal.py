"""Print text and tables on terminals of any width, and make untrusted text safe."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread, Timer
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from scheduler_extender.untrustedtext import BLANKS, one_line, sanitized

R = TypeVar("R")
Cell = Callable[[R], Text | str]
Shown = tuple[Column, Cell[R], Callable[[R], Any]]
"""A column, its cell of a row, and its key by which rows are sorted."""

GAP = 2  # terminal columns between two columns of a table
PATIENCE = 1.0  # seconds without a progress bar
EVERY = 10.0  # seconds between two lines about the progress in a pipe
ROOMY = 72  # from this width on, a table is easier to read than a paragraph for each row


class HarmlessConsole(Console):
    """A console that prints no control characters of a text, and each text on a line of its own.

    A line feed in a text becomes a blank, so each line begins with a ``print``. If the reader of
    the output has gone, it raises :class:`BrokenPipeError`, as files do.
    """

    def on_broken_pipe(self) -> None:
        """Raise. Rich would end the process here, with an exit code that means something else."""
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Rich does, with each text passed through :func:`one_line`."""
        if isinstance(renderable, str):
            renderable = one_line(renderable)
        elif isinstance(renderable, Text):
            renderable = _on_one_line(renderable)
        for part in super().render(renderable, options):
            yield part if part.control else Segment(sanitized(part.text), part.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Render as Rich does, but end no line with blanks, except on a terminal."""
        text = super()._render_buffer(buffer)
        if self.is_terminal:
            return text
        return "\n".join(line.rstrip(" ") for line in text.split("\n"))


def _on_one_line(text: Text) -> Text:
    if "\n" not in text.plain and "\t" not in text.plain:
        return text
    text = text.copy()
    text.plain = text.plain.translate(BLANKS)
    return text


def column(
    header: str,
    cell: Cell[R],
    *,
    figure: bool = False,
    folds: bool = False,
    when: bool = True,
    amount: Callable[[R], float | None] | None = None,
) -> list[Shown[R]]:
    """Return one column, or none unless ``when``. A column that ``folds`` may wrap its cells.

    Rows are sorted by the largest ``amount`` first, without it by the cell: a figure is its own
    amount.
    """

    def key(row: R) -> str | tuple[bool, float]:
        text = str(cell(row))
        if not figure and not amount:
            return text
        n = amount(row) if amount else int(text) if text.isdecimal() else None
        return (n is None, -(n or 0))

    how = Column(
        Text(header),
        justify="right" if figure else "left",
        overflow="fold" if folds else "ellipsis",
    )
    return [(how, cell, key)] if when else []


def table(rows: Iterable[R], *columns: list[Shown[R]], headers: bool = True) -> Table:
    """Return a table of the rows, for :func:`show`. Cells are not read as markup."""
    shown = [each for some in columns for each in some]
    shown_table = Table(
        *(how if headers else replace(how, header="") for how, *_ in shown),
        box=None,
        show_header=headers,
        pad_edge=False,
        header_style="bold",
        title_justify="left",
    )
    for row in rows:
        cells = [cell(row) for _, cell, _ in shown]
        shown_table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return shown_table


def stacked(console: Console, heading: str, lines: Iterable[Text | str]) -> None:
    """Print one row as a paragraph, where a table has no room."""
    console.print(Text(heading, "bold", overflow="fold"))
    for line in lines:
        text = Text(line) if isinstance(line, str) else line
        console.print(Padding(text, (0, 0, 0, 2), expand=False))


def paragraph(console: Console, words: str, style: str = "", indent: int = 0) -> None:
    """Print a paragraph that wraps between words; a pipe gets it on one line."""
    text = Text(words, style)
    if not console.is_terminal:
        console.print(Text(" " * indent) + text, soft_wrap=True)
    else:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))


def section(console: Console, title: str, paragraphs: Iterable[str]) -> None:
    """Print a title and paragraphs below it; nothing without paragraphs."""
    for number, words in enumerate(paragraphs):
        if not number:
            console.print()
            console.print(Text(title, "bold"))
        paragraph(console, words, indent=2)


def show(console: Console, table: Table, keys: int = 1) -> None:
    """Print a table, in several parts if it is too wide.

    The first ``keys`` columns identify the row and are repeated in every part. No cell is cut. Only
    columns that fold (``overflow="fold"``) may wrap their text.
    """
    for number, part in enumerate(_parts(table, console.width, keys)):
        if number:
            console.print()
        console.print(part)


def fits(console: Console, table: Table, keys: int = 1) -> bool:
    """Check whether a table is printed in one part without cutting a cell."""
    parts = list(_parts(table, console.width, keys))
    needed = sum(_width(column) + GAP for column in table.columns) - GAP
    return len(parts) == 1 and needed <= console.width


def _parts(table: Table, width: int, keys: int) -> Iterator[Table]:
    columns = table.columns
    fixed = sum(_width(column) + GAP for column in columns[:keys])
    taken: list[Column] = []
    used = fixed
    for column in columns[keys:]:
        if taken and used + _width(column) > width:
            yield _part(table, [*columns[:keys], *taken], width)
            taken, used = [], fixed
        taken.append(column)
        used += _width(column) + GAP
    yield _part(table, [*columns[:keys], *taken], width)


def _width(column: Column) -> int:
    """Return the fewest terminal columns that cut no cell. Headers break between words."""
    texts = [_text(cell) for cell in column.cells]
    whole = [text.cell_len for text in texts]
    if _folds(column):
        whole = [max(map(len, text.plain.split()), default=0) for text in texts]
    words = [len(word) for word in _text(column.header).plain.split()]
    return max([0, *whole, *words])


def _text(cell: object) -> Text:
    return _on_one_line(cell if isinstance(cell, Text) else Text.from_markup(str(cell)))


def _folds(column: Column) -> bool:
    return column.overflow == "fold" and not column.no_wrap


def _part(table: Table, columns: list[Column], width: int) -> Table:
    part = Table(
        box=None,
        pad_edge=False,
        show_header=table.show_header,
        header_style="bold",
        title=table.title,
        title_justify="left",
    )
    for column, given in zip(columns, _widths(columns, width), strict=True):
        # Rich narrows a column without a fixed width, even below min_width.
        part.add_column(column.header, justify=column.justify, width=given, overflow="fold")
    for row, cells in zip(table.rows, zip(*(c.cells for c in columns), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def _widths(columns: list[Column], width: int) -> list[int | None]:
    """Return the width of each column.

    Each gets the width that it needs. The rest goes, column by column, to the one with the smallest
    part of the width that it could use.
    """
    given = [_width(column) for column in columns]
    could = [max(_text(cell).cell_len for cell in (c.header, *c.cells)) for c in columns]
    room = width - GAP * (len(columns) - 1)
    if sum(could) <= room:
        return list(could)
    slack = room - sum(given)
    if slack < 0:
        return [None if _folds(c) else few for c, few in zip(columns, given, strict=True)]
    while slack and given != could:
        place = min(range(len(given)), key=lambda i: given[i] / max(could[i], 1))
        given[place] += 1
        slack -= 1
    return list(given)


@contextmanager
def progress(what: str, *, lines: bool = False) -> Iterator[Callable[[float, str], None]]:
    """Show on standard error how much of the work within is done.

    It yields the function to call with the finished part, from 0 to 1, and with more words. On a
    terminal a bar appears after :data:`PATIENCE`, and disappears at the end. In a pipe there is a
    line every :data:`EVERY` seconds with ``lines``, and nothing without.
    """
    if sys.stderr.isatty():
        with _bar(what) as tell:
            yield tell
        return
    last, ended = [what], Event()

    def print_lines() -> None:
        while not ended.wait(EVERY):
            sys.stderr.write(f"{last[0]}\n")

    if lines:
        Thread(target=print_lines, daemon=True).start()
    try:
        yield lambda done, words: last.__setitem__(0, f"{what}: {done:.0%}, {words}")
    finally:
        ended.set()


@contextmanager
def _bar(what: str) -> Iterator[Callable[[float, str], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[words]}"))
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=HarmlessConsole(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(what, total=None, words="")
    timer = Timer(PATIENCE, bar.start)
    timer.start()
    try:
        yield lambda done, words: bar.update(task, completed=done, total=1.0, words=words)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
