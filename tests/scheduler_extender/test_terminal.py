"""Tables at every width: no figure is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from scheduler_extender.terminal import show

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
