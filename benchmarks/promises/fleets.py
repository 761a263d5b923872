"""The nodes of closed loops: machines, and how their kubelets and device plugins choose GPUs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

from topology.core.devices import GpuResource, NodeName
from topology.core.graph import UNKNOWN, AllocatorFacts, NodeTopology
from topology.machines import machine

MIXED = (
    ("dgx1-v100", 4),
    ("dgx1-p100", 2),
    ("a100-pcie-4-bridged", 3),
    ("l40s-4", 1),
    ("hgx-h100-8", 3),
    ("dgx-a100", 2),
)
"""Fifteen nodes, ten of which are not all-linked."""

NONE, STATIC, UNSEEN = ("none", "None"), ("static", "Static"), (None, None)
"""Policies of the CPU and the Memory Manager; UNSEEN: nobody could tell."""


def _facts(
    policy: str,
    manager: str = "none",
    scope: str = "container",
    managers: tuple[str | None, str | None] = NONE,
    *,
    plugin: str = "v0.20.0",
    closest: bool | None = None,
    distances: tuple[tuple[int, ...], ...] | None = None,
) -> AllocatorFacts:
    return AllocatorFacts(
        policy,
        plugin,
        manager,
        scope,
        *managers,
        prefers_closest=closest,
        numa_distances=distances,
    )


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A machine and how it chooses.

    ``nodes`` are the NUMA nodes that the plugin names, GPU by GPU, where these are not the
    machine's own. ``served`` says how GPUs are shared.
    """

    machine: str
    facts: AllocatorFacts
    nodes: tuple[tuple[int, ...], ...] = ()
    served: GpuResource = GpuResource()  # noqa: RUF009 (it is frozen)

    def node(self, number: int) -> NodeTopology:
        """The node with this number."""
        node = machine(self.machine).topology(f"{self.machine}-{number}")
        gpus = node.gpus
        if self.nodes:
            named = zip(gpus, self.nodes, strict=True)
            gpus = tuple(replace(gpu, topology_nodes=nodes) for gpu, nodes in named)
        return replace(node, gpus=gpus, allocator=self.facts, resources=(self.served,))


def _shared(strategy: str, replicas: int, *, refuses: bool | None = None) -> GpuResource:
    return GpuResource("nvidia.com/gpu", strategy, replicas, refuses)


ALIGNED = (
    _facts("best-effort", "best-effort"),
    _facts("best-effort", "best-effort", managers=UNSEEN),
    _facts("best-effort", "restricted", "pod"),
    _facts("best-effort", "single-numa-node"),
)
"""Topology Managers of every kind."""

ALLOCATORS = (
    NodeCase("dgx1-v100", _facts("best-effort")),
    NodeCase("dgx1-v100", _facts("any")),
    NodeCase("dgx1-v100", _facts("best-effort", "best-effort")),
    NodeCase("dgx1-v100", _facts("best-effort", "single-numa-node")),
    NodeCase("dgx1-p100", _facts("best-effort", "restricted", "pod")),
    NodeCase("dgx1-p100", _facts("best-effort", "best-effort", managers=UNSEEN)),
    NodeCase("a100-pcie-4-bridged", _facts("best-effort", "restricted")),
    NodeCase("a100-pcie-4-bridged", _facts("packed"), served=_shared("time-slicing", 2)),
    NodeCase("a100-pcie-4-bridged", _facts("distributed"), served=_shared("time-slicing", 3)),
    NodeCase("l40s-8", _facts("best-effort", "single-numa-node", "pod")),
    NodeCase("l40s-4", _facts("any", "single-numa-node", "pod")),
    NodeCase("hgx-h100-8", _facts("distributed", "restricted")),
    NodeCase("hgx-h100-8", _facts("best-effort", "best-effort", "pod")),
    NodeCase("dgx-a100", _facts("packed", "best-effort"), served=_shared("time-slicing", 2)),
)
"""Machines with how they choose: the plugin's policy, the Topology Manager, shares of a GPU."""

FOUR_NEAR_TWO = (
    (10, 32, 12, 32),
    (32, 10, 32, 12),
    (12, 32, 10, 32),
    (32, 12, 32, 10),
)
"""Distances of four NUMA nodes: 0 is near 2, 1 is near 3."""

