"""What it costs to follow a large cluster: from the start to ready, memory, and a burst of reports.

The extender runs as its command, one replica without TLS, over a stand-in for the API server
(:mod:`.standin`). It is ready when ``/readyz`` says so; the time counts from the start of the
process, its imports included. Then filter is asked about every node, one request after the other:
first while nothing happens, then while nodes, drawn at random, publish so many changed reports.
"""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from benchmarks.figures.schema import preamble
from benchmarks.output import table_of
from benchmarks.speed.latency import filter_body, percentiles
from benchmarks.speed.processes import (
    HOST,
    Client,
    cpu_seconds,
    memory,
    program,
    status_of,
    told,
    until,
)
from benchmarks.speed.standin import name_of

ASKED = 300  # questions while nothing happens


def measure(
    nodes: int, pods: int, reports: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The figures. ``tell`` hears what is going on."""
    tell("the cluster is made")
    standin = ("benchmarks.speed.standin", str(nodes), str(pods))
    with program(*standin, speaks=True) as api, tempfile.TemporaryDirectory() as folder:
        port = int(told(api)[0])
        config = Path(folder) / "kubeconfig"
        config.write_text(yaml.safe_dump(_kubeconfig(port)))
        tell("the extender starts")
        began = time.perf_counter()
        with _extender(config) as (pid, extender):
            ready, cpu = time.perf_counter() - began, cpu_seconds(pid)
            held = memory(pid)
            body = filter_body([name_of(i) for i in range(nodes)])

            def ask() -> float:
                return extender.ask("/scheduler/filter", body).ms

            for _ in range(20):
                ask()
            tell("filter is asked")
            times = {"quiet": [ask() for _ in range(ASKED)], "burst": []}
            tell("filter is asked during a burst of reports")
            before = cpu_seconds(pid)
            burst = threading.Thread(target=_burst, args=(port, reports, seconds), daemon=True)
            burst.start()
            while burst.is_alive():
                times["burst"].append(ask())
            spent, peak = cpu_seconds(pid) - before, memory(pid, peak=True)
    return {
        **preamble("following", nodes=nodes, pods=pods, reports=reports, seconds=seconds),
        "ready_s": ready,  # from the start of the process
        "ready_cpu_s": cpu,  # what it had used by then
        "ready_mib": held,  # its resident memory then
        "peak_mib": peak,  # the most that it ever was
        "burst_cpu_s": spent,
        "rows": [_row(state, found) for state, found in times.items()],
    }


def _row(state: str, times: list[float]) -> dict[str, Any]:
    p50, p99 = percentiles(times)
    return {"state": state, "requests": len(times), "p50_ms": p50, "p99_ms": p99}


def table(figures: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    given = figures["parameters"]
    found = table_of(("what",), ("figure",))
    found.add_row(
        f"ready with {given['nodes']:,} nodes, {given['pods']:,} pods",
        f"{figures['ready_s']:.1f} s",
    )
    found.add_row("CPU until then", f"{figures['ready_cpu_s']:.1f} s")
    found.add_row("memory then", f"{figures['ready_mib']:.0f} MiB")
    found.add_row("most memory ever", f"{figures['peak_mib']:.0f} MiB")
    burst = f"{given['reports']:,} reports in {given['seconds']:g} s"
    for row in figures["rows"]:
        words = burst if row["state"] == "burst" else row["state"]
        found.add_row(f"filter, {words}: p50", f"{row['p50_ms']:.1f} ms")
        found.add_row(f"filter, {words}: p99", f"{row['p99_ms']:.1f} ms")
    return found


def _burst(port: int, reports: int, seconds: float) -> None:
    """Let the stand-in publish reports; it answers when all are out."""
    with closing(Client(port)) as api:
        api.ask(f"/burst?reports={reports}&seconds={seconds}", b"")


@contextmanager
def _extender(kubeconfig: Path) -> Iterator[tuple[int, Client]]:
    """The extender's process as its command starts it, once it is ready, and who asks it."""
    port = _free_port()
    flags = (f"--kubeconfig={kubeconfig}", f"--port={port}", "--admin-port=0", "--metrics-port=0")
    with program("scheduler_extender", "extender", *flags) as child:
        until(lambda: status_of(port, "/readyz") == 200 or child.poll() is not None)
        with closing(Client(port)) as client:
            yield child.pid, client


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "standin",
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "nobody"}}],
        "clusters": [{"name": "standin", "cluster": {"server": f"http://{HOST}:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
