"""The worst legal pods on the worst legal nodes: how long a verb takes, and whom it holds up.

A hundred nodes in a hundred states: 16 GPUs under ``any`` and ``best-effort``, 24 to 64 sparsely
linked GPUs, GPUs shared 4 and 32 times, eight NUMA nodes under Topology Manager policies, and pods
that run, end and wait on each. For every case the service runs as a process of its own with nothing
remembered; filter, prioritize, bind and preempt are asked over HTTP, one after the other, while a
second client asks ``/healthz`` without a pause. A heartbeat in the service's event loop notes the
longest time for which it was held.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.figures.speed import Worst, WorstRow, WorstTargets
from benchmarks.speed.worst_nodes import NODES, name_of, populate
from benchmarks.speed.worst_pods import WORST, WorstPod

TARGETS = WorstTargets(verb_ms=250, loop_ms=20, healthz_ms=10)
"""What is aimed at."""
VERBS = ("filter", "prioritize", "preempt", "bind")


@dataclass(frozen=True, slots=True)
class _Answer:
    """How many milliseconds a verb took, and what it said."""

    ms: float
    body: bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    """The answers about one pod, and the slowest ``/healthz`` meanwhile."""

    filter: _Answer
    passed: int
    prioritize: _Answer
    preempt: _Answer
    bind: _Answer
    healthz: _Longest


@dataclass(slots=True)
class _Longest:
    """The longest of some moments, in seconds, and the most CPU that the service used in one."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, seconds: float, cpu_seconds: float) -> None:
        """One moment more."""
        self.seconds = max(self.seconds, seconds)
        self.cpu_seconds = max(self.cpu_seconds, cpu_seconds)


def measure(seed: int, begin: Callable[[str], None] = lambda words: None) -> Worst:
    """The figures of every case, in milliseconds. ``begin`` hears what is measured next."""
    rows = []
    for pod in WORST:
        begin(pod.case)
        with _service(seed) as (port, child):
            asked = _ask(port, child.pid, pod)
            assert child.stdin is not None
            child.stdin.close()  # it answers with the longest time that its loop was held
            held = _Longest(_told(child), _told(child))
        rows.append(_row(pod.case, asked, held))
    return Worst(nodes=NODES, seed=seed, targets=TARGETS, rows=tuple(rows))


def _row(case: str, asked: _Asked, held: _Longest) -> WorstRow:
    return WorstRow(
        case=case,
        filter_ms=asked.filter.ms,
        filter_bytes=len(asked.filter.body),
        passed=asked.passed,
        prioritize_ms=asked.prioritize.ms,
        prioritize_bytes=len(asked.prioritize.body),
        preempt_ms=asked.preempt.ms,
        preempt_bytes=len(asked.preempt.body),
        bind_ms=asked.bind.ms,
        bind_bytes=len(asked.bind.body),
        healthz_ms=1000 * asked.healthz.seconds,
        healthz_cpu_ms=1000 * asked.healthz.cpu_seconds,
        loop_ms=1000 * held.seconds,
        loop_cpu_ms=1000 * held.cpu_seconds,
    )


def _ask(port: int, process: int, pod: WorstPod) -> _Asked:
    """Ask every verb once, while a second client asks ``/healthz`` without a pause."""
    stop, slowest = threading.Event(), _Longest()
    poller = threading.Thread(target=_poll, args=(port, process, stop, slowest))
    poller.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        manifest, names = pod.manifest(), [name_of(i) for i in range(NODES)]
        offered = json.dumps({"Pod": manifest, "Nodes": None, "NodeNames": names}).encode()
        filtering = _verb(connection, "filter", offered)
        passed = json.loads(filtering.body)["NodeNames"] or []
        prioritizing = _verb(connection, "prioritize", offered)
        preempting = _verb(connection, "preempt", _victims(manifest, names))
        binding = _verb(connection, "bind", _binding(manifest, (passed or names)[0]))
        connection.close()
    finally:
        stop.set()
        poller.join()
    return _Asked(filtering, len(passed), prioritizing, preempting, binding, slowest)


