"""Commands that run inside the test's process, as a user types them.

To start Python and load everything costs a second of CPU; the tests ask some hundred commands. A
few tests of each program start it as a process of its own (:mod:`tests.programs`).
"""

import io
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from unittest.mock import patch

import structlog

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it printed; no stream is a terminal."""

    returncode: int
    stdout: str
    stderr: str


def asked(main: Callable[[], object], *words: object, given: str | bytes = "") -> Done:
    """Run ``main`` with these words in the project's folder; it reads ``given`` from its stdin."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = printing(main, words, stdout, stderr, given)
    return Done(code, stdout.getvalue(), stderr.getvalue())


def printing(
    main: Callable[[], object],
    words: Sequence[object],
    stdout: TextIO,
    stderr: TextIO,
    given: str | bytes = "",
) -> int:
    """The same with streams of the caller's; returns the exit code."""
    text = given.encode() if isinstance(given, str) else given
    stdin = io.TextIOWrapper(io.BytesIO(text), "utf-8")
    argv = ["program", *map(str, words)]
    logging, ctrl_c = structlog.get_config(), signal.getsignal(signal.SIGINT)
    with (
        chdir(ROOT),
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", stdin),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            code: object = main() or 0
        except SystemExit as end:
            code = end.code
        finally:
            structlog.configure(**logging)
            signal.signal(signal.SIGINT, ctrl_c)
    return code if isinstance(code, int) else 0


def refused(done: Done, *message: str) -> None:
    """The command ended with exit code 2 and one line, an error that has these words in it."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for words in message:
        assert words in done.stderr
