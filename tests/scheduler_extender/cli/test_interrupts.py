"""Ctrl-C ends every command with 130 and without a traceback, at whatever moment it is pressed."""

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from subprocess import PIPE
from typing import Any

import pytest
import typer

from scheduler_extender.cli import extender, main
from scheduler_extender.cli.commandline import run
from scheduler_extender.cli.interrupts import end_at_once, pause
from scheduler_extender.cli.options import spread
from tests.commands import ROOT, asked
from tests.programs import started

CLUSTER = "examples/clusters/where.yaml"
SERVED = (
    "extender",
    "--cluster",
    CLUSTER,
    "--port",
    "0",
    "--admin-port",
    "1",
    "--metrics-port",
    "0",
)
MOST_EARLY = 0.05


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("every", "words"),
    [
        pytest.param(300, ("--version",), id="while the program starts"),
        pytest.param(
            20_000, ("nodes", "--cluster", CLUSTER), id="while a command is loaded and runs"
        ),
        pytest.param(9973, SERVED, id="until the extender serves", marks=pytest.mark.long),
    ],
)
def test_ctrl_c_at_many_points(every: int, words: tuple[str, ...]) -> None:
    """A copy of the program is made at each of the moments, and Ctrl-C pressed in it."""
    interrupting = "tests.scheduler_extender.cli.interrupting"
    command = [sys.executable, "-m", interrupting, str(every), *words]
    with started(command, cwd=ROOT, stdout=PIPE, stderr=PIPE) as child:
        printed, errors = child.communicate()
    *wrong, last = [
        line for line in printed.splitlines() if "ended with" in line or "copies" in line
    ]
    copies, early = (int(word) for word in last.split() if word.isdecimal())
    assert (wrong, errors) == ([], "")
    assert copies > 10
    assert early <= MOST_EARLY * copies, "moments before the program listens to Ctrl-C"


class Collected(io.RawIOBase):
    """A connection during whose end Ctrl-C is pressed."""

    def close(self) -> None:
        super().close()
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def listening() -> Iterator[Any]:
    """What hears Ctrl-C outside of a command of a program that listens to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    end_at_once()
    yield signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_a_command_ends_though_python_drops_the_exception(
    listening: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, looks = typer.Typer(), []

    def follow() -> None:
        for _ in range(3):
            looks.append(Collected().readable())
            pause(0)

    app.command()(spread(follow))
    monkeypatch.setattr(sys, "argv", ["program"])
    for _ in range(2):
        looks.clear()
        with pytest.raises(SystemExit) as ended:
            run(app, "program")
        assert (ended.value.code, len(looks)) == (130, 1)
        assert signal.getsignal(signal.SIGINT) is listening


def test_a_command_ends_though_the_exception_is_followed_by_another(
    listening: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, lock = typer.Typer(), threading.RLock()

    def giving_back() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            lock.acquire()
        finally:
            lock.release()

    app.command()(spread(giving_back))
    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        run(app, "program")
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


@pytest.mark.usefixtures("interruptible")
def test_the_extender_ends_though_python_drops_the_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual: Callable[..., Any] = extender.file_service  # type: ignore[attr-defined]

    def dropping(*words: Any) -> Any:
        Collected().readable()
        return usual(*words)

    monkeypatch.setattr(extender, "file_service", dropping)
    done = asked(
        main, "extender", "--cluster", CLUSTER, "--port", 0, "--admin-port", 0, "--metrics-port", 0
    )
    assert done.returncode == 130


@pytest.mark.usefixtures("interruptible")
def test_a_program_may_ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_at_once()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
