"""The cost of following a large cluster: time until ready, memory, and a burst of reports.

The extender runs as its command, one replica without TLS, over a stand-in for the API server
(:mod:`.standin`). It is ready when ``/readyz`` says so. The time counts from the start of the
process and includes its imports. Then filter requests for all nodes follow, one after the other,
first while nothing happens, then while nodes drawn at random publish changed reports.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from benchmarks.output import preamble, table_of
from benchmarks.speed.latency import filter_body, percentiles
from benchmarks.speed.processes import (
    HOST,
    Client,
    extender,
    free_port,
    memory,
    node_name,
    program,
    told,
)

ASKED = 300  # requests while nothing happens


def measure(
    nodes: int, pods: int, reports: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the figures. ``tell`` is called with each step."""
    tell("creating the cluster")
    standin = ("benchmarks.speed.standin", str(nodes), str(pods))
    with program(*standin, speaks=True) as api, tempfile.TemporaryDirectory() as folder:
        port, serving = int(told(api)[0]), free_port()
        config = Path(folder) / "kubeconfig"
        config.write_text(yaml.safe_dump(_kubeconfig(port)))
        tell("starting the extender")
        began = time.perf_counter()
        with extender(config, serving) as pid, closing(Client(serving)) as client:
            ready, held = time.perf_counter() - began, memory(pid)
            body = filter_body([node_name(i) for i in range(nodes)])

            def ask() -> float:
                return client.ask("/scheduler/filter", body)[1]

            for _ in range(20):
                ask()
            tell("measuring filter")
            times = {"quiet": [ask() for _ in range(ASKED)], "burst": []}
            tell("measuring filter during a burst of reports")
            burst = threading.Thread(target=_burst, args=(port, reports, seconds), daemon=True)
            burst.start()
            while burst.is_alive():
                times["burst"].append(ask())
            peak = memory(pid, peak=True)
    return {
        **preamble("following", nodes=nodes, pods=pods, reports=reports, seconds=seconds),
        "ready_s": ready,  # from the start of the process
        "ready_mib": held,  # its resident memory when it is ready
        "peak_mib": peak,  # its highest resident memory
        "rows": [_row(state, found) for state, found in times.items()],
    }


def _row(state: str, times: list[float]) -> dict[str, Any]:
    p50, p99 = percentiles(times)
    return {"state": state, "requests": len(times), "p50_ms": p50, "p99_ms": p99}


def table(figures: dict[str, Any]) -> Table:
    """Return the figures as a table for a terminal."""
    found = table_of(("what",), ("figure",))
    found.add_row("time until ready", f"{figures['ready_s']:.1f} s")
    found.add_row("memory when ready", f"{figures['ready_mib']:.0f} MiB")
    found.add_row("peak memory", f"{figures['peak_mib']:.0f} MiB")
    for row in figures["rows"]:
        shown = f"{row['p50_ms']:.1f}, {row['p99_ms']:.1f} ms"
        found.add_row(f"filter, {row['state']}: p50, p99", shown)
    return found


def _burst(port: int, reports: int, seconds: float) -> None:
    """Let the stand-in publish reports. It answers after the last one."""
    with closing(Client(port)) as api:
        api.ask(f"/burst?reports={reports}&seconds={seconds}", b"")


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "standin",
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "reader"}}],
        "clusters": [{"name": "standin", "cluster": {"server": f"http://{HOST}:{port}"}}],
        "users": [{"name": "reader", "user": {}}],
    }
