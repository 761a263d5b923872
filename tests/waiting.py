"""Waiting for something to happen, with a deadline that a slow machine does not reach.

CI runs on machines that are now and then ten times slower than ours. So a test waits for a
condition, not for a time, and gives up only after :data:`PATIENCE`. What must *not* happen while
the test runs (a time limit of the product that the test is not about, an answer that the server
holds back) gets :data:`FOREVER`, which is longer: a test that passes only because that time was up
fails at its deadline instead.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE = 120.0  # seconds after which a test says that something does not happen: it hangs
FOREVER = 600.0  # seconds for what is not to end by itself during a test
POLL_SECONDS = 0.005  # seconds between two looks at a condition


def eventually(
    happens: Callable[[], object],
    what: str = "",
    *,
    within: float = PATIENCE,
    every: float = POLL_SECONDS,
    detail: Callable[[], str] = str,
) -> None:
    """Wait until ``happens`` returns something true; look at once, then each ``every`` seconds.

    Raises :class:`AssertionError` after ``within`` seconds. It says ``what`` did not happen, or
    else where the condition stands in the source, and then what ``explain`` returns.
    """
    deadline = time.monotonic() + within
    while not happens():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within:g} s: {what or _place(happens)}\n{detail()}")
        time.sleep(every)


def _place(happens: Callable[[], object]) -> str:
    code = getattr(happens, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(happens)


def everything(client: socket.socket) -> bytes:
    """What comes until the other side closes the connection, or cuts it off."""
    found = b""
    with suppress(ConnectionResetError):
        while data := client.recv(65536):
            found += data
    return found
