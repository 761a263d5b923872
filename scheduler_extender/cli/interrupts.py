"""Ends a command on Ctrl-C with exit code 130 and without a traceback, at any time.

While the program starts or ends, there is nothing to clean up, so the process ends at once. While a
command runs, Ctrl-C raises KeyboardInterrupt, so that the command can release its resources. During
an import this exception would be printed or lost: importlib drops it in a callback for its locks,
and some packages catch it. So during an import the exception is raised shortly after the import.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CODE = 130
AGAIN = 0.02  # seconds until the next check whether the import is over
IMPORTING = "<frozen importlib"  # the prefix of the names of the import system's files

_pressed: list[int] = []  # an entry for each Ctrl-C during the running command


def end_at_once() -> None:
    """Make Ctrl-C end the process at once, from now on.

    If the parent process made this process ignore Ctrl-C, as a shell does for a background job,
    Ctrl-C stays ignored.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt inside the block, and record it for :func:`pressed`.

    Any other exception after Ctrl-C counts as its consequence, and KeyboardInterrupt is raised in
    its place. For example, logging may release a lock that it did not get.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not _end:
        yield
        return
    alarm, dropped = signal.signal(signal.SIGALRM, press), sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else dropped(told)
    signal.signal(signal.SIGINT, press)
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
    """Check whether Ctrl-C was pressed while the command ran.

    Python drops the exception if it comes while an object is being finalized, such as a connection
    (``iobase_finalize`` in CPython's Modules/_io/iobase.c), and the program goes on. Python's
    message about that is suppressed.
    """
    return bool(_pressed)


def pause(seconds: float) -> None:
    """Sleep, and raise KeyboardInterrupt if Ctrl-C has been pressed."""
    if not _pressed:
        time.sleep(seconds)
    if _pressed:
        raise KeyboardInterrupt


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(CODE)


def press(number: int, frame: FrameType | None) -> None:
    """Handle a signal as Ctrl-C: raise KeyboardInterrupt, during an import shortly after it."""
    _pressed.append(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
