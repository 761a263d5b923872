"""The processes that are measured: their start, requests to them over HTTP, and their memory.

Memory is as Linux counts it in ``/proc``.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler_extender.state.cluster.cache import Cache

HOST = "127.0.0.1"
WITHIN = 600.0  # seconds after which a process counts as hanging
_MARK = "told "


class SourceTreeMissingError(Exception):
    """The error that the measured programs cannot be built here. The message is one line."""


@contextmanager
def program(*words: str, speaks: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module with its arguments in its own process until the block ends.

    With ``speaks`` it prints lines for :func:`told`. Otherwise its output is dropped.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE if speaks else subprocess.DEVNULL,
        stderr=None if speaks else subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with child:  # closes its pipes and waits for it
        try:
            yield child
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(60)
            child.kill()


@contextmanager
def extender(kubeconfig: Path, port: int) -> Iterator[int]:
    """Start the extender by its command, and give its process id once it is ready."""
    flags = (f"--kubeconfig={kubeconfig}", f"--port={port}", "--admin-port=0", "--metrics-port=0")
    with program("scheduler_extender", "extender", *flags) as child:
        until(lambda: status_of(port, "/readyz") == 200 or child.poll() is not None)
        yield child.pid


def node_name(node: int) -> str:
    """Return the name of the node with this number."""
    return f"gpu-node-{node:05}.example"


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def serve(cluster: Cache) -> None:
    """Serve a cluster in this process until it is ended.

    It prints the ports for kube-scheduler and for people (:func:`tell`).
    """
    from scheduler_extender.http.servers import Addresses
    from scheduler_extender.serving import in_memory, servers

    serving = servers(in_memory(cluster), Addresses())
    serving.run(lambda: tell(*serving.ports[:2]))


def tell(*numbers: float) -> None:
    """Print numbers for the process that has started this one."""
    print(_MARK, *numbers, flush=True)


def told(child: subprocess.Popen[str]) -> list[float]:
    """Return the next numbers that a process prints by :func:`tell`; skip the lines of its log."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(_MARK):
            return [float(word) for word in line.removeprefix(_MARK).split()]
    raise RuntimeError(f"{child.args!r} exited with {child.wait()}")


class Client:
    """A client of a service on this machine, with one request at a time over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=WITHIN)

    def ask(self, path: str, body: bytes | str | None = None) -> tuple[bytes, float]:
        """Send a POST with the body, or a GET without one.

        Return the answer, and the milliseconds until its end. A status other than 200 and 204 is an
        :class:`AssertionError`.
        """
        started = time.perf_counter()
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        found = answer.read()
        ms = 1000 * (time.perf_counter() - started)
        assert answer.status in (200, 204), (path, answer.status, found[:200])
        return found, ms

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def status_of(port: int, path: str) -> int | None:
    """Return the status of a GET, or None while no process listens."""
    with suppress(OSError), closing(http.client.HTTPConnection(HOST, port, timeout=5)) as asking:
        asking.request("GET", path)
        return asking.getresponse().status
    return None


def until(happens: Callable[[], bool]) -> None:
    """Wait for a condition. Raises :class:`TimeoutError`."""
    deadline = time.monotonic() + WITHIN
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the measured process is not ready after {WITHIN:g} s")
        time.sleep(0.02)


@contextmanager
def waits(ask: Callable[[], object], every: float) -> Iterator[list[float]]:
    """Call ``ask`` every ``every`` seconds inside the block, and give the seconds of each call."""
    over, waited = threading.Event(), [0.0]

    def go_on() -> None:
        while not over.wait(every):
            started = time.perf_counter()
            ask()
            waited.append(time.perf_counter() - started)

    asking = threading.Thread(target=go_on, daemon=True)
    asking.start()
    try:
        yield waited
    finally:
        over.set()
        asking.join()


def memory(pid: int, *, peak: bool = False) -> float:
    """Return the resident memory of a process in MiB, now or with ``peak`` at its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return kib["VmHWM:" if peak else "VmRSS:"] / 1024
