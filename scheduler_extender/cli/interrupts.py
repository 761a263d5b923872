"""Ctrl-C ends a command with exit code 130 and without a traceback, whenever it is pressed.

While the program starts, and again while it ends, there is nothing to clean up: the process ends at
once. While a command runs, KeyboardInterrupt is raised, so that the command gives back what it
holds. In an import that exception would be shown or dropped (importlib drops it in a callback for
its locks, and some packages catch it); there it is raised a moment after the import.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CODE = 130
AGAIN = 0.02  # seconds until it is looked again whether the import is over
IMPORTING = "<frozen importlib"  # how the names of the import system's files begin

_pressed: list[int] = []  # an entry for each Ctrl-C that the running command has got


def end_at_once() -> None:
    """From now on Ctrl-C ends the process at once. Whoever starts programs may let them ignore it,
    as shells do in the background; then it stays ignored."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Inside it Ctrl-C raises KeyboardInterrupt, and is remembered.

    An exception that comes after it is its consequence: logging, for one, gives back a lock that it
    did not get.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not _end:
        yield
        return
    alarm, dropped = signal.signal(signal.SIGALRM, _raise), sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else dropped(told)
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    except Exception:
        if _pressed:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = dropped
        _pressed.clear()


def pressed() -> bool:
    """Whether Ctrl-C was pressed while the command ran.

    Python drops the exception where that comes while an object is being collected, such as a
    connection (``iobase_finalize`` in CPython's Modules/_io/iobase.c), and goes on. What it would
    say about that is not shown.
    """
    return bool(_pressed)


def pause(seconds: float) -> None:
    """Sleep, and end the command where Ctrl-C has been pressed."""
    if not _pressed:
        time.sleep(seconds)
    if _pressed:
        raise KeyboardInterrupt


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> None:
    _pressed.append(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
