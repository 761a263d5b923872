"""How long kube-scheduler waits for us, as a ratio to waiting for nothing.

The extender and a *do-nothing* service run as two processes. The do-nothing service is the same
FastAPI app shape on the same server: it decodes the same body with the same decoder and encodes an
answer of the same size (half of the names passed, half failed; a score for each), without thinking.
A third, *lookup*, also looks each name up in a dict and answers by what it finds: the least that
answering by node takes. One client sends to all in turn, so that whatever else the
machine does hits all alike; the ratio to the do-nothing service is the figure.

States of the nodes: four machines, each node with a random set of GPUs held (seeded), so some 200
distinct states at 5,000 nodes. The pod asks for an NVLinked pair. "warm" is a request asked before;
"changed" has one node's report change before each request; "cold" is a request never asked before
on states never evaluated for it.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from benchmarks.figures.schema import Machine
from benchmarks.figures.speed import Latency, LatencyParameters, LatencyRow
from topology.codec import encode_report
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-4")
STATES_PER_MACHINE = 50


ASKED = (
    ("filter", "warm"),
    ("filter", "changed"),
    ("filter", "cold"),
    ("prioritize", "warm"),
    ("prioritize", "changed"),
)
"""Verbs and the states that they are asked in."""


def measure(nodes: tuple[int, ...], requests: int, seed: int) -> Latency:
    """The figures at each size of a cluster, in milliseconds, so many requests per route."""
    rows: list[LatencyRow] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("measuring", total=len(ASKED) * len(nodes))
        for size in nodes:
            with _services(size, seed) as (ports, names):
                bench = _Bench(ports, names, requests, seed)
                for verb, state in ASKED:
                    rows.append(bench.run(verb, state))
                    progress.advance(task)
    return Latency(
        parameters=LatencyParameters(
            nodes=nodes,
            requests=requests,
            seed=seed,
            machines=MACHINES,
            states=STATES_PER_MACHINE,
        ),
        machine=Machine(cpus=os.cpu_count(), python=platform.python_version()),
        rows=tuple(rows),
    )


def table(figures: Latency) -> Table:
    """The figures for a terminal."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in ("verb", "state"):
        found.add_column(column)
    for column in ("nodes", "p50 ms", "p99 ms", "nothing p50", "nothing p99", "lookup p50"):
        found.add_column(column, justify="right")
    for column in ("ratio p50", "lookup ratio"):
        found.add_column(column, justify="right")
    for row in figures.rows:
        found.add_row(
            row.verb,
            row.state,
            f"{row.nodes:,}",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{row.nothing_p50_ms:.2f}",
            f"{row.nothing_p99_ms:.2f}",
            f"{row.lookup_p50_ms:.2f}",
            f"{row.ratio_p50:.2f}",
            f"{row.lookup_p50_ms / row.nothing_p50_ms:.2f}",
        )
    return found


class _Bench:
    """The client of one cluster size."""

    def __init__(
        self, ports: Mapping[str, Ports], names: list[str], requests: int, seed: int
    ) -> None:
        self._services = {
            kind: http.client.HTTPConnection("127.0.0.1", found.scheduler)
            for kind, found in ports.items()
        }
        self._admin = http.client.HTTPConnection("127.0.0.1", ports["extender"].admin)
        self._names = names
        self._count = requests
        self._rng = random.Random(seed)
        self._fresh = 0
        self._sequence = 10

    def run(self, verb: str, state: str) -> LatencyRow:
        """One row: the services asked in turn."""
        before: Callable[[], None] = self._change_one if state == "changed" else lambda: None
        # A cold request costs an evaluation per state; a few dozen tell enough.
        count = min(self._count, 50) if state == "cold" else self._count
        spent: dict[str, list[float]] = {kind: [] for kind in SERVICES}
        path = f"/scheduler/{verb}"
        for i in range(-5, count):
            before()
            body = self._body(fresh=state == "cold")
            for kind, connection in self._services.items():
                seconds = _timed(connection, path, body)
                if i >= 0:
                    spent[kind].append(seconds)
        p50, p99 = percentile(spent["extender"], 50), percentile(spent["extender"], 99)
        idle50, idle99 = percentile(spent["nothing"], 50), percentile(spent["nothing"], 99)
        return LatencyRow(
            verb=verb,
            state=state,
            nodes=len(self._names),
            requests=count,
            p50_ms=1000 * p50,
            p99_ms=1000 * p99,
            nothing_p50_ms=1000 * idle50,
            nothing_p99_ms=1000 * idle99,
            lookup_p50_ms=1000 * percentile(spent["lookup"], 50),
            ratio_p50=p50 / idle50,
        )

    def _body(self, *, fresh: bool) -> bytes:
        annotations = {"gpu-topology.io/link": "nvlink"}
        if fresh:
            self._fresh += 1
            annotations["gpu-topology.io/min-bandwidth"] = str(1 + self._fresh / 1000)
        pod = {
            "metadata": {
                "name": "bench",
                "namespace": "default",
                "uid": "bench",
                "annotations": annotations,
            },
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
            },
        }
        return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": self._names}).encode()

    def _change_one(self) -> None:
        self._sequence += 1
        i = self._rng.randrange(len(self._names))
        report = encode_report(_report(i, self._rng, self._sequence))
        body = json.dumps({"node": self._names[i], "status": report})
        self._admin.request("POST", "/v1/reports", body)
        answer = self._admin.getresponse()
        answer.read()
        assert answer.status == 204


