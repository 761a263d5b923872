"""What it costs to follow a large cluster: from the start to ready, memory, and a burst of reports.

The extender runs as its command, one replica without TLS, over a stand-in for the API server
(:mod:`.standin`). It is ready when ``/readyz`` says so; the time counts from the start of the
process, its imports included. Then filter is asked about every node, one request after the other:
first while nothing happens, then while nodes, drawn at random, publish so many changed reports.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import yaml
from rich.table import Table

from benchmarks.figures.schema import Machine
from benchmarks.figures.speed import Following, FollowingParameters, FollowingRow
from benchmarks.speed.latency import percentile
from benchmarks.speed.processes import cpu_seconds, memory
from benchmarks.speed.standin import name_of

WITHIN = 600.0
"""Seconds in which the extender has to be ready."""
ASKED = 300
"""Questions while nothing happens."""


def measure(
    nodes: int, pods: int, reports: int, seconds: float, tell: Callable[[str], None]
) -> Following:
    """The figures. ``tell`` hears what is going on."""
    with tempfile.TemporaryDirectory() as folder, _standin(nodes, pods, tell) as port:
        config = Path(folder) / "kubeconfig"
        config.write_text(yaml.safe_dump(_kubeconfig(port)))
        tell("the extender starts")
        began = time.perf_counter()
        process = _Extender(config)
        try:
            process.until_ready()
            ready, cpu = time.perf_counter() - began, cpu_seconds(process.pid)
            held = memory(process.pid)
            body = _body(nodes)
            for _ in range(20):
                process.filter(body)
            tell("filter is asked")
            quiet = [process.filter(body) for _ in range(ASKED)]
            tell("filter is asked during a burst of reports")
            before = cpu_seconds(process.pid)
            burst = _Burst(port, reports, seconds)
            busy = []
            while not burst.over():
                busy.append(process.filter(body))
            spent = cpu_seconds(process.pid) - before
            rows = tuple(
                FollowingRow(
                    state=state,
                    requests=len(times),
                    p50_ms=percentile(times, 50),
                    p99_ms=percentile(times, 99),
                )
                for state, times in (("quiet", quiet), ("burst", busy))
            )
            return Following(
                parameters=FollowingParameters(
                    nodes=nodes, pods=pods, reports=reports, seconds=seconds
                ),
                machine=Machine(cpus=os.cpu_count(), python=platform.python_version()),
                ready_s=ready,
                ready_cpu_s=cpu,
                ready_mib=held.now,
                peak_mib=memory(process.pid).peak,
                burst_cpu_s=spent,
                rows=rows,
            )
        finally:
            process.stop()


def table(figures: Following) -> Table:
    """The figures for a terminal."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in ("what", "figure"):
        found.add_column(column, justify="left" if column == "what" else "right")
    given = figures.parameters
    found.add_row(
        f"ready with {given.nodes:,} nodes, {given.pods:,} pods", f"{figures.ready_s:.1f} s"
    )
    found.add_row("CPU until then", f"{figures.ready_cpu_s:.1f} s")
    found.add_row("memory then", f"{figures.ready_mib:.0f} MiB")
    found.add_row("most memory ever", f"{figures.peak_mib:.0f} MiB")
    for row in figures.rows:
        words = (
            f"{given.reports:,} reports in {given.seconds:g} s" if row.state == "burst" else "quiet"
        )
        found.add_row(f"filter, {words}: p50", f"{row.p50_ms:.1f} ms")
        found.add_row(f"filter, {words}: p99", f"{row.p99_ms:.1f} ms")
    return found


class _Extender:
    """The extender's process, as its command starts it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._port, self._admin = _two_free_ports()
        command = [
            *(sys.executable, "-m", "scheduler_extender", "extender"),
            *(f"--kubeconfig={kubeconfig}", f"--port={self._port}", f"--admin-port={self._admin}"),
        ]
        self._child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.pid = self._child.pid
        self._verbs = http.client.HTTPConnection("127.0.0.1", self._port)

    def until_ready(self) -> None:
        """Wait for ``/readyz``."""
        deadline = time.monotonic() + WITHIN
        while time.monotonic() < deadline and self._child.poll() is None:
            with (
                suppress(OSError),
                closing(http.client.HTTPConnection("127.0.0.1", self._admin, timeout=5)) as asking,
            ):
                asking.request("GET", "/readyz")
                if asking.getresponse().status == 200:
                    return
            time.sleep(0.02)
        raise TimeoutError("the extender is not ready")

    def filter(self, body: bytes) -> float:
        """Ask filter; milliseconds."""
        began = time.perf_counter()
        self._verbs.request("POST", "/scheduler/filter", body)
        answer = self._verbs.getresponse()
        found = json.loads(answer.read()) if answer.status != 200 else answer.read()
        spent = 1000 * (time.perf_counter() - began)
        assert answer.status == 200, found
        return spent

    def stop(self) -> None:
        """End the process."""
        self._verbs.close()
        self._child.terminate()
        self._child.wait(30)


class _Burst:
    """A burst of reports, which the stand-in makes."""

    def __init__(self, port: int, reports: int, seconds: float) -> None:
        self._path = f"/burst?reports={reports}&seconds={seconds}"
        self._api = http.client.HTTPConnection("127.0.0.1", port)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def over(self) -> bool:
        """Whether every report is out."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        with closing(self._api):
            self._api.request("POST", self._path)
            self._api.getresponse().read()


@contextmanager
def _standin(nodes: int, pods: int, tell: Callable[[str], None]) -> Iterator[int]:
    """The stand-in for the API server as a process of its own; the port."""
    tell("the cluster is made")
    command = [sys.executable, "-m", "benchmarks.speed.standin", str(nodes), str(pods)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = child.stdout.readline()
        if not port:
            raise RuntimeError(f"the stand-in for the API server ended with {child.wait()}")
        yield int(port)
        child.stdout.close()
    finally:
        child.terminate()
        child.wait(30)


def _two_free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for found in (one, other):
            found.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "standin",
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "nobody"}}],
        "clusters": [{"name": "standin", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
    }


def _body(nodes: int) -> bytes:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    meta = {"name": "b", "namespace": "d", "uid": "b"}
    pod = {
        "metadata": {**meta, "annotations": {"gpu-topology.io/link": "nvlink"}},
        "spec": {"containers": [container]},
    }
    names = [name_of(i) for i in range(nodes)]
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
