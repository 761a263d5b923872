"""How long kube-scheduler waits for us, as a ratio to waiting for nothing.

The extender and a *do-nothing* service (:mod:`.nothing`) run as two processes, on the same server.
The latter decodes the same body with the same decoder and encodes an answer of the same size (half
of the names passed, half failed; a score for each), without thinking. One client asks both in turn,
so that whatever else the machine does hits both alike; the ratio of their medians is the figure.

States of the nodes: four machines, each node with a random set of GPUs held (seeded), so some 200
distinct states at 5,000 nodes. The pod asks for an NVLinked pair. "warm" is a request asked before;
"changed" has one node's report change before each request; "cold" is a request never asked before
on states never evaluated for it.
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
# Verbs and the states that they are asked in.
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
    """The figures at each size of a cluster, in milliseconds, so many requests per route.

    ``begin`` hears what is measured next.
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
    """The figures for a terminal."""
    return terminal.table(
        figures["rows"],
        shown("verb", "verb"),
        shown("state", "state"),
        shown("nodes", "nodes", ","),
        shown("p50 ms", "p50_ms", ".2f"),
        shown("nothing's", "nothing_p50_ms", ".2f"),
        shown("ratio", "ratio_p50", ".2f"),
    )


class _Bench:
    """The client of one cluster size."""

    def __init__(self, verbs: int, people: int, nothing: int, size: int, seed: int) -> None:
        self._ours, self._people, self._nothing = map(Client, (verbs, people, nothing))
        self._names = [node_name(i) for i in range(size)]
        self._rng = random.Random(seed)
        self._asked = 10  # questions so far

    def run(self, verb: str, state: str, requests: int) -> dict[str, Any]:
        """One row: the services asked in turn."""
        # A cold request costs an evaluation per state; a few dozen tell enough.
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
    """What kube-scheduler sends about a pod that asks for an NVLinked pair, and ``more``."""
    pod = manifest("bench", 0, {"link": "nvlink", **more}, app(2))
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def percentiles(times: list[float]) -> tuple[float, float]:
    """The median, and what 99 of a hundred do not exceed."""
    p50, p99 = np.percentile(times, (50, 99), method="nearest")
    return float(p50), float(p99)


def report_of(node: int, rng: random.Random, sequence: int) -> Report:
    """A node with some GPUs held, one of a fixed number of states of its machine."""
    topology = topology_of(node)
    state = random.Random(rng.randrange(STATES_PER_MACHINE))
    held = state.sample(range(len(topology.gpus)), state.randrange(len(topology.gpus)))
    ids = tuple(DeviceId(topology.gpus[p].uuid) for p in held)
    allocation = Allocation(
        PodUid(f"pod-{node}"), "bench", f"pod-{node}", "main", "nvidia.com/gpu", ids
    )
    return Report("boot", sequence, allocations=(allocation,) if ids else ())


def topology_of(node: int) -> NodeTopology:
    """The node with this number."""
    return machine(MACHINES[node % len(MACHINES)]).topology(node_name(node))


def _serve(size: int, seed: int) -> None:
    """The body of the extender's process."""
    cluster = Cache(time.monotonic, Settings(stale_after=None, all_pods_known=False))
    rng = random.Random(seed)
    for i in range(size):
        cluster.put_record(topology_of(i), report_of(i, rng, 1))
    serve(cluster)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