def _timed(connection: http.client.HTTPConnection, path: str, body: bytes) -> float:
    started = time.perf_counter()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    spent = time.perf_counter() - started
    assert answer.status == 200, answer.status
    return spent


def percentile(values: list[float], percent: int) -> float:
    """The value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(len(ordered) * percent / 100))]


def _report(node: int, rng: random.Random, sequence: int) -> Report:
    """A node with some GPUs held, one of a fixed number of states of its machine."""
    kind = machine(MACHINES[node % len(MACHINES)])
    topology = kind.topology(_name(node))
    state = random.Random(rng.randrange(STATES_PER_MACHINE))
    held = state.sample(range(len(topology.gpus)), state.randrange(len(topology.gpus)))
    ids = tuple(DeviceId(topology.gpus[p].uuid) for p in held)
    allocation = Allocation(
        PodUid(f"pod-{node}"), "bench", f"pod-{node}", "main", "nvidia.com/gpu", ids
    )
    return Report("boot", sequence, allocations=(allocation,) if ids else ())


def _name(node: int) -> str:
    return f"gpu-node-{node:05}.example"


# The services, as processes of their own.

SERVICES = ("extender", "nothing", "lookup")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a service listens."""

    scheduler: int
    admin: int


@contextmanager
def _services(size: int, seed: int) -> Iterator[tuple[dict[str, Ports], list[str]]]:
    names = [_name(i) for i in range(size)]
    children: list[subprocess.Popen[str]] = []
    try:
        ports = {}
        for kind in SERVICES:
            command = [sys.executable, "-m", "benchmarks.speed.latency", kind, str(size), str(seed)]
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
            )
            children.append(child)
            assert child.stdout is not None
            words = child.stdout.readline().split()
            ports[kind] = Ports(int(words[0]), int(words[1]))
        yield ports, names
    finally:
        for child in children:
            child.terminate()
            child.wait(10)
            assert child.stdout is not None
            child.stdout.close()


def _serve(kind: str, size: int, seed: int) -> None:
    """The body of a child: serve, and print the ports once it answers."""
    from benchmarks.speed.nothing import create_lookup_app, create_nothing_app
    from scheduler_extender.http.admin import create_admin_app
    from scheduler_extender.http.app import create_app
    from scheduler_extender.http.servers import Servers, listen
    from scheduler_extender.serving import in_memory
    from scheduler_extender.state.answers.decision import Settings
    from scheduler_extender.state.cluster.cluster import Cluster

    cluster = Cluster(time.monotonic, Settings(stale_after=None, all_pods_known=False))
    if kind == "extender":
        rng = random.Random(seed)
        for i in range(size):
            topology = machine(MACHINES[i % len(MACHINES)]).topology(_name(i))
            cluster.put_record(topology, _report(i, rng, 1))
    service, _ = in_memory(cluster)
    metrics = service.metrics
    if kind == "extender":
        main = create_app(service)
    elif kind == "nothing":
        main = create_nothing_app(metrics)
    else:
        main = create_lookup_app(metrics, [_name(i) for i in range(size)])
    sockets = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    serving = Servers(main, create_admin_app(service), sockets, metrics.strangers)
    serving.run(lambda: print(*serving.ports, flush=True))


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
