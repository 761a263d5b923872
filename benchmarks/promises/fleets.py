"""The nodes of closed loops, with the configuration of their kubelets and device plugins."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

from topology.core.devices import GpuResource
from topology.core.graph import UNKNOWN, AllocatorConfig, NodeTopology
from topology.machines import machine
from topology.machines.mig import cut

# Fifteen nodes, ten of which are not all-linked.
MIXED = (
    ("dgx1-v100", 4),
    ("dgx1-p100", 2),
    ("a100-pcie-4-bridged", 3),
    ("l40s-4", 1),
    ("hgx-h100-8", 3),
    ("dgx-a100", 2),
)

# Policies of the CPU and the Memory Manager. UNSEEN means that the agent could not read them.
NONE, STATIC, UNSEEN = ("none", "None"), ("static", "Static"), (None, None)


def _config(
    policy: str,
    manager: str = "none",
    scope: str = "container",
    managers: tuple[str | None, str | None] = NONE,
    *,
    plugin: str = "v0.20.0",
) -> AllocatorConfig:
    return AllocatorConfig(policy, plugin, manager, scope, *managers)


def _closest(
    config: AllocatorConfig, distances: tuple[tuple[int, ...], ...] | None = None
) -> AllocatorConfig:
    """Return the same configuration with a Topology Manager that prefers the closest NUMA nodes."""
    return replace(config, prefers_closest=True, numa_distances=distances)


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A machine, and the configuration of its kubelet and device plugin."""

    machine: str
    config: AllocatorConfig
    # The NUMA nodes that the plugin names for each GPU, if they are not the machine's own.
    nodes: tuple[tuple[int, ...], ...] = ()
    served: GpuResource = GpuResource()  # noqa: RUF009 (it is frozen); how GPUs are shared
    # The MIG instances of each GPU. ``served`` says how often each instance is shared.
    profiles: tuple[str, ...] = ()
    # With ``mixed`` each profile is a resource of its own, and the loop plays the smallest.
    strategy: str = "single"

    def node(self, number: int) -> NodeTopology:
        """Return the node with this number."""
        node = machine(self.machine).topology(f"{self.machine}-{number}")
        gpus = node.gpus
        if self.nodes:
            named = zip(gpus, self.nodes, strict=True)
            gpus = tuple(replace(gpu, topology_nodes=nodes) for gpu, nodes in named)
        node = replace(node, gpus=gpus, allocator=self.config, resources=(self.served,))
        if not self.profiles:
            return node
        replicas, refuses = self.served.replicas, self.served.refuses_several
        node = cut(node, self.profiles, strategy=self.strategy, replicas=replicas)
        served = (replace(one, refuses_several=refuses) for one in node.resources)
        return replace(node, resources=tuple(served))


def _shared(strategy: str, replicas: int, *, refuses: bool | None = None) -> GpuResource:
    return GpuResource("nvidia.com/gpu", strategy, replicas, refuses)


# Topology Managers of every kind.
ALIGNED = tuple(
    NodeCase(name, config)
    for config in (
        _config("best-effort", "best-effort"),
        _config("best-effort", "best-effort", managers=UNSEEN),
        _config("best-effort", "restricted", "pod"),
        _config("best-effort", "single-numa-node"),
    )
    for name in ("dgx1-v100", "dgx1-v100", "a100-pcie-4-bridged", "l40s-8")
)

# Machines with different plugin policies, Topology Managers and shares of a GPU.
ALLOCATORS = (
    NodeCase("dgx1-v100", _config("best-effort")),
    NodeCase("dgx1-v100", _config("any")),
    NodeCase("dgx1-v100", _config("best-effort", "best-effort")),
    NodeCase("dgx1-v100", _config("best-effort", "single-numa-node")),
    NodeCase("dgx1-p100", _config("best-effort", "restricted", "pod")),
    NodeCase("dgx1-p100", _config("best-effort", "best-effort", managers=UNSEEN)),
    NodeCase("a100-pcie-4-bridged", _config("best-effort", "restricted")),
    NodeCase("a100-pcie-4-bridged", _config("packed"), served=_shared("time-slicing", 2)),
    NodeCase("a100-pcie-4-bridged", _config("distributed"), served=_shared("time-slicing", 3)),
    NodeCase("l40s-8", _config("best-effort", "single-numa-node", "pod")),
    NodeCase("l40s-4", _config("any", "single-numa-node", "pod")),
    NodeCase("hgx-h100-8", _config("distributed", "restricted")),
    NodeCase("hgx-h100-8", _config("best-effort", "best-effort", "pod")),
    NodeCase("dgx-a100", _config("packed", "best-effort"), served=_shared("time-slicing", 2)),
)

