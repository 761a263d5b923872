"""The worst legal pods on the worst legal nodes: how long a verb takes, and whom it holds up.

A hundred nodes in a hundred states: 16 GPUs under ``any`` and ``best-effort``, 24 to 64 sparsely
linked GPUs, GPUs shared 4 and 32 times, eight NUMA nodes under Topology Manager policies, and pods
that run, end and wait on each. For every case the service runs as a process of its own with nothing
remembered; filter, prioritize, bind and preempt are asked over HTTP, one after the other, while a
second client asks ``/healthz`` without a pause. A heartbeat in the service's event loop notes the
longest time for which it was held.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.output import table_of
from benchmarks.speed.processes import Answer, Client, program, tell, told
from benchmarks.speed.worst_cases import NODES, WORST, WorstPod, name_of, populate

TARGETS = {"verb_ms": 250, "loop_ms": 20, "healthz_ms": 10}  # what is aimed at
VERBS = ("filter", "prioritize", "preempt", "bind")


@dataclass(slots=True)
class _Longest:
    """The longest of some moments, in seconds, and the most CPU that the service used in one."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, seconds: float, cpu_seconds: float) -> None:
        """One moment more."""
        self.seconds = max(self.seconds, seconds)
        self.cpu_seconds = max(self.cpu_seconds, cpu_seconds)


def measure(seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """The figures of every case, in milliseconds. ``begin`` hears what is measured next."""
    rows = []
    for pod in WORST:
        begin(pod.case)
        with program("benchmarks.speed.worst", str(seed), speaks=True) as child:
            port = int(told(child)[0])
            answers, healthz = _ask(port, child.pid, pod)
            assert child.stdin is not None
            child.stdin.close()  # it answers with the longest time that its loop was held
            rows.append(_row(pod.case, answers, healthz, _Longest(*told(child))))
    return {
        "benchmark": "worst",
        "nodes": NODES,
        "seed": seed,
        "targets": TARGETS,
        "rows": rows,
    }


def _row(
    case: str, answers: dict[str, Answer], healthz: _Longest, loop: _Longest
) -> dict[str, Any]:
    """One pod: how long each verb took, how large its answer was, and whom the verbs held up.

    ``…_cpu_ms`` are the same moments in CPU time that the service itself used: what it is to blame
    for, also on a machine that others keep busy.
    """
    return {
        "case": case,
        **{f"{verb}_ms": answer.ms for verb, answer in answers.items()},
        **{f"{verb}_bytes": len(answer.body) for verb, answer in answers.items()},
        "passed": len(json.loads(answers["filter"].body)["NodeNames"] or []),
        "healthz_ms": 1000 * healthz.seconds,
        "healthz_cpu_ms": 1000 * healthz.cpu_seconds,
        "loop_ms": 1000 * loop.seconds,  # for how long the event loop was held
        "loop_cpu_ms": 1000 * loop.cpu_seconds,
    }


def _ask(port: int, process: int, pod: WorstPod) -> tuple[dict[str, Answer], _Longest]:
    """The answer of each verb, and the slowest of ``/healthz``, which a second client asks without
    a pause meanwhile."""
    stop, slowest = threading.Event(), _Longest()
    poller = threading.Thread(target=_poll, args=(port, process, stop, slowest))
    poller.start()
    try:
        client = Client(port)
        manifest, names = pod.manifest(), [name_of(i) for i in range(NODES)]
        bodies = {"filter": {"Pod": manifest, "Nodes": None, "NodeNames": names}}
        bodies["prioritize"] = bodies["filter"]
        bodies["preempt"] = _victims(manifest, names)
        answers: dict[str, Answer] = {}
        for verb, body in bodies.items():
            answers[verb] = client.ask(f"/scheduler/{verb}", json.dumps(body))
        passed = json.loads(answers["filter"].body)["NodeNames"] or names
        answers["bind"] = client.ask("/scheduler/bind", json.dumps(_binding(manifest, passed[0])))
        client.close()
    finally:
        stop.set()
        poller.join()
    return answers, slowest


def _victims(pod: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """What kube-scheduler sends to preempt: one running pod to evict on every node."""
    victims = {n: {"Pods": [{"UID": f"{n}-running-0"}], "NumPDBViolations": 0} for n in names}
    return {"Pod": pod, "NodeNameToMetaVictims": victims}


def _binding(pod: dict[str, Any], node: str) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def _poll(port: int, process: int, stop: threading.Event, slowest: _Longest) -> None:
    clock, client = _cpu_clock(process), Client(port)
    while not stop.wait(0.002):
        cpu = time.clock_gettime(clock)
        seconds = client.ask("/healthz").ms / 1000
        slowest.add(seconds, time.clock_gettime(clock) - cpu)
    client.close()


def _cpu_clock(process: int) -> int:
    """The clock of the CPU time of another process, as ``clock_getcpuclockid(3)`` makes it."""
    return (~process << 3) | 2


def table(figures: dict[str, Any]) -> Table:
    """The figures for a terminal; what misses its target is marked."""
    aimed = figures["targets"]
    columns = (
        *((verb, f"{verb}_ms", aimed["verb_ms"]) for verb in VERBS),
        ("loop held", "loop_ms", aimed["loop_ms"]),
        ("its CPU", "loop_cpu_ms", aimed["loop_ms"]),
        ("healthz", "healthz_ms", aimed["healthz_ms"]),
        ("its CPU", "healthz_cpu_ms", aimed["healthz_ms"]),
    )
    title = f"{figures['nodes']} nodes in as many states, nothing remembered, ms"
    found = table_of(("case",), [f"{name} (<{target})" for name, _, target in columns], title)
    for row in figures["rows"]:
        cells = (f"{row[f]:.0f}{' !' if row[f] > target else ''}" for _, f, target in columns)
        found.add_row(row["case"], *cells)
    return found


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
        tell(serving.ports[0])

    def until_told() -> None:
        sys.stdin.read()
        tell(held.seconds, held.cpu_seconds)
        serving.stop()

    threading.Thread(target=until_told, daemon=True).start()
    serving.run(started)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
