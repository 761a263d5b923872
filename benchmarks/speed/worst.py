"""The worst legal pods on the worst legal nodes: the time of each verb, and the delay of others.

A hundred nodes are in a hundred states. They have 16 GPUs under ``any`` and ``best-effort``, 24 to
64 sparsely linked GPUs, GPUs shared 4 and 32 times, or eight NUMA nodes under Topology Manager
policies. Pods run, terminate and wait on each. For every case the service runs in its own process
with nothing cached. It gets filter, prioritize, preempt and bind over HTTP, one after the other,
while a second client requests ``/healthz`` every 2 ms.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from rich.table import Table

from benchmarks.output import preamble, shown
from benchmarks.promises.workloads import GpuContainer, app, init, manifest
from benchmarks.speed.processes import Client, program, serve, told, waits
from scheduler_extender import terminal
from scheduler_extender.simulator.pods import GPU
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import Bytes, DeviceId, Gpu, GpuResource, GpuUuid, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import GBps, Link, LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import ContainerRequest, GpuRequest, Role
from topology.machines import machine

NODES = 100


def name_of(i: int) -> str:
    """Return the name of the ``i``-th node."""
    return f"worst-{i:03}"


def _topology(i: int) -> tuple[NodeTopology, GpuResource]:
    """Return one of ten kinds of machine, and the resource that serves its GPUs."""
    name = NodeName(name_of(i))
    whole = GpuResource()
    best = AllocatorConfig("best-effort")
    makers: tuple[Callable[[], tuple[NodeTopology, GpuResource]], ...] = (
        lambda: (machine("dgx2").topology(name, allocator=AllocatorConfig("any")), whole),
        lambda: (machine("dgx2").topology(name, allocator=best), whole),
        lambda: (sparse(name, 16, 8, replace(best, topology_manager_policy="best-effort")), whole),
        lambda: (machine("dgx1-v100").topology(name, allocator=best), whole),
        lambda: (
            machine("dgx-a100").topology(
                name, allocator=AllocatorConfig("distributed", plugin_version="0.20.0")
            ),
            GpuResource(GPU, "time-slicing", 4),
        ),
        lambda: (
            sparse(name, 32, 8, AllocatorConfig("any", topology_manager_policy="unknown")),
            whole,
        ),
        lambda: (
            sparse(name, 64, 2, AllocatorConfig("packed")),
            GpuResource(GPU, "mps", 32),
        ),
        lambda: (sparse(name, 24, 2, AllocatorConfig("any")), whole),
        lambda: (sparse(name, 16, 2, best), whole),
        lambda: (sparse(name, 64, 64, best), whole),
    )
    return makers[i % len(makers)]()


def sparse(name: NodeName, n: int, numa_nodes: int, config: AllocatorConfig) -> NodeTopology:
    """Return a node whose GPUs have NVLinks to about three others each, all of other widths."""
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
    return NodeTopology(name, gpus, tuple(links), allocator=config)


def populate(seed: int) -> Cache:
    """Return a cache with all nodes, their pods and their reports."""
    cluster = Cache(time.monotonic, Settings(stale_after=None))
    rng = random.Random(seed)
    for i in range(NODES):
        node, served = _topology(i)
        topology = replace(node, resources=(served,))
        uuids = [g.uuid for g in topology.gpus]
        rng.shuffle(uuids)
        allocations: list[Allocation] = []
        for number, (does, gpus) in enumerate(_pods(i, len(uuids), rng)):
            name = f"{topology.name}-{does}-{number}"
            cluster.put_pod(_record(name, topology.name, served.name, does, gpus, rng))
            if does != "waiting":
                ids = [uuids.pop() for _ in range(gpus)]
                whole = served.strategy == "none"
                devices = tuple(DeviceId(u if whole else f"{u}::0") for u in ids)
                allocations.append(
                    Allocation(PodUid(name), "default", name, "main", served.name, devices)
                )
        cluster.put_record(topology, Report("boot", 1, allocations=tuple(allocations)))
    return cluster


def _record(
    name: str, node: NodeName, resource: str, does: str, gpus: int, rng: random.Random
) -> PodRecord:
    main = ContainerRequest("main", gpus)
    request = GpuRequest(resource, (main,), only_gpu_plugin=bool(rng.randrange(2)))
    if rng.randrange(4) == 0 and does == "waiting":
        request = GpuRequest(resource, (ContainerRequest("init", 1, Role.INIT), main))
    return PodRecord(
        PodUid(name),
        "default",
        name,
        node,
        request,
        phase="Pending" if does == "waiting" else "Running",
        terminating=does == "ending",
    )


def _pods(i: int, gpus: int, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Yield for each pod of the ``i``-th node what it does, and how many GPUs it requests.

    ``gpus`` is the number of GPUs of the node.
    """
    yield "running", 1
    left = gpus - 1
    for does, most in {"running": i // 10 % 5, "ending": i % 3, "waiting": i // 3 % 4}.items():
        for _ in range(most):
            count = rng.choice((1, 1, 2))
            if count < left // 2:
                left -= count
                yield does, count


# Pods.

EVERYTHING = {
    "policy": "preferred",
    "link": "nvlink",
    "shape": "ring",
    "min-bandwidth": "50",
    "same-numa": "true",
    "nic": "pxb",
    "min-gpu-memory": "10Gi",
}
GLOBS = ",".join(f"{'*'.join('abcdefghij')}{i}*" for i in range(32))

NVLINK, RING = {"link": "nvlink"}, {"link": "nvlink", "shape": "ring"}


@dataclass(frozen=True, slots=True)
class WorstPod:
    """A pod that is expensive to evaluate, with a name for the case."""

    case: str
    containers: Sequence[GpuContainer]
    annotations: dict[str, str] = field(default_factory=dict)  # without our prefix

    def manifest(self) -> dict[str, Any]:
        """Return the Pod as in JSON."""
        return manifest("worst", 0, self.annotations, *self.containers)


WORST = (
    WorstPod("1,024 devices", [app(1024)]),
    WorstPod("ring over 12 GPUs", [app(12)], RING),
    WorstPod("ring over 64 GPUs", [app(64)], RING),
    WorstPod("ring of 30 GB/s over 8", [app(8)], {"min-bandwidth": "30"}),
    WorstPod(
        "ring of 3 GB/s over 32", [app(32)], {"min-bandwidth": "3", "link": "phb", "shape": "ring"}
    ),
    WorstPod(
        "connected 6, one NUMA node", [app(6)], NVLINK | {"shape": "connected", "same-numa": "true"}
    ),
    WorstPod("32 globs", [app(2)], {"gpu-model": GLOBS}),
    WorstPod(
        "40 init containers",
        [*(init(n % 8 + 1) for n in range(40)), *[app(1)] * 2],
        {"link": "phb"},
    ),
    WorstPod("1,500 equal init containers", [*[init(2)] * 1500, app(1)]),
    WorstPod("60 containers, 60 init containers", [*[init(2)] * 60, *[app(1)] * 60]),
    WorstPod("300 containers", [app(1)] * 300),
    WorstPod("preferred, everything at once", [init(3), app(3), app(3)], EVERYTHING),
)


VERBS = ("filter", "prioritize", "preempt", "bind")


def measure(seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures of every case, in milliseconds.

    ``begin`` is called with the name of each case before it starts.
    """
    rows = []
    for pod in WORST:
        begin(pod.case)
        with program("benchmarks.speed.worst", str(seed), speaks=True) as child:
            port = int(told(child)[0])
            with waits(partial(Client(port).ask, "/healthz"), 0.002) as waited:
                times = _ask(port, pod)
        rows.append({"case": pod.case, **times, "healthz": 1000 * max(waited)})
    return {**preamble("worst", nodes=NODES, seed=seed), "rows": rows}


def table(figures: dict[str, Any]) -> Table:
    """Return the figures as a table for a terminal."""
    times = (shown(f"{what} ms", what, ".0f") for what in (*VERBS, "healthz"))
    return terminal.table(figures["rows"], shown("case", "case"), *times)


def _ask(port: int, pod: WorstPod) -> dict[str, float]:
    """Return the milliseconds of each verb."""
    manifest, names = pod.manifest(), [name_of(i) for i in range(NODES)]
    asked = {"Pod": manifest, "Nodes": None, "NodeNames": names}
    # kube-scheduler's request, with one running pod to evict on every node.
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


if __name__ == "__main__":
    serve(populate(int(sys.argv[1])))
