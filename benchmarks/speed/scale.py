"""What a pod costs a simulation as the cluster grows; and one large run.

Clusters are half full of pods of random sizes on random GPUs, so nodes are in hundreds of states,
and nodes in one state share its answers. Then pods come and go. CPU time per pod, start-up left
out. *Stock* is the simulation itself with kube-scheduler's own scores and no extender: what ours
costs more is the service's verbs.
"""

import random
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from rich.table import Table

from benchmarks.collector import no_collector
from benchmarks.output import shown
from benchmarks.simulation import sources
from benchmarks.simulation.clusters import ENDLESS, Node
from benchmarks.simulation.policies import policy
from benchmarks.simulation.simulation import Simulation
from benchmarks.simulation.sources import Workload
from scheduler_extender import terminal
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.core.requests import gpu_request
from topology.machines import machine

MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-8")
OURS, STOCK = "gpu-topology", "MostAllocated"
CLUSTER_SIZES = (100, 1_000, 5_000, 20_000, 65_000)
LARGE = (5_000, 100_000)  # nodes and pods of the one large run


def measure(
    sizes: tuple[int, ...],
    pods: int,
    seed: int,
    large: tuple[int, int] | None,
    begin: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of so many pods at each cluster size, and of the large run.

    ``begin`` hears what is measured next.
    """
    played = None
    if large is not None:  # first, while the process has never been larger
        begin(f"{large[1]:,} pods on {large[0]:,} nodes")
        played = _large(*large, seed)
    rows = []
    for size in sizes:
        begin(f"{pods:,} pods on {size:,} nodes")
        rows.append(_row(size, pods, seed))
    given = {"nodes": sizes, "pods": pods, "seed": seed, "large": large}
    return {"benchmark": "scale", "parameters": given, "rows": rows, "large": played}


def _row(size: int, pods: int, seed: int) -> dict[str, Any]:
    nodes = half_full(size, random.Random(seed))
    jobs = sources.jobs(Workload("synthetic", pods), nodes, seed)
    took: dict[str, float] = {}
    states = 0
    for name in (STOCK, OURS):
        simulation = Simulation(nodes, jobs, partial(policy, name), seed)
        states = len(simulation.fleet.states)
        with no_collector():
            started = time.process_time()
            simulation.run()
            took[name] = 1000 * (time.process_time() - started) / len(jobs)
    return {"nodes": size, "states": states, **{f"{name}_ms": ms for name, ms in took.items()}}


def _large(nodes: int, pods: int, seed: int) -> dict[str, Any]:
    machines = [Node(machine("dgx1-v100").topology(f"node-{i:05}")) for i in range(nodes)]
    jobs = sources.jobs(Workload("synthetic", pods, 0.9), machines, seed)
    started, wall = time.process_time(), time.perf_counter()
    with no_collector():
        result = Simulation(machines, jobs, lambda: policy(OURS), seed).run()
    asking = [o for o in result.outcomes if o.kept is not None]
    return {
        "nodes": nodes,
        "pods": sum(job.pods for job in jobs),
        "placed": sum(o.placed for o in result.outcomes),
        "promises": len(asking),
        "kept": sum(bool(o.kept) for o in asking),
        "cpu_seconds": time.process_time() - started,
        "wall_seconds": time.perf_counter() - wall,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def half_full(size: int, rng: random.Random) -> list[Node]:
    """So many nodes of four kinds, half of whose GPUs running pods hold."""
    found = []
    for i in range(size):
        topology = machine(MACHINES[i % len(MACHINES)]).topology(f"node-{i:05}")
        found.append(_half_full(topology, rng))
    return found


def _half_full(topology: NodeTopology, rng: random.Random) -> Node:
    free = rng.sample(range(len(topology.gpus)), len(topology.gpus))
    left = max(0, round(rng.gauss(len(free) / 2, len(free) / 4)))
    pods: list[PodRecord] = []
    held: list[Allocation] = []
    while len(free) > left:
        count = min(rng.choice((1, 1, 2, 4)), len(free))
        taken, free = free[:count], free[count:]
        name, uid = f"old-{len(pods)}", PodUid(f"{topology.name}/{len(pods)}")
        ids = tuple(DeviceId(topology.gpus[p].uuid) for p in taken)
        node = NodeName(topology.name)
        pods.append(PodRecord(uid, "old", name, node, gpu_request(count), phase="Running"))
        held.append(Allocation(uid, "old", name, "main", "nvidia.com/gpu", ids))
    return Node(topology, ENDLESS, Report("boot", 1, allocations=tuple(held)), tuple(pods))


def table(found: dict[str, Any]) -> Table:
    """Milliseconds of CPU per pod, and how they grow between one size and the next."""
    return terminal.table(
        found["rows"],
        shown("nodes", "nodes", ","),
        shown("states", "states", "d"),
        shown("stock ms", f"{STOCK}_ms", ".2f"),
        shown("ours ms", f"{OURS}_ms", ".2f"),
        terminal.column(
            "ours / stock",
            lambda row: f"{row[f'{OURS}_ms'] / row[f'{STOCK}_ms']:.1f}",
            figure=True,
        ),
    )


def growth(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How the cost per pod grows where nodes grow; under 1.00 is sub-linear."""
    lines = []
    for a, b in pairwise(rows):
        times, cost = b["nodes"] / a["nodes"], b[f"{OURS}_ms"] / a[f"{OURS}_ms"]
        lines.append(f"{a['nodes']:,} → {b['nodes']:,}: nodes × {times:g}, cost × {cost:.2f}")
    return lines


def large_line(large: dict[str, Any]) -> str:
    """The large run in a sentence."""
    return (
        f"{large['pods']:,} pods on {large['nodes']:,} nodes: "
        f"{large['cpu_seconds']:.0f} s of CPU, {large['memory_mib']} MiB, "
        f"{large['kept']:,} of {large['promises']:,} promises kept"
    )
