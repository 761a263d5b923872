"""The processes that are measured: started, asked over HTTP, and what each has used.

What a process has used is as Linux counts it in ``/proc``.
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
WITHIN = 600.0  # seconds; who takes longer hangs
_MARK = "told "


class SourceTreeMissingError(Exception):
    """The programs that are measured cannot be built here; the message is one line."""


@contextmanager
def program(*words: str, speaks: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A Python module with its arguments, as a process of its own until the block ends.

    One that ``speaks`` prints lines for :func:`told`; what others print is dropped.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE if speaks else subprocess.DEVNULL,
        stderr=None if speaks else subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with child:  # which closes its pipes and waits for it
        try:
            yield child
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(60)
            child.kill()


@contextmanager
def extender(kubeconfig: Path, port: int) -> Iterator[int]:
    """The number of the extender's process, as its command starts it, once it is ready."""
    flags = (f"--kubeconfig={kubeconfig}", f"--port={port}", "--admin-port=0", "--metrics-port=0")
    with program("scheduler_extender", "extender", *flags) as child:
        until(lambda: status_of(port, "/readyz") == 200 or child.poll() is not None)
        yield child.pid


def node_name(node: int) -> str:
    """The name of the node with this number."""
    return f"gpu-node-{node:05}.example"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def serve(cluster: Cache) -> None:
    """Serve a cluster in this process until it is ended; tell the ports for kube-scheduler and for
    people."""
    from scheduler_extender.http.servers import Addresses
    from scheduler_extender.serving import in_memory, servers

    service, _ = in_memory(cluster)
    serving = servers(service, Addresses())
    serving.run(lambda: tell(*serving.ports[:2]))


def tell(*numbers: float) -> None:
    """Tell numbers to the process that has started this one."""
    print(_MARK, *numbers, flush=True)


def told(child: subprocess.Popen[str]) -> list[float]:
    """The next numbers that a process tells; the lines of its log are passed over."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(_MARK):
            return [float(word) for word in line.removeprefix(_MARK).split()]
    raise RuntimeError(f"{child.args!r} ended with {child.wait()}")


class Client:
    """Asks a service on this machine, one request after the other over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=WITHIN)

    def ask(self, path: str, body: bytes | str | None = None) -> tuple[bytes, float]:
        """POST the body, or GET where there is none: the answer, and the milliseconds until its
        end. Anything but success is an assertion."""
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
    """The status of a GET; None while nobody listens."""
    with suppress(OSError), closing(http.client.HTTPConnection(HOST, port, timeout=5)) as asking:
        asking.request("GET", path)
        return asking.getresponse().status
    return None


def until(happens: Callable[[], bool]) -> None:
    """Wait for a condition. Raises :class:`TimeoutError`."""
    deadline = time.monotonic() + WITHIN
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"what is measured is not ready after {WITHIN:g} s")
        time.sleep(0.02)


@contextmanager
def waits(ask: Callable[[], object], every: float) -> Iterator[list[float]]:
    """How many seconds each answer takes inside the block, asked again ``every`` seconds."""
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
    """Resident memory of a process in MiB: now, or the most that it ever was."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return kib["VmHWM:" if peak else "VmRSS:"] / 1024