# Distances of four NUMA nodes: 0 is near 2, 1 is near 3.
FOUR_NEAR_TWO = (
    (10, 32, 12, 32),
    (32, 10, 32, 12),
    (12, 32, 10, 32),
    (32, 12, 32, 10),
)

# Machines with two or more NUMA nodes, under every policy. They include static managers, options of
# the Topology Manager, and GPUs on no NUMA node or on several.
SOCKETS = (
    NodeCase("dgx1-v100", _config("best-effort", "single-numa-node", managers=STATIC)),
    NodeCase("dgx1-v100", _config("best-effort", "restricted", "pod", STATIC)),
    NodeCase("dgx1-v100", _config("best-effort", "best-effort", managers=("static", "None"))),
    NodeCase("dgx1-p100", _config("best-effort", "best-effort", "pod", ("none", "Static"))),
    NodeCase("hgx-h100-8", _config("best-effort", "restricted", managers=UNSEEN)),
    NodeCase("dgx1-v100", _config("best-effort", UNKNOWN)),
    NodeCase("a100-pcie-4-bridged", _config("best-effort", "single-numa-node", "pod", STATIC)),
    NodeCase(
        "nd96asr-v4",
        _closest(_config("best-effort", "restricted"), FOUR_NEAR_TWO),
    ),
    NodeCase("nd96asr-v4", _config("best-effort", "best-effort", "pod", STATIC)),
    NodeCase(
        "hgx-a100-4-nps4",
        _closest(_config("any", "restricted", "pod"), FOUR_NEAR_TWO),
    ),
    NodeCase("dgx-a100", _closest(_config("best-effort", "best-effort", managers=STATIC))),
    NodeCase("p3.16xlarge", _config("best-effort", "restricted", managers=STATIC)),
    NodeCase(
        "dgx1-v100",
        _config("best-effort", "best-effort"),
        nodes=((0,), (0,), (), (0,), (1,), (), (1,), (1,)),
    ),
    NodeCase(
        "dgx1-v100",
        _config("best-effort", "restricted"),
        nodes=((0,), (0,), (), (0,), (1,), (), (1,), (1,)),
    ),
    NodeCase(
        "dgx1-p100",
        _config("best-effort", "best-effort", managers=STATIC),
        nodes=((0,), (0, 1), (0,), (0,), (1,), (1,), (0, 1), (1,)),
    ),
)

# Shared GPUs. Some plugins refuse a container more than one share, and of some this is unknown.
SHARED = (
    NodeCase("dgx1-v100", _config("best-effort")),
    NodeCase("a100-pcie-4-bridged", _config("distributed"), served=_shared("time-slicing", 3)),
    NodeCase(
        "a100-pcie-4-bridged",
        _config("packed"),
        served=_shared("time-slicing", 2, refuses=True),
    ),
    NodeCase(
        "a100-pcie-4-bridged",
        _config("distributed"),
        served=_shared("time-slicing", 2, refuses=False),
    ),
    NodeCase("a100-pcie-4-bridged", _config("distributed"), served=_shared("mps", 4)),
    NodeCase("l40s-4", _config("distributed", plugin="v0.19.3"), served=_shared("mps", 3)),
    NodeCase("hgx-h100-8", _config("packed"), served=_shared("mps", 2, refuses=False)),
    NodeCase("hgx-h100-8", _config("distributed"), served=_shared("mps", 2, refuses=True)),
    NodeCase("dgx1-v100", _config("distributed", "restricted"), served=_shared("time-slicing", 2)),
)


# Shared GPUs and MIG instances, under every policy. Their memory is scarce.
MEMORY = (
    NodeCase(
        "a100-pcie-4-bridged",
        _config("distributed"),
        served=_shared("time-slicing", 4, refuses=False),
    ),
    NodeCase(
        "a100-pcie-4-bridged",
        _config("packed"),
        served=_shared("time-slicing", 3, refuses=False),
    ),
    NodeCase("a30-4-bridged", _config("distributed"), served=_shared("mps", 3)),
    NodeCase("l40s-4", _config("distributed", plugin="v0.19.3"), served=_shared("time-slicing", 5)),
    NodeCase("l40s-4", _config("any"), served=_shared("time-slicing", 2, refuses=False)),
    NodeCase(
        "hgx-h100-4",
        _config("distributed", "restricted"),
        served=_shared("time-slicing", 3, refuses=False),
    ),
    NodeCase("hgx-h100-8", _config("packed"), served=_shared("mps", 2, refuses=False)),
    NodeCase("dgx1-v100", _config("distributed"), served=_shared("time-slicing", 2, refuses=False)),
    NodeCase(
        "a30-4-bridged",
        _config("distributed"),
        served=_shared("time-slicing", 3, refuses=False),
        profiles=("2g.12gb",) * 2,
    ),
)

