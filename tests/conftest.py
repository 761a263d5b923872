"""What holds for every test: it may be slow, and it leaves no thread behind."""

import gc
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.waiting import eventually

# Where this is set, property tests try other examples in each run, and twice as many.
EXPLORES = "GPU_TOPOLOGY_EXPLORE"

# Else they try the same ones: what CI says of a change does not hang on what it drew. Other
# examples are what `make fuzz` is for.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=100 if EXPLORES in os.environ else 50,
    derandomize=EXPLORES not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

# Tables are as wide here as in a pipe, whatever the terminal is that the tests were started from.
os.environ.pop("COLUMNS", None)

gc.disable()  # until the tests are collected: nearly all that is made there stays


def pytest_collection_finish() -> None:
    """Spare the garbage collector the 500,000 objects of pytest and of every imported module."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fail where a thread that the test started does not end soon after it."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        new = set(threading.enumerate()) - before
        # A dummy stands for a thread that Python did not start and whose end it may not notice.
        return sorted(t.name for t in new if not isinstance(t, threading._DummyThread))

    eventually(lambda: not left(), "the test's threads have ended", detail=lambda: str(left()))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs that are started hear SIGINT and SIGHUP, though whoever started the tests let them
    be ignored: a shell does so for what runs in the background, and nohup."""
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangups = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupts)
    signal.signal(signal.SIGHUP, hangups)
