"""How long kube-scheduler waits for us, as a ratio to waiting for nothing.

The extender and a *do-nothing* service run as two processes. The do-nothing service is the same
FastAPI app shape on the same server: it decodes the same body with the same decoder and encodes an
answer of the same size (half of the names passed, half failed; a score for each), without thinking.
One client sends to both in turn, so that whatever else the
machine does hits both alike; the ratio to the do-nothing service is the figure.

States of the nodes: four machines, each node with a random set of GPUs held (seeded), so some 200
distinct states at 5,000 nodes. The pod asks for an NVLinked pair. "warm" is a request asked before;
"changed" has one node's report change before each request; "cold" is a request never asked before
on states never evaluated for it.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.figures.schema import preamble
from benchmarks.output import shown
from benchmarks.speed.processes import Client, program, tell, told
from scheduler_extender import terminal
from topology.codec import encode_report
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-4")
STATES_PER_MACHINE = 50


# Verbs and the states that they are asked in.
ASKED = (
    ("filter", "warm"),
    ("filter", "changed"),
    ("filter", "cold"),
    ("prioritize", "warm"),
    ("prioritize", "changed"),
)
SERVICES = ("extender", "nothing")  # each is a process of its own


def measure(
    nodes: tuple[int, ...], requests: int, seed: int, begin: Callable[[str], None]
) -> dict[str, Any]:
    """The figures at each size of a cluster, in milliseconds, so many requests per route.

    ``begin`` hears what is measured next.
    """
    rows: list[dict[str, Any]] = []
    for size in nodes:
        with _services(size, seed) as services:
            bench = _Bench(services, [node_name(i) for i in range(size)], requests, seed)
            for verb, state in ASKED:
                begin(f"{verb}, {state}, {size:,} nodes")
                rows.append(bench.run(verb, state))
    states = {"machines": MACHINES, "states": STATES_PER_MACHINE}
    given = preamble("latency", nodes=nodes, requests=requests, seed=seed, **states)
    return {**given, "rows": rows}


def table(figures: Mapping[str, Any]) -> Table:
    """The figures for a terminal."""
    return terminal.table(
        figures["rows"],
        shown("verb", "verb"),
        shown("state", "state"),
        shown("nodes", "nodes", ","),
        shown("p50 ms", "p50_ms", ".2f"),
        shown("p99 ms", "p99_ms", ".2f"),
        shown("nothing p50", "nothing_p50_ms", ".2f"),
        shown("nothing p99", "nothing_p99_ms", ".2f"),
        shown("ratio p50", "ratio_p50", ".2f"),
    )


class _Bench:
    """The client of one cluster size."""

    def __init__(
        self, services: Mapping[str, tuple[int, int]], names: list[str], requests: int, seed: int
    ) -> None:
        self._services = {kind: Client(verbs) for kind, (verbs, _) in services.items()}
        self._admin = Client(services["extender"][1])
        self._names = names
        self._count = requests
        self._rng = random.Random(seed)
        self._fresh = 0
        self._sequence = 10

    def run(self, verb: str, state: str) -> dict[str, Any]:
        """One row: the services asked in turn."""
        before: Callable[[], None] = self._change_one if state == "changed" else lambda: None
        # A cold request costs an evaluation per state; a few dozen tell enough.
        count = min(self._count, 50) if state == "cold" else self._count
        spent: dict[str, list[float]] = {kind: [] for kind in SERVICES}
        for i in range(-5, count):
            before()
            body = self._body(fresh=state == "cold")
            for kind, service in self._services.items():
                ms = service.ask(f"/scheduler/{verb}", body).ms
                if i >= 0:
                    spent[kind].append(ms)
        p50, p99 = percentiles(spent["extender"])
        idle50, idle99 = percentiles(spent["nothing"])
        return {
            "verb": verb,
            "state": state,
            "nodes": len(self._names),
            "requests": count,
            "p50_ms": p50,
            "p99_ms": p99,
            "nothing_p50_ms": idle50,
            "nothing_p99_ms": idle99,
            "ratio_p50": p50 / idle50,
        }

    def _body(self, *, fresh: bool) -> bytes:
        self._fresh += fresh
        more = {"min-bandwidth": str(1 + self._fresh / 1000)} if fresh else {}
        return filter_body(self._names, **more)

    def _change_one(self) -> None:
        self._sequence += 1
        i = self._rng.randrange(len(self._names))
        report = encode_report(report_of(i, self._rng, self._sequence))
        self._admin.ask("/v1/reports", json.dumps({"node": self._names[i], "status": report}))


def filter_body(names: list[str], **more: str) -> bytes:
    """What kube-scheduler sends about a pod that asks for an NVLinked pair, and ``more``."""
    annotations = {"link": "nvlink", **more}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    metadata = {
        "name": "bench",
        "namespace": "default",
        "uid": "bench",
        "annotations": {f"gpu-topology.io/{key}": value for key, value in annotations.items()},
    }
    pod = {"metadata": metadata, "spec": {"containers": [container]}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def percentiles(times: list[float]) -> tuple[float, float]:
    """The median, and what 99 of a hundred do not exceed."""
    p50, p99 = np.percentile(times, (50, 99), method="nearest")
    return float(p50), float(p99)


def report_of(node: int, rng: random.Random, sequence: int) -> Report:
    """A node with some GPUs held, one of a fixed number of states of its machine."""
    kind = machine(MACHINES[node % len(MACHINES)])
    topology = kind.topology(node_name(node))
    state = random.Random(rng.randrange(STATES_PER_MACHINE))
    held = state.sample(range(len(topology.gpus)), state.randrange(len(topology.gpus)))
    ids = tuple(DeviceId(topology.gpus[p].uuid) for p in held)
    allocation = Allocation(
        PodUid(f"pod-{node}"), "bench", f"pod-{node}", "main", "nvidia.com/gpu", ids
    )
    return Report("boot", sequence, allocations=(allocation,) if ids else ())


def node_name(node: int) -> str:
    """The name of the node with this number."""
    return f"gpu-node-{node:05}.example"


@contextmanager
def _services(size: int, seed: int) -> Iterator[dict[str, tuple[int, int]]]:
    """The ports of each service: its verbs', and its administration's."""
    with ExitStack() as stack:
        ports = {}
        for kind in SERVICES:
            words = ("benchmarks.speed.latency", kind, str(size), str(seed))
            verbs, admin = told(stack.enter_context(program(*words, speaks=True)))
            ports[kind] = int(verbs), int(admin)
        yield ports


def _serve(kind: str, size: int, seed: int) -> None:
    """The body of a child: serve, and print the ports once it answers."""
    from benchmarks.speed.nothing import create_nothing_app
    from scheduler_extender.http.admin import create_admin_app
    from scheduler_extender.http.app import create_app
    from scheduler_extender.http.metricsport import create_metrics_app
    from scheduler_extender.http.servers import Servers, listen
    from scheduler_extender.serving import in_memory
    from scheduler_extender.state.answers.decision import Settings
    from scheduler_extender.state.cluster.cluster import Cluster

    cluster = Cluster(time.monotonic, Settings(stale_after=None, all_pods_known=False))
    if kind == "extender":
        rng = random.Random(seed)
        for i in range(size):
            topology = machine(MACHINES[i % len(MACHINES)]).topology(node_name(i))
            cluster.feed.put_record(topology, report_of(i, rng, 1))
    service, _ = in_memory(cluster)
    metrics = service.metrics
    main = create_app(service) if kind == "extender" else create_nothing_app(metrics)
    one, two, three = (listen("127.0.0.1", 0) for _ in range(3))
    admin = create_admin_app(service), [two]
    serving = Servers((main, one), admin, (create_metrics_app(service), three))
    serving.run(lambda: tell(*serving.ports[:2]))


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
