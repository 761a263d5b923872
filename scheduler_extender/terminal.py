"""Print text and tables on terminals of any width, and make untrusted text safe."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Column, Table
from rich.text import Text

from scheduler_extender.untrustedtext import BLANKS, one_line, sanitized

R = TypeVar("R")
Cell = Callable[[R], Text | str]
# A column, its cell of a row, and its key by which rows are sorted.
Shown = tuple[Column, Cell[R], Callable[[R], Any]]

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
    found = Table(*(how for how, *_ in shown), show_header=headers)
    for row in rows:
        cells = (cell(row) for _, cell, _ in shown)
        found.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return found


def paragraph(console: Console, words: str, style: str = "", indent: int = 0) -> None:
    """Print a paragraph that wraps between words; a pipe gets it on one line."""
    text = Text(words, style)
    if not console.is_terminal:
        console.print(Text(" " * indent) + text, soft_wrap=True)
    else:
        console.print(Padding(text, (0, 0, 0, indent)))


def section(console: Console, title: str, paragraphs: Iterable[str]) -> None:
    """Print a title and paragraphs below it; nothing without paragraphs."""
    for number, words in enumerate(paragraphs):
        if not number:
            console.print()
            console.print(Text(title, "bold"))
        paragraph(console, words, indent=2)


def show(
    console: Console,
    table: Table,
    keys: int = 1,
    instead: Iterable[tuple[str, Iterable[Text | str]]] | None = None,
) -> None:
    """Print a table, in several parts if it is too wide.

    The first ``keys`` columns identify the row and are repeated in every part. No cell is cut. Only
    columns that fold (``overflow="fold"``) may wrap their text. Where that would be hard to read,
    the rows are printed as the paragraphs ``instead``: each has a heading and lines.
    """
    columns = [_Measured(column, headers=table.show_header) for column in table.columns]
    parts = list(_parts(columns, console.width, keys))
    least, most = (
        sum(each) + GAP * (len(columns) - 1)
        for each in zip(*((column.least, column.most) for column in columns), strict=True)
    )
    readable = least if console.width >= ROOMY else most
    if instead is not None and (len(parts) > 1 or readable > console.width):
        for heading, lines in instead:
            console.print(Text(heading, "bold", overflow="fold"))
            for line in lines:
                console.print(Padding(Text() + line, (0, 0, 0, 2)))
        return
    if table.title:
        console.print(table.title, style="italic")
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(Segments(_lines(console, part, headers=table.show_header)))


class _Measured:
    """A column with its texts, the fewest terminal columns that cut no cell, and those for all."""

    def __init__(self, column: Column, *, headers: bool) -> None:
        self.justify, self.folds = column.justify, column.overflow == "fold"
        cells = [column.header if headers else "", *column.cells]
        self.texts = [
            _on_one_line(cell if isinstance(cell, Text) else Text(str(cell))) for cell in cells
        ]
        header, *others = self.texts
        header.style = "bold"
        lengths = [text.cell_len for text in others]
        self.most = max([header.cell_len, *lengths])
        words = header.plain.split()  # a header breaks between words
        if self.folds:
            words += (word for text in others for word in text.plain.split())
            lengths = []
        self.least = max([0, *map(len, words), *lengths])


def _parts(columns: list[_Measured], width: int, keys: int) -> Iterator[list[_Measured]]:
    fixed = sum(column.least + GAP for column in columns[:keys])
    taken: list[_Measured] = []
    used = fixed
    for column in columns[keys:]:
        if taken and used + column.least > width:
            yield [*columns[:keys], *taken]
            taken, used = [], fixed
        taken.append(column)
        used += column.least + GAP
    yield [*columns[:keys], *taken]


def _lines(console: Console, columns: list[_Measured], *, headers: bool) -> Iterator[Segment]:
    """Yield the lines of a part of a table. Rich's own tables take ten times as long."""
    widths = _widths(columns, console.width)
    for number, row in enumerate(zip(*(column.texts for column in columns), strict=True)):
        if not number and not headers:
            continue
        cells = [
            _wrapped(console, text, width, column.justify)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        height = max(map(len, cells))
        for place, width in enumerate(widths):
            blank = [[Segment(" " * width)]] * (height - len(cells[place]))
            cells[place] = cells[place] + blank if number else blank + cells[place]
        for line in zip(*cells, strict=True):
            for place, segments in enumerate(line):
                if place:
                    yield Segment(" " * GAP)
                yield from segments
            yield Segment.line()


def _wrapped(
    console: Console, text: Text, width: int, justify: JustifyMethod
) -> list[list[Segment]]:
    """Return a cell's lines, each as wide as its column."""
    left = width - text.cell_len
    if left < 0 or text.spans:
        lines = text.wrap(console, width, justify=justify, overflow="fold")
        return [[*Text().join([line]).render(console)] for line in lines]
    words = " " * left + text.plain if justify == "right" else text.plain + " " * left
    return [[Segment(words, console.get_style(text.style))]]


def _widths(columns: list[_Measured], width: int) -> list[int]:
    """Return the width of each column.

    Each gets the width that it needs. What is left goes, character by character, to the column with
    the smallest part of its full width. What is missing is taken, character by character, from the
    widest column that folds, and then from the others; one character remains of each.
    """
    needs = [min(column.least, width) for column in columns]
    most = [min(column.most, width) for column in columns]
    room = width - GAP * (len(columns) - 1)
    if sum(most) <= room:  # as in a pipe, which is a million columns wide
        return most
    left = room - sum(needs)
    more = sorted(
        (n / column.most, place)
        for place, column in enumerate(columns)
        for n in range(needs[place], most[place])
    )
    less = sorted(
        (not column.folds, -n, place)
        for place, column in enumerate(columns)
        for n in range(2, needs[place] + 1)
    )
    gained = Counter(place for _, place in more[: max(left, 0)])
    lost = Counter(place for *_, place in less[: max(-left, 0)])
    return [need + gained[place] - lost[place] for place, need in enumerate(needs)]


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
