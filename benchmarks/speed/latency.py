"""The time for which kube-scheduler waits for the extender, as a ratio to a baseline.

The extender and the baseline (:mod:`.nothing`) run as two processes, on the same server code. The
baseline decodes the same body with the same decoder and encodes a fixed answer of the same size
(half of the names passed, half failed; a score for each). One client sends requests to both in
turn, so other load of the machine affects both alike. The figure is the ratio of their medians.

There are four machines, and each node has a seeded random set of GPUs in use, so 5,000 nodes have
some 200 equivalence classes. The pod requests an NVLinked pair. "warm" is a repeated request.
Before each "changed" request the report of one node changes. A "cold" request comes for the first
time, on classes that were never evaluated for it.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.output import preamble, shown
from benchmarks.promises.workloads import app, manifest
from benchmarks.speed.processes import Client, node_name, program, serve, told
from scheduler_extender import terminal
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from topology.codec import encode_report
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine

MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-4")
STATES_PER_MACHINE = 50
# The measured verbs, and the state of the cache for each.
ASKED = (
    ("filter", "warm"),
    ("filter", "changed"),
    ("filter", "cold"),
    ("prioritize", "warm"),
    ("prioritize", "changed"),
)


def measure(
    nodes: tuple[int, ...], requests: int, seed: int, begin: Callable[[str], None]
) -> dict[str, Any]:
    """Return the figures in milliseconds at each size of a cluster, for ``requests`` per row.

    ``begin`` is called with the name of each measurement before it starts.
    """
    rows: list[dict[str, Any]] = []
    for size in nodes:
        with ExitStack() as stack:
            ours = ("benchmarks.speed.latency", str(size), str(seed))
            verbs, people = told(stack.enter_context(program(*ours, speaks=True)))
            idle = ("benchmarks.speed.nothing", "0", "0.5")
            (nothing,) = told(stack.enter_context(program(*idle, speaks=True)))
            bench = _Bench(int(verbs), int(people), int(nothing), size, seed)
            for verb, state in ASKED:
                begin(f"{verb}, {state}, {size:,} nodes")
                rows.append(bench.run(verb, state, requests))
    states = {"machines": MACHINES, "states": STATES_PER_MACHINE}
    given = preamble("latency", nodes=nodes, requests=requests, seed=seed, **states)
    return {**given, "rows": rows}


def table(figures: Mapping[str, Any]) -> Table:
    """Return the figures as a table for a terminal."""
    return terminal.table(
        figures["rows"],
        shown("verb", "verb"),
        shown("cache", "state"),
        shown("nodes", "nodes", ","),
        shown("p50 ms", "p50_ms", ".2f"),
        shown("baseline ms", "nothing_p50_ms", ".2f"),
        shown("ratio", "ratio_p50", ".2f"),
    )


class _Bench:
    """The client of one cluster size."""

    def __init__(self, verbs: int, people: int, nothing: int, size: int, seed: int) -> None:
        self._ours, self._people, self._nothing = map(Client, (verbs, people, nothing))
        self._names = [node_name(i) for i in range(size)]
        self._rng = random.Random(seed)
        self._asked = 10  # numbers requests, so that each can differ

    def run(self, verb: str, state: str, requests: int) -> dict[str, Any]:
        """Measure one row, with requests to both services in turn."""
        # A cold request costs an evaluation for each class; a few dozen of them are enough.
        count = min(requests, 50) if state == "cold" else requests
        ours: list[float] = []
        nothing: list[float] = []
        for _ in range(5 + count):
            self._asked += 1
            if state == "changed":
                i = self._rng.randrange(len(self._names))
                report = encode_report(report_of(i, self._rng, self._asked))
                news = json.dumps({"node": self._names[i], "status": report})
                self._people.ask("/v1/reports", news)
            fresh = {"min-bandwidth": str(1 + self._asked / 1000)} if state == "cold" else {}
            body = filter_body(self._names, **fresh)
            for service, spent in ((self._ours, ours), (self._nothing, nothing)):
                spent.append(service.ask(f"/scheduler/{verb}", body)[1])
        p50, idle = percentiles(ours[5:])[0], percentiles(nothing[5:])[0]
        row = {"verb": verb, "state": state, "nodes": len(self._names), "requests": count}
        return {**row, "p50_ms": p50, "nothing_p50_ms": idle, "ratio_p50": p50 / idle}


def filter_body(names: list[str], **more: str) -> bytes:
    """Return kube-scheduler's request for a pod that wants an NVLinked pair, and ``more``."""
    pod = manifest("bench", 0, {"link": "nvlink", **more}, app(2))
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def percentiles(times: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    p50, p99 = np.percentile(times, (50, 99), method="nearest")
    return float(p50), float(p99)


def report_of(node: int, rng: random.Random, sequence: int) -> Report:
    """Return a report with some GPUs in use, one of :data:`STATES_PER_MACHINE` for the machine."""
    topology = topology_of(node)
    state = random.Random(rng.randrange(STATES_PER_MACHINE))
    held = state.sample(range(len(topology.gpus)), state.randrange(len(topology.gpus)))
    ids = tuple(DeviceId(topology.gpus[p].uuid) for p in held)
    allocation = Allocation(
        PodUid(f"pod-{node}"), "bench", f"pod-{node}", "main", "nvidia.com/gpu", ids
    )
    return Report("boot", sequence, allocations=(allocation,) if ids else ())


def topology_of(node: int) -> NodeTopology:
    """Return the node with this number."""
    return machine(MACHINES[node % len(MACHINES)]).topology(node_name(node))


def _serve(size: int, seed: int) -> None:
    """Run the extender with these nodes until the process is ended."""
    cluster = Cache(time.monotonic, Settings(stale_after=None, all_pods_known=False))
    rng = random.Random(seed)
    for i in range(size):
        cluster.put_record(topology_of(i), report_of(i, rng, 1))
    serve(cluster)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
