"""What each kind of node can promise under each policy of the Topology Manager.

For every set of free GPUs of a machine: does it hold a set that keeps the constraint, and is a pod
promised one there? Nothing else happens on the node. Pods of the class Guaranteed ask for whole
CPUs as well, which a static CPU Manager gives them; all CPUs are free.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rich.table import Table

from benchmarks.output import table_of
from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.devices import Mask, subsets
from topology.core.graph import AllocatorFacts, NodeTopology
from topology.core.links import LinkKind
from topology.core.numa import CpuSet, NumaFacts, NumaNode
from topology.core.placement import assess
from topology.core.placement.constraints import compiled
from topology.core.requests import (
    Constraints,
    Demand,
    Exclusive,
    GpuRequest,
    Role,
    gpu_request,
)
from topology.core.room import emptied
from topology.core.shape import Shape
from topology.machines import machine

MACHINES = ("dgx1-v100", "a100-pcie-4-bridged", "l40s-8", "dgx-a100", "hgx-h100-8")
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
CPUS_PER_GPU = 8
CPUS_PER_NUMA_NODE = 64
WISHES = (
    (2, Constraints(link=LinkKind.NVLINK)),
    (4, Constraints(link=LinkKind.NVLINK)),
    (2, Constraints(same_numa=True)),
    (4, Constraints(same_numa=True)),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How many sets of free GPUs hold what a pod asks for, and on how many it is promised."""

    machine: str
    request: GpuRequest
    held: int
    promised: tuple[int, ...]  # by policy
    with_cpus: tuple[int, ...]  # the same for a pod that asks for whole CPUs, too


def kinds(machines: Iterable[str] = MACHINES) -> Iterator[Kind]:
    """Every machine with every wish that its hardware can meet."""
    for name in machines:
        topology = machine(name).topology(name)
        for count, constraints in WISHES:
            request = gpu_request(count, constraints)
            sets = range(1, 1 << len(topology.gpus))
            held = [free for free in sets if _holds(topology.shape, free, request)]
            demand = Demand(Role.APP, count, count * CPUS_PER_GPU)
            exclusive = Exclusive(cpus=True, memory=True, demands=(demand,))
            pinned = replace(request, exclusive=exclusive)
            if held:
                yield Kind(
                    name,
                    request,
                    len(held),
                    tuple(_promised(topology, held, request, policy) for policy in POLICIES),
                    tuple(_promised(topology, held, pinned, policy) for policy in POLICIES),
                )


def _holds(shape: Shape, free: Mask, request: GpuRequest) -> bool:
    constraints = compiled(shape, request.constraints, 0, 1)
    return any(constraints.passes(s, request.count) for s in subsets(free, request.count))


def _promised(topology: NodeTopology, held: list[Mask], request: GpuRequest, policy: str) -> int:
    # As many NUMA nodes as GPUs are on, each with the same number of CPUs.
    count = 1 + max((gpu.numa_node or 0 for gpu in topology.gpus), default=0)
    each = (1 << CPUS_PER_NUMA_NODE) - 1
    nodes = tuple(NumaNode(CpuSet(each << i * CPUS_PER_NUMA_NODE), i) for i in range(count))
    every = CpuSet((1 << count * CPUS_PER_NUMA_NODE) - 1)
    numa = NumaFacts(nodes, every, every)
    facts = AllocatorFacts(
        "best-effort",
        "0.19.3",
        policy,
        "container",
        "static",
        "None",
        False,
        tuple(tuple(10 if a == b else 21 for b in range(count)) for a in range(count)),
        full_cores_only=False,
        numa=numa,
    )
    kubelet = Kubelet(topology.shape, facts)
    room = emptied(numa)
    return sum(
        assess(kubelet, Availability(free, room=room), request).verdict.holds for free in held
    )


def kinds_table(found: Iterable[Kind]) -> Table:
    """The figures for a terminal: sets of free GPUs, with and without CPUs where that differs."""
    title = "sets of free GPUs on which a pod is promised what they hold"
    table = table_of(("machine", "pod"), ("hold it", *POLICIES), title)
    for kind in found:
        cells = (
            f"{alone}" if alone == pinned else f"{alone} ({pinned})"
            for alone, pinned in zip(kind.promised, kind.with_cpus, strict=True)
        )
        table.add_row(kind.machine, kind.request.text, f"{kind.held}", *cells)
    table.caption = f"in brackets: a pod that asks for {CPUS_PER_GPU} exclusive CPUs for each GPU"
    return table
