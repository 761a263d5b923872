"""Tables at every width: no figure is cut. Progress, on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console
from rich.table import Column, Table

from scheduler_extender import terminal
from scheduler_extender.terminal import progress, show
from tests.waiting import eventually

HEADERS = ("cluster", "policy", "promises kept", "weakest hop GB/s", "wait h", "several GPUs")


def shown(width: int, keys: int = 2) -> str:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in HEADERS:
        table.add_column(header, justify="right")
    for policy in ("gpu-topology", "LeastAllocated"):
        table.add_row("dgx1-v100=16", policy, "100.0 % ± 0.0", "81.4 ± 7.8", "0.00 ± 0.06", "× 1.0")
    out = io.StringIO()
    show(Console(width=width, file=out), table, keys)
    return out.getvalue()


@pytest.mark.parametrize("width", [44, 60, 80, 120, 200])
def test_no_figure_is_cut_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = shown(width)
    assert "…" not in text
    for figure in ("100.0 % ± 0.0", "81.4 ± 7.8", "0.00 ± 0.06", "× 1.0"):
        assert text.count(figure) == 2
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(HEADERS).split():
        assert word in text


def test_every_part_says_which_row_is_which() -> None:
    parts = shown(60).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert "dgx1-v100=16" in part
        assert "LeastAllocated" in part
    assert "\n\n" not in shown(200)


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        pytest.param(24, ["gpu-node-0  one two four"], id="enough for all"),
        pytest.param(20, ["gpu-node-0  one two", "            four"], id="words wrap"),
        pytest.param(15, ["gpu-node-0  one", f"{'':12}two", f"{'':12}fou"], id="a word breaks"),
        pytest.param(9, ["gpu-no  o", "de-0    n"], id="the name gives last"),
    ],
)
def test_a_column_that_folds_gives_way_to_one_that_does_not(width: int, lines: list[str]) -> None:
    table = Table("", Column("", overflow="fold"), show_header=False)
    table.add_row("gpu-node-0", "one two four")
    out = io.StringIO()
    show(Console(width=width, file=out), table)
    printed = [line.rstrip() for line in out.getvalue().splitlines()]
    assert printed[: len(lines)] == lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_appears_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(terminal, "PATIENCE", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading") as tell:
        tell(0.5, "half")
        eventually(lambda: "reading" in screen.getvalue() and "half" in screen.getvalue())
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(terminal, "PATIENCE", 600)
    with progress("reading") as tell:
        tell(0.5, "half")
    assert screen.getvalue() == ""


def test_in_a_pipe_lines_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(terminal, "EVERY", 0.01)
    with progress("placing pods", lines=True) as tell:
        eventually(lambda: "placing pods\n" in pipe.getvalue())
        tell(0.5, "7 placed")
        eventually(lambda: "placing pods: 50%, 7 placed\n" in pipe.getvalue())


def test_in_a_pipe_a_short_command_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(terminal, "EVERY", 0.0)
    with progress("reading") as tell:
        tell(0.5, "half")
    assert pipe.getvalue() == ""
