"""What a pod costs a simulation as the cluster grows, in both modes; and one large run.

Clusters are half full of pods of random sizes on random GPUs, so nodes are in hundreds of states,
and nodes in one state share its answers. Then pods come and go. CPU time per pod, start-up left
out. *Stock* is the simulation itself with kube-scheduler's own scores and no extender: what ours
costs more is the service's verbs.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from rich.table import Table

from benchmarks.collector import no_collector
from benchmarks.figures.speed import LargeFigures, LargeRun, Scale, ScaleRow
from benchmarks.output import table_of
from benchmarks.papers import policies as protocol
from benchmarks.papers.model import NodeKind, PodKind
from benchmarks.papers.simulation import simulate as arrive
from benchmarks.simulation import sources
from benchmarks.simulation.clusters import ENDLESS, Node
from benchmarks.simulation.policies import policy
from benchmarks.simulation.simulation import Simulation
from benchmarks.simulation.sources import SIZES, Workload
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.core.requests import gpu_request
from topology.machines import machine

MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-8")
OURS, STOCK = "gpu-topology", "MostAllocated"
PAPERS = ("FGD", "Damage")


CLUSTER_SIZES = (100, 1_000, 5_000, 20_000, 65_000)
LARGE = LargeRun(nodes=5_000, pods=100_000)


def measure(
    sizes: tuple[int, ...],
    pods: int,
    seed: int,
    large: LargeRun | None,
    begin: Callable[[str], None],
) -> Scale:
    """The figures of so many pods at each cluster size, and of the large run.

    ``begin`` hears what is measured next.
    """
    played = None
    if large is not None:  # first, while the process has never been larger
        begin(f"{large.pods:,} pods on {large.nodes:,} nodes")
        played = _large(large.nodes, large.pods, seed)
    rows = []
    for size in sizes:
        begin(f"{pods:,} pods on {size:,} nodes")
        rows.append(_row(size, pods, seed))
    given = {"nodes": sizes, "pods": pods, "seed": seed, "large": large}
    return Scale(parameters=given, rows=tuple(rows), large=played)


def _row(size: int, pods: int, seed: int) -> ScaleRow:
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
    for name in PAPERS:
        took[name] = 1000 * _protocol(size, pods, name, seed) / pods
    return ScaleRow(
        nodes=size,
        states=states,
        stock_ms=took[STOCK],
        ours_ms=took[OURS],
        fgd_ms=took["FGD"],
        damage_ms=took["Damage"],
    )


def _protocol(nodes: int, pods: int, name: str, seed: int) -> float:
    """Seconds of CPU while pods fill a cluster from empty, in the papers' node model."""
    rng = random.Random(seed)
    kinds = [NodeKind(96_000, 768_000, 8, "V100")] * nodes
    arriving = []
    for _ in range(pods):
        count = rng.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]
        milli = rng.choice((250, 500, 1000)) if count == 1 else 1000
        arriving.append(PodKind(8_000 * count, 61_440 * count, count, milli))
    started = time.process_time()
    arrive(kinds, arriving, range(pods), protocol.POLICIES[name], seed)
    return time.process_time() - started


def _large(nodes: int, pods: int, seed: int) -> LargeFigures:
    machines = [Node(machine("dgx1-v100").topology(f"node-{i:05}")) for i in range(nodes)]
    jobs = sources.jobs(Workload("synthetic", pods, 0.9), machines, seed)
    started, wall = time.process_time(), time.perf_counter()
    with no_collector():
        result = Simulation(machines, jobs, lambda: policy(OURS), seed).run()
    asking = [o for o in result.outcomes if o.kept is not None]
    return LargeFigures(
        nodes=nodes,
        pods=sum(job.pods for job in jobs),
        placed=sum(o.placed for o in result.outcomes),
        promises=len(asking),
        kept=sum(bool(o.kept) for o in asking),
        cpu_seconds=time.process_time() - started,
        wall_seconds=time.perf_counter() - wall,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        protocol_seconds={name: _protocol(nodes, pods, name, seed) for name in PAPERS},
    )


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


def table(found: Scale) -> Table:
    """Milliseconds of CPU per pod, and how they grow between one size and the next."""
    columns = ("nodes", "states", "stock ms", "ours ms", "ours / stock", "FGD ms", "Damage ms")
    result = table_of((), columns)
    for row in found.rows:
        result.add_row(
            f"{row.nodes:,}",
            str(row.states),
            f"{row.stock_ms:.2f}",
            f"{row.ours_ms:.2f}",
            f"{row.ours_ms / row.stock_ms:.1f}",
            f"{row.fgd_ms:.2f}",
            f"{row.damage_ms:.2f}",
        )
    return result


def growth(rows: Sequence[ScaleRow]) -> list[str]:
    """How the cost per pod grows where nodes grow; under 1.00 is sub-linear."""
    lines = []
    for a, b in pairwise(rows):
        times, cost = b.nodes / a.nodes, b.ours_ms / a.ours_ms
        lines.append(f"{a.nodes:,} → {b.nodes:,}: nodes × {times:g}, cost × {cost:.2f}")
    return lines


def large_lines(large: LargeFigures | None) -> list[str]:
    """The large run in a sentence for each mode; nothing if there was none."""
    if large is None:
        return []
    papers = ", ".join(f"{name} {took:.0f} s" for name, took in large.protocol_seconds.items())
    return [
        f"{large.pods:,} pods on {large.nodes:,} nodes as shipped: "
        f"{large.cpu_seconds:.0f} s of CPU, {large.memory_mib} MiB, "
        f"{large.kept:,} of {large.promises:,} promises kept",
        f"the same numbers in the papers' model: {papers}",
    ]
