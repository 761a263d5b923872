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
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.table import Table

from scheduler_extender.annotations import PREFIX
from scheduler_extender.state.pods import PodRecord
from topology.core.devices import Bytes, DeviceId, Gpu, GpuResource, GpuUuid, NodeName, PodUid
from topology.core.graph import AllocatorFacts, NodeTopology
from topology.core.links import GBps, Link, LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import ContainerRequest, GpuRequest, Role
from topology.machines import machine

NODES = 100
VERB_MS, LOOP_MS, HEALTHZ_MS = 500, 50, 100
"""What is aimed at."""
VERBS = ("filter", "prioritize", "preempt", "bind")
RESOURCE = "nvidia.com/gpu"


def measure(seed: int, begin: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The figures of every case, in milliseconds. ``begin`` hears what is measured next."""
    rows = []
    for name, pod in cases().items():
        begin(name)
        with _service(seed) as (port, child):
            row: dict[str, Any] = {"case": name, **_ask(port, pod)}
            assert child.stdin is not None
            child.stdin.close()  # its answer is the longest time that its loop was held
            row["loop_ms"] = _told(child)
        rows.append(row)
    targets = {"verb_ms": VERB_MS, "loop_ms": LOOP_MS, "healthz_ms": HEALTHZ_MS}
    return {"benchmark": "worst", "nodes": NODES, "seed": seed, "targets": targets, "rows": rows}


def cases() -> dict[str, dict[str, Any]]:
    """The worst legal pods by what is bad about them."""
    globs = ",".join(f"{'*'.join('abcdefghij')}{i}*" for i in range(32))
    one = [("app", 1)]
    many: dict[str, tuple[dict[str, str], list[tuple[str, int]], list[tuple[str, int]]]] = {
        "4 GPUs, plain": ({}, [], [("app", 4)]),
        "8 GPUs, NVLinked": ({"link": "nvlink"}, [], [("app", 8)]),
        "64 GPUs, plain": ({}, [], [("app", 64)]),
        "1,024 devices": ({}, [], [("app", 1024)]),
        "ring over 12 GPUs": ({"link": "nvlink", "shape": "ring"}, [], [("app", 12)]),
        "ring over 24 GPUs": ({"link": "nvlink", "shape": "ring"}, [], [("app", 24)]),
        "ring of 30 GB/s over 8": ({"min-bandwidth": "30"}, [], [("app", 8)]),
        "connected 6, one NUMA node": (
            {"link": "nvlink", "shape": "connected", "same-numa": "true"},
            [],
            [("app", 6)],
        ),
        "32 globs": ({"gpu-model": globs}, [], [("app", 2)]),
        "40 init containers": ({"link": "phb"}, [(f"i{n}", n % 8 + 1) for n in range(40)], one * 2),
        "1,500 equal init containers": ({}, [(f"i{n}", 2) for n in range(1500)], one),
        "16 containers": ({"link": "phb"}, [], [(f"c{n}", 1) for n in range(16)]),
        "300 containers": ({}, [], [(f"c{n}", 1) for n in range(300)]),
        "preferred, everything at once": (
            {
                "policy": "preferred",
                "link": "nvlink",
                "shape": "ring",
                "min-bandwidth": "50",
                "same-numa": "true",
                "nic": "pxb",
                "min-gpu-memory": "10Gi",
            },
            [("i", 3)],
            [("a", 3), ("b", 3)],
        ),
    }
    return {name: _pod(name, *what) for name, what in many.items()}


def _pod(
    name: str,
    annotations: dict[str, str],
    init: list[tuple[str, int]],
    containers: list[tuple[str, int]],
) -> dict[str, Any]:
    def written(found: list[tuple[str, int]]) -> list[dict[str, Any]]:
        return [
            {"name": f"{c}-{i}", "resources": {"limits": {RESOURCE: str(n)}}}
            for i, (c, n) in enumerate(found)
        ]

    metadata = {
        "name": "worst",
        "namespace": "default",
        "uid": f"uid-{name}",
        "annotations": {PREFIX + k: v for k, v in annotations.items()},
    }
    spec = {"initContainers": written(init), "containers": written(containers)}
    return {"metadata": metadata, "spec": spec}


def _ask(port: int, pod: dict[str, Any]) -> dict[str, Any]:
    names = [_name(i) for i in range(NODES)]
    offered = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
    victims = {n: {"Pods": [{"UID": f"{n}-running-0"}], "NumPDBViolations": 0} for n in names}
    asked = {"Pod": pod, "NodeNameToMetaVictims": victims}
    metadata = pod["metadata"]
    binding = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
    }
    bodies = {
        "filter": offered,
        "prioritize": offered,
        "preempt": json.dumps(asked).encode(),
    }
    row: dict[str, Any] = {}
    stop, slowest = threading.Event(), [0.0]
    poller = threading.Thread(target=_poll, args=(port, stop, slowest))
    poller.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        for verb in VERBS:
            started = time.perf_counter()
            connection.request("POST", f"/scheduler/{verb}", bodies[verb])
            answer = connection.getresponse()
            body = answer.read()
            row[f"{verb}_ms"] = 1000 * (time.perf_counter() - started)
            assert answer.status == 200, (verb, answer.status, body[:200])
            row[f"{verb}_bytes"] = len(body)
            if verb == "filter":
                passed = json.loads(body)["NodeNames"] or names
                bodies["bind"] = json.dumps(binding | {"Node": passed[0]}).encode()
                row["passed"] = len(json.loads(body)["NodeNames"] or ())
        connection.close()
    finally:
        stop.set()
        poller.join()
    row["healthz_ms"] = 1000 * slowest[0]
    return row


def _poll(port: int, stop: threading.Event, slowest: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    while not stop.wait(0.002):
        started = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        slowest[0] = max(slowest[0], time.perf_counter() - started)
    connection.close()


def table(figures: dict[str, Any]) -> Table:
    """The figures for a terminal; what misses its target is marked."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.title = f"{figures['nodes']} nodes in as many states, nothing remembered, ms"
    found.add_column("case")
    targets = dict.fromkeys((f"{v}_ms" for v in VERBS), VERB_MS)
    targets |= {"loop_ms": LOOP_MS, "healthz_ms": HEALTHZ_MS}
    for column, target in targets.items():
        words = column.removesuffix("_ms").replace("loop", "loop held")
        found.add_column(f"{words} (<{target})", justify="right")
    for row in figures["rows"]:
        cells = [f"{row[c]:.0f}{' !' if row[c] > t else ''}" for c, t in targets.items()]
        found.add_row(row["case"], *cells)
    return found


# The cluster.


def _name(i: int) -> str:
    return f"worst-{i:03}"


def _topology(i: int) -> tuple[NodeTopology, GpuResource]:
    """One of ten kinds of machine."""
    name, kind = NodeName(_name(i)), i % 10
    tm = AllocatorFacts("best-effort", topology_manager_policy="best-effort")
    if kind in (0, 1):
        policy = ("any", "best-effort")[kind]
        return machine("dgx2").topology(name, allocator=AllocatorFacts(policy)), GpuResource()
    if kind == 2:
        return sparse(name, 16, 8, tm), GpuResource()
    if kind == 3:
        return machine("dgx1-v100").topology(
            name, allocator=AllocatorFacts("best-effort")
        ), GpuResource()
    if kind == 4:
        facts = AllocatorFacts("distributed", plugin_version="0.20.0")
        served = GpuResource(RESOURCE, "time-slicing", 4)
        return machine("dgx-a100").topology(name, allocator=facts), served
    if kind == 5:
        facts = AllocatorFacts("any", topology_manager_policy="unknown")
        return sparse(name, 32, 8, facts), GpuResource()
    if kind == 6:
        served = GpuResource(RESOURCE, "mps", 32)
        return sparse(name, 64, 2, AllocatorFacts("packed")), served
    if kind == 7:
        return sparse(name, 24, 2, AllocatorFacts("any")), GpuResource()
    if kind == 8:
        return sparse(name, 16, 2, AllocatorFacts("best-effort")), GpuResource()
    return sparse(name, 64, 64, AllocatorFacts("best-effort")), GpuResource()


def sparse(name: NodeName, n: int, numa_nodes: int, facts: AllocatorFacts) -> NodeTopology:
    """Each GPU has NVLinks to about three others, all of different widths."""
    rng = random.Random(f"{n} {numa_nodes}")
    gpus = tuple(
        Gpu(
            p,
            GpuUuid(f"GPU-{name}-{p}"),
            "NVIDIA A100-SXM4-40GB",
            Bytes(40 << 30),
            p * numa_nodes // n,
        )
        for p in range(n)
    )
    links = []
    for a, b in combinations(range(n), 2):
        joined = rng.random() < 3 / n or b == a + 1
        wide = GBps(float(rng.randint(5, 40)))
        pcie = rng.choice((LinkKind.SYS, LinkKind.NODE, LinkKind.PHB, LinkKind.PIX))
        links.append(
            Link(
                a, b, pcie, rng.randint(1, 4) * joined, nvlink_one_way=wide if joined else GBps(0.0)
            )
        )
    return NodeTopology(name, gpus, tuple(links), allocator=facts)


def _populate(seed: int) -> Any:
    from dataclasses import replace

    from scheduler_extender.state.cluster import Cluster
    from scheduler_extender.state.decision import Settings

    cluster = Cluster(time.monotonic, Settings(stale_after=None))
    rng = random.Random(seed)
    for i in range(NODES):
        node, served = _topology(i)
        topology = replace(node, resources=(served,))
        uuids = [g.uuid for g in topology.gpus]
        rng.shuffle(uuids)
        allocations = []
        for number, (what, count) in enumerate(_pods(i, len(uuids), rng)):
            name = f"{topology.name}-{what}-{number}"
            request = GpuRequest(
                served.name,
                (ContainerRequest("main", count),),
                only_gpu_plugin=bool(rng.randrange(2)),
            )
            if rng.randrange(4) == 0 and what == "waiting":
                init = ContainerRequest("init", 1, Role.INIT)
                request = GpuRequest(served.name, (init, *request.containers))
            phase = "Pending" if what == "waiting" else "Running"
            cluster.put_pod(
                PodRecord(
                    PodUid(name),
                    "default",
                    name,
                    topology.name,
                    request,
                    phase=phase,
                    deleting=what == "ending",
                )
            )
            if what != "waiting":
                ids = [uuids.pop() for _ in range(count)]
                whole = served.strategy == "none"
                devices = tuple(DeviceId(u if whole else f"{u}::0") for u in ids)
                allocations.append(
                    Allocation(PodUid(name), "default", name, "main", served.name, devices)
                )
        cluster.put_record(topology, Report("boot", 1, allocations=tuple(allocations)))
    return cluster


def _pods(i: int, gpus: int, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Pods of a node: what they do, and how many GPUs each asks for."""
    yield "running", 1
    left = gpus - 1
    for what, most in (("running", i // 10 % 5), ("ending", i % 3), ("waiting", i // 3 % 4)):
        for _ in range(most):
            count = rng.choice((1, 1, 2))
            if count < left // 2:
                left -= count
                yield what, count


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
        child.wait(10)


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

    service, _ = in_memory(_populate(seed))
    serving = servers(service, Addresses())
    held = [0.0]

    async def heartbeat() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            held[0] = max(held[0], time.perf_counter() - before - 0.001)

    beating: list[asyncio.Task[None]] = []

    def started() -> None:
        beating.append(asyncio.get_running_loop().create_task(heartbeat()))
        print(f"{_MARK}{serving.ports[0]}", flush=True)

    def until_told() -> None:
        sys.stdin.read()
        print(f"{_MARK}{1000 * held[0]}", flush=True)
        serving.stop()

    threading.Thread(target=until_told, daemon=True).start()
    serving.run(started)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
