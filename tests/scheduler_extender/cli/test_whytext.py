"""What ``why`` prints, on terminals of any width and with or without colour."""

import io
import re

import pytest
from rich.console import Console

from scheduler_extender.cli.why import show
from scheduler_extender.explain.explanation import explanation_of
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.requests import gpu_request
from topology.machines import machine

UNBLOCK = "kubectl gpu-topology unblock team/train"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def printed(width: int, *, terminal: bool = True, no_color: bool = False) -> str:
    dgx = machine("dgx1-v100").topology("a-node-with-a-long-name.example.internal")
    cluster = cluster_of({dgx: {"one": Held((0,)), "two": Held((5, 6))}})
    pod = waiting("train", gpu_request(4, NVLINKED))
    cluster.today = lambda: 0.0
    found = explanation_of(cluster.snapshot(), pod)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=no_color)
    show(console, found, UNBLOCK)
    return out.getvalue()


def words(text: str) -> list[str]:
    return STYLE.sub("", text).split()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_it_folds_and_cuts_nothing(width: int) -> None:
    text = STYLE.sub("", printed(width))
    assert max(map(len, text.splitlines())) <= width
    whole = words(printed(1000))
    assert "".join(words(text)) == "".join(whole), "a name longer than a line is broken"
    if width > max(map(len, whole)) + 2:
        assert words(text) == whole
    assert "…" not in text


def test_a_pipe_gets_a_line_for_each_thing_and_no_styles() -> None:
    text = printed(40, terminal=False)
    assert not STYLE.search(text)
    assert f"  evictions; {UNBLOCK} shows a plan, if one exists\n" in text


def test_without_colour_nothing_is_coloured() -> None:
    colours = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    assert colours.search(printed(80))
    assert not colours.search(printed(80, no_color=True))