def _verb(connection: http.client.HTTPConnection, verb: str, body: bytes) -> _Answer:
    started = time.perf_counter()
    connection.request("POST", f"/scheduler/{verb}", body)
    answer = connection.getresponse()
    found = answer.read()
    took = 1000 * (time.perf_counter() - started)
    assert answer.status == 200, (verb, answer.status, found[:200])
    return _Answer(took, found)


def _victims(pod: dict[str, Any], names: list[str]) -> bytes:
    """What kube-scheduler sends to preempt: one running pod to evict on every node."""
    victims = {n: {"Pods": [{"UID": f"{n}-running-0"}], "NumPDBViolations": 0} for n in names}
    return json.dumps({"Pod": pod, "NodeNameToMetaVictims": victims}).encode()


def _binding(pod: dict[str, Any], node: str) -> bytes:
    metadata = pod["metadata"]
    asked = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }
    return json.dumps(asked).encode()


def _poll(port: int, process: int, stop: threading.Event, slowest: _Longest) -> None:
    clock = _cpu_clock(process)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    while not stop.wait(0.002):
        started, cpu = time.perf_counter(), time.clock_gettime(clock)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        slowest.add(time.perf_counter() - started, time.clock_gettime(clock) - cpu)
    connection.close()


def _cpu_clock(process: int) -> int:
    """The clock of the CPU time of another process, as ``clock_getcpuclockid(3)`` makes it."""
    return (~process << 3) | 2


def table(figures: Worst) -> Table:
    """The figures for a terminal; what misses its target is marked."""
    aimed = figures.targets
    columns = (
        *((verb, aimed.verb_ms) for verb in VERBS),
        ("loop held", aimed.loop_ms),
        ("its CPU", aimed.loop_ms),
        ("healthz", aimed.healthz_ms),
        ("its CPU", aimed.healthz_ms),
    )
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.title = f"{figures.nodes} nodes in as many states, nothing remembered, ms"
    found.add_column("case")
    for name, target in columns:
        found.add_column(f"{name} (<{target})", justify="right")
    for row in figures.rows:
        verbs = (row.filter_ms, row.prioritize_ms, row.preempt_ms, row.bind_ms)
        taken = (*verbs, row.loop_ms, row.loop_cpu_ms, row.healthz_ms, row.healthz_cpu_ms)
        cells = (
            f"{ms:.0f}{' !' if ms > target else ''}"
            for ms, (_, target) in zip(taken, columns, strict=True)
        )
        found.add_row(row.case, *cells)
    return found


# The service, as a process of its own.


@contextmanager
def _service(seed: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "benchmarks.speed.worst", str(seed)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield int(_told(child)), child
    finally:
        child.terminate()
        child.wait(60)


_MARK = "told "


def _told(child: subprocess.Popen[str]) -> float:
    """The next number that the child tells us; its log lines are passed over."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(_MARK):
            return float(line.removeprefix(_MARK))
    raise AssertionError("the service ended")


def _serve(seed: int) -> None:
    """The body of the child: serve until stdin ends, then say how long the loop was held."""
    import asyncio

    from scheduler_extender.http.addresses import Addresses
    from scheduler_extender.serving import in_memory, servers

    service, _ = in_memory(populate(seed))
    serving = servers(service, Addresses())
    held = _Longest()

    async def heartbeat() -> None:
        while True:
            before, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            held.add(time.perf_counter() - before - 0.001, time.process_time() - cpu)

    beating: list[asyncio.Task[None]] = []

    def started() -> None:
        beating.append(asyncio.get_running_loop().create_task(heartbeat()))
        print(f"{_MARK}{serving.ports[0]}", flush=True)

    def until_told() -> None:
        sys.stdin.read()
        print(f"{_MARK}{held.seconds}", flush=True)
        print(f"{_MARK}{held.cpu_seconds}", flush=True)
        serving.stop()

    threading.Thread(target=until_told, daemon=True).start()
    serving.run(started)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
