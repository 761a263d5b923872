"""The worst legal pods on the worst legal nodes: how long a verb takes, and whom it holds up.

A hundred nodes in a hundred states: 16 GPUs under ``any`` and ``best-effort``, 24 to 64 sparsely
linked GPUs, GPUs shared 4 and 32 times, eight NUMA nodes under Topology Manager policies, and pods
that run, end and wait on each. For every case the service runs as a process of its own with nothing
remembered; filter, prioritize, preempt and bind are asked over HTTP, one after the other, while a
second client asks ``/healthz`` without a pause.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.table import Table

from benchmarks.output import preamble, shown
from benchmarks.speed.processes import Client, program, serve, told
from benchmarks.speed.worst_cases import NODES, WORST, WorstPod, name_of, populate
from scheduler_extender import terminal

VERBS = ("filter", "prioritize", "preempt", "bind")


def measure(seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """The figures of every case, in milliseconds. ``begin`` hears what is measured next."""
    rows = []
    for pod in WORST:
        begin(pod.case)
        with program("benchmarks.speed.worst", str(seed), speaks=True) as child:
            port = int(told(child)[0])
            with _healthz(port) as waited:
                times = _ask(port, pod)
        rows.append({"case": pod.case, **times, "healthz": max(waited)})
    return {**preamble("worst", nodes=NODES, seed=seed), "rows": rows}


def table(figures: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    times = (shown(f"{what} ms", what, ".0f") for what in (*VERBS, "healthz"))
    return terminal.table(figures["rows"], shown("case", "case"), *times)


def _ask(port: int, pod: WorstPod) -> dict[str, float]:
    """How long each verb takes."""
    manifest, names = pod.manifest(), [name_of(i) for i in range(NODES)]
    asked = {"Pod": manifest, "Nodes": None, "NodeNames": names}
    # As kube-scheduler sends it: one running pod to evict on every node.
    victims = {n: {"Pods": [{"UID": f"{n}-running-0"}], "NumPDBViolations": 0} for n in names}
    preempt = {"Pod": manifest, "NodeNameToMetaVictims": victims}
    client = Client(port)
    answer, filtered = client.ask("/scheduler/filter", json.dumps(asked))
    passed = json.loads(answer)["NodeNames"] or names
    meta = manifest["metadata"]
    bind = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    others = {"prioritize": asked, "preempt": preempt, "bind": {**bind, "Node": passed[0]}}
    return {
        "filter": filtered,
        **{verb: client.ask(f"/scheduler/{verb}", json.dumps(b))[1] for verb, b in others.items()},
    }


@contextmanager
def _healthz(port: int) -> Iterator[list[float]]:
    """How long each question takes that is asked there inside the block, in milliseconds."""
    over, waited = threading.Event(), [0.0]

    def ask() -> None:
        client = Client(port)
        while not over.wait(0.002):
            waited.append(client.ask("/healthz")[1])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield waited
    finally:
        over.set()
        asking.join()


if __name__ == "__main__":
    serve(populate(int(sys.argv[1])))
