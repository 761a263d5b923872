"""Programs that a test starts beside itself: none outlives its test."""

import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import FOREVER

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Ports below those that Linux gives to whoever asks for any (32768 and up), those of this process
# of the tests.
PORTS = range(20_000 + _WORKER, 30_000, _WORKERS)
_given: set[int] = set()
TRIES = 3  # how often a command is run that needs the network, which may fail for a moment
AGAIN = 10.0  # seconds between two tries


@contextmanager
def started(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A program whose streams are text. At the end it is killed if it still runs.

    It is killed after :data:`~tests.waiting.FOREVER`, too, so that a test that reads what it prints
    gets an end of file from a program that hangs.
    """
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True
    ) as child:
        watchdog = threading.Timer(FOREVER, child.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield child
        finally:
            watchdog.cancel()
            child.kill()


def free_port() -> int:
    """A free port of loopback, for a program that cannot choose one itself.

    It is never given twice, and the system gives it to no program that asks for any free port.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def fetching(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that may fetch something; where it fails, up to :data:`TRIES` times.

    Caches are empty in CI, and one answer of a proxy that does not come would cost the whole run.
    """
    for left in reversed(range(TRIES)):
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0 or not left:
            break
        time.sleep(AGAIN)
    return done