SOCKETS = (
    NodeCase("dgx1-v100", _facts("best-effort", "single-numa-node", managers=STATIC)),
    NodeCase("dgx1-v100", _facts("best-effort", "restricted", "pod", STATIC)),
    NodeCase("dgx1-v100", _facts("best-effort", "best-effort", managers=("static", "None"))),
    NodeCase("dgx1-p100", _facts("best-effort", "best-effort", "pod", ("none", "Static"))),
    NodeCase("hgx-h100-8", _facts("best-effort", "restricted", managers=UNSEEN)),
    NodeCase("dgx1-v100", _facts("best-effort", UNKNOWN)),
    NodeCase("a100-pcie-4-bridged", _facts("best-effort", "single-numa-node", "pod", STATIC)),
    NodeCase(
        "nd96asr-v4",
        _facts("best-effort", "restricted", closest=True, distances=FOUR_NEAR_TWO),
    ),
    NodeCase("nd96asr-v4", _facts("best-effort", "best-effort", "pod", STATIC)),
    NodeCase(
        "hgx-a100-4-nps4",
        _facts("any", "restricted", "pod", closest=True, distances=FOUR_NEAR_TWO),
    ),
    NodeCase("dgx-a100", _facts("best-effort", "best-effort", managers=STATIC, closest=True)),
    NodeCase("p3.16xlarge", _facts("best-effort", "restricted", managers=STATIC)),
    NodeCase(
        "dgx1-v100",
        _facts("best-effort", "best-effort"),
        nodes=((0,), (0,), (), (0,), (1,), (), (1,), (1,)),
    ),
    NodeCase(
        "dgx1-v100",
        _facts("best-effort", "restricted"),
        nodes=((0,), (0,), (), (0,), (1,), (), (1,), (1,)),
    ),
    NodeCase(
        "dgx1-p100",
        _facts("best-effort", "best-effort", managers=STATIC),
        nodes=((0,), (0, 1), (0,), (0,), (1,), (1,), (0, 1), (1,)),
    ),
)
"""Two NUMA nodes and more under every policy: static managers, options of the Topology Manager,
GPUs on no NUMA node and on several."""

SHARED = (
    NodeCase("dgx1-v100", _facts("best-effort")),
    NodeCase("a100-pcie-4-bridged", _facts("distributed"), served=_shared("time-slicing", 3)),
    NodeCase(
        "a100-pcie-4-bridged",
        _facts("packed"),
        served=_shared("time-slicing", 2, refuses=True),
    ),
    NodeCase(
        "a100-pcie-4-bridged",
        _facts("distributed"),
        served=_shared("time-slicing", 2, refuses=False),
    ),
    NodeCase("a100-pcie-4-bridged", _facts("distributed"), served=_shared("mps", 4)),
    NodeCase("l40s-4", _facts("distributed", plugin="v0.19.3"), served=_shared("mps", 3)),
    NodeCase("hgx-h100-8", _facts("packed"), served=_shared("mps", 2, refuses=False)),
    NodeCase("hgx-h100-8", _facts("distributed"), served=_shared("mps", 2, refuses=True)),
    NodeCase("dgx1-v100", _facts("distributed", "restricted"), served=_shared("time-slicing", 2)),
)
"""GPUs that are shared: some plugins refuse a container more than one share, some do not say."""


def fleet(*groups: tuple[str, int], facts: AllocatorFacts | None = None) -> list[NodeTopology]:
    """So many nodes of each machine, chosen by ``facts`` where given."""
    nodes = [machine(name).topology(f"{name}-{i}") for name, count in groups for i in range(count)]
    if facts is None:
        return nodes
    return [replace(node, allocator=facts, name=NodeName(f"{node.name}-tm")) for node in nodes]


def _aligned() -> list[NodeTopology]:
    groups = (("dgx1-v100", 2), ("a100-pcie-4-bridged", 1), ("l40s-8", 1))
    found = []
    for i, facts in enumerate(ALIGNED):
        found += [replace(n, name=NodeName(f"{n.name}-{i}")) for n in fleet(*groups, facts=facts)]
    return found


def _of(cases: tuple[NodeCase, ...]) -> list[NodeTopology]:
    return [case.node(number) for number, case in enumerate(cases)]


FLEETS: dict[str, Callable[[], list[NodeTopology]]] = {
    "mixed": lambda: fleet(*MIXED),
    "aligned": _aligned,
    "allocators": lambda: _of(ALLOCATORS),
    "sockets": lambda: _of(SOCKETS),
    "shared": lambda: _of(SHARED),
}
"""The fleets by name."""


def as_it_may_be(node: NodeTopology, rng: random.Random) -> NodeTopology:
    """One of the nodes that may be behind a record: what it leaves unknown is drawn.

    What static CPU and Memory Managers do stays unknown; the emulated kubelet draws it each time.
    """
    facts, nodes = node.allocator, {n for gpu in node.gpus for n in gpu.topology_nodes or ()}
    if facts.topology_manager_policy == UNKNOWN:
        policy = rng.choice(("none", "best-effort", "restricted", "single-numa-node"))
        scope = rng.choice(("container", "pod"))
        facts = replace(facts, topology_manager_policy=policy, topology_manager_scope=scope)
    if facts.prefers_closest is None:
        facts = replace(facts, prefers_closest=rng.random() < 0.5)
    if facts.numa_distances is None and nodes:
        size = range(max(nodes) + 1 + rng.randint(0, 1))
        apart = {pair: rng.choice((11, 12, 16, 21, 32)) for pair in combinations(size, 2)}
        rows = (tuple(apart.get((min(a, b), max(a, b)), 10) for b in size) for a in size)
        facts = replace(facts, numa_distances=tuple(rows))
    served = tuple(
        replace(one, refuses_several=rng.random() < 0.5) if one.refuses_several is None else one
        for one in node.resources
    )
    return replace(node, allocator=facts, resources=served)