_SEVENTHS, _MIXED_PROFILES = ("1g.5gb",) * 7, ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")

# GPUs cut into MIG instances of one profile, under every policy. Some instances are time-sliced.
SLICED = (
    NodeCase("dgx-a100", _config("distributed"), profiles=_SEVENTHS),
    NodeCase("hgx-a100-4", _config("distributed", "restricted"), profiles=_SEVENTHS),
    NodeCase("hgx-a100-4", _config("distributed", plugin="v0.19.3"), profiles=("3g.20gb",) * 2),
    NodeCase("a30-4-bridged", _config("packed"), profiles=("1g.6gb",) * 4),
    NodeCase("a30-4-bridged", _config("any", "single-numa-node"), profiles=("2g.12gb",) * 2),
    NodeCase("hgx-h100-4", _config("distributed", "best-effort", "pod"), profiles=("2g.20gb",) * 3),
    NodeCase("h100-pcie-1", _config("distributed"), profiles=("1g.10gb",) * 7),
    NodeCase("h100-pcie-1", _config("distributed"), profiles=("3g.40gb",) * 2),
    NodeCase("gh200", _config("distributed"), profiles=("1g.12gb",) * 7),
    NodeCase(
        "h100-pcie-1",
        _config("distributed"),
        served=_shared("time-slicing", 2, refuses=False),
        profiles=("2g.20gb",) * 3,
    ),
    NodeCase(
        "a30-4-bridged",
        _config("packed"),
        served=_shared("time-slicing", 3),
        profiles=("4g.24gb",),
    ),
)

# GPUs cut into MIG instances of several profiles.
PROFILES = (
    NodeCase("dgx-a100", _config("best-effort"), profiles=_MIXED_PROFILES, strategy="mixed"),
    NodeCase("hgx-a100-4", _config("any"), profiles=_MIXED_PROFILES, strategy="mixed"),
    NodeCase(
        "hgx-a100-4",
        _config("distributed", "restricted"),
        profiles=("4g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        strategy="mixed",
    ),
)


def fleet(*groups: tuple[str, int]) -> list[NodeTopology]:
    """Return the given number of nodes of each machine."""
    return [machine(name).topology(f"{name}-{i}") for name, count in groups for i in range(count)]


def _of(cases: tuple[NodeCase, ...]) -> list[NodeTopology]:
    return [case.node(number) for number, case in enumerate(cases)]


def _racks() -> list[NodeTopology]:
    """Return two racks of six trays, and other machines, some of which are not all-linked."""
    trays = [
        machine("gb200-tray").topology(f"{rack}-{i}", group=rack)
        for rack in ("east", "west")
        for i in range(6)
    ]
    others = (("dgx1-v100", 4), ("hgx-h100-8", 2), ("a100-pcie-4-bridged", 2), ("dgx-a100", 1))
    return [*trays, *fleet(*others)]


# The fleets by name.
FLEETS: dict[str, Callable[[], list[NodeTopology]]] = {
    "mixed": lambda: fleet(*MIXED),
    "aligned": lambda: _of(ALIGNED),
    "allocators": lambda: _of(ALLOCATORS),
    "sockets": lambda: _of(SOCKETS),
    "shared": lambda: _of(SHARED),
    "memory": lambda: _of(MEMORY),
    "sliced": lambda: _of(SLICED),
    "profiles": lambda: _of(PROFILES),
    "racks": _racks,
}


def as_it_may_be(node: NodeTopology, rng: random.Random) -> NodeTopology:
    """Return a node that agrees with a record, with values drawn for everything unknown.

    The behaviour of unknown static CPU and Memory Managers is not drawn here: the emulated kubelet
    draws it at each admission.
    """
    config, nodes = node.allocator, {n for gpu in node.gpus for n in gpu.topology_nodes or ()}
    if config.topology_manager_policy == UNKNOWN:
        policy = rng.choice(("none", "best-effort", "restricted", "single-numa-node"))
        scope = rng.choice(("container", "pod"))
        config = replace(config, topology_manager_policy=policy, topology_manager_scope=scope)
    if config.prefers_closest is None:
        config = replace(config, prefers_closest=rng.random() < 0.5)
    if config.numa_distances is None and nodes:
        size = range(max(nodes) + 1 + rng.randint(0, 1))
        apart = {pair: rng.choice((11, 12, 16, 21, 32)) for pair in combinations(size, 2)}
        rows = (tuple(apart.get((min(a, b), max(a, b)), 10) for b in size) for a in size)
        config = replace(config, numa_distances=tuple(rows))
    served = tuple(
        replace(one, refuses_several=rng.random() < 0.5) if one.refuses_several is None else one
        for one in node.resources
    )
    return replace(node, allocator=config, resources=served)
