"""Fleets and jobs of closed loops: which pods come, drawn by a seed, and on which nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.promises.pods import GpuContainer, Job, app, init, manifest, sidecar
from topology.core.devices import GpuResource, NodeName
from topology.core.graph import UNKNOWN, AllocatorFacts, NodeTopology
from topology.machines import machine


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A kind of pod of a workload: how often it comes beside the others, and what it asks.

    ``annotations`` are without our prefix.
    """

    weight: float
    name: str
    annotations: dict[str, str]
    containers: tuple[GpuContainer, ...]


NVLINK = {"link": "nvlink"}
EVERYTHING: tuple[PodTemplate, ...] = (
    PodTemplate(30, "single", {}, (app(1),)),
    PodTemplate(6, "double", {}, (app(2),)),
    PodTemplate(20, "pair", NVLINK, (app(2),)),
    PodTemplate(8, "triple", NVLINK, (app(3),)),
    PodTemplate(10, "quad", NVLINK, (app(4),)),
    PodTemplate(3, "octet", {"link": "nvlink", "shape": "connected"}, (app(8),)),
    PodTemplate(4, "two-containers", NVLINK, (app(1), app(1))),
    PodTemplate(3, "init", NVLINK, (init(1), app(2))),
    PodTemplate(2, "init-more", {}, (init(3), app(1))),
    PodTemplate(3, "sidecar", NVLINK, (sidecar(1), app(1))),
    PodTemplate(4, "preferred", {"link": "nvlink", "policy": "preferred"}, (app(2),)),
    PodTemplate(4, "numa", {"same-numa": "true"}, (app(2),)),
)
"""Every kind of request and container there is."""

CONTAINERS: tuple[PodTemplate, ...] = (
    PodTemplate(24, "single", {}, (app(1),)),
    PodTemplate(10, "pair", NVLINK, (app(2),)),
    PodTemplate(6, "quad", NVLINK, (app(4),)),
    PodTemplate(10, "three", NVLINK, (app(1), app(1), app(1))),
    PodTemplate(6, "three-plain", {}, (app(1), app(1), app(1))),
    PodTemplate(6, "one-two-one", NVLINK, (app(1), app(2), app(1))),
    PodTemplate(6, "four", NVLINK, (app(1), app(1), app(1), app(1))),
    PodTemplate(3, "four-plain", {}, (app(1), app(1), app(1), app(1))),
    PodTemplate(2, "five", {}, (app(1),) * 5),
    PodTemplate(5, "sidecar-init-app", NVLINK, (sidecar(1), init(1), app(1))),
    PodTemplate(5, "init-two-apps", NVLINK, (init(2), app(1), app(1))),
    PodTemplate(3, "two-inits", NVLINK, (init(1), init(2), app(2))),
    PodTemplate(3, "init-more", {}, (init(3), app(1), app(1))),
    PodTemplate(4, "sidecars", NVLINK, (sidecar(1), sidecar(1), app(1))),
    PodTemplate(3, "all-roles", {}, (init(1), sidecar(1), app(1), app(1))),
    PodTemplate(4, "numa-three", {"same-numa": "true"}, (app(1), app(1), app(1))),
)
"""Pods with three, four and five GPU containers of every role, among pods with one."""

SINGLES: tuple[PodTemplate, ...] = (
    PodTemplate(60, "single", {}, (app(1),)),
    PodTemplate(25, "pair", NVLINK, (app(2),)),
    PodTemplate(15, "quad", NVLINK, (app(4),)),
)
"""Single-GPU pods among pairs and quads that need their links."""

FOREIGN = PodTemplate(1, "foreign", {}, (app(1),))


def jobs(
    count: int,
    seed: int,
    *,
    rate: float,
    templates: tuple[PodTemplate, ...] = EVERYTHING,
    runs: float = 60.0,
    foreign: float = 0.0,
    patience: float = 60.0,
    whole_cpus: float = 0.0,
) -> list[Job]:
    """``count`` pods that come at ``rate`` a second and run ``runs`` seconds, both on average.

    A share ``foreign`` of them is bound by others, a share ``whole_cpus`` asks for whole CPUs, and
    three in ten are deleted before they end.
    """
    rng = random.Random(seed)
    now, found = 0.0, []
    for number in range(count):
        now += rng.expovariate(rate)
        template = rng.choices(templates, [one.weight for one in templates])[0]
        stranger = rng.random() < foreign
        if stranger:
            template = FOREIGN
        cpus = bool(whole_cpus) and rng.random() < whole_cpus
        written = manifest(
            template.name, number, template.annotations, *template.containers, whole_cpus=cpus
        )
        found.append(
            Job(
                now,
                1 + rng.expovariate(1 / runs),
                written,
                patience=patience,
                deleted=rng.random() < 0.3,
                foreign=stranger,
            )
        )
    return found


def mixed_allocators() -> list[NodeTopology]:
    """A fleet whose nodes choose in different ways, on machines of different shapes."""
    found: list[NodeTopology] = []
    for number, one in enumerate(ALLOCATORS):
        node = machine(one.machine).topology(f"{one.machine}-{number}")
        strategy = "none" if one.replicas == 1 else "time-slicing"
        served = (GpuResource("nvidia.com/gpu", strategy, one.replicas),)
        found.append(replace(node, allocator=one.facts, resources=served))
    return found


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


def _facts(
    policy: str, manager: str = "none", scope: str = "container", *, known: bool = True
) -> AllocatorFacts:
    hints = ("none", "None") if known else (None, None)
    return AllocatorFacts(policy, "v0.20.0", manager, scope, *hints)


@dataclass(frozen=True, slots=True)
class AllocatorCase:
    """A machine, how it chooses GPUs, and how many devices one GPU is served as."""

    machine: str
    facts: AllocatorFacts
    replicas: int = 1


ALLOCATORS = (
    AllocatorCase("dgx1-v100", _facts("best-effort")),
    AllocatorCase("dgx1-v100", _facts("any")),
    AllocatorCase("dgx1-v100", _facts("best-effort", "best-effort")),
    AllocatorCase("dgx1-v100", _facts("best-effort", "single-numa-node")),
    AllocatorCase("dgx1-p100", _facts("best-effort", "restricted", "pod")),
    AllocatorCase("dgx1-p100", _facts("best-effort", "best-effort", known=False)),
    AllocatorCase("a100-pcie-4-bridged", _facts("best-effort", "restricted")),
    AllocatorCase("a100-pcie-4-bridged", _facts("packed"), 2),
    AllocatorCase("a100-pcie-4-bridged", _facts("distributed"), 3),
    AllocatorCase("l40s-8", _facts("best-effort", "single-numa-node", "pod")),
    AllocatorCase("l40s-4", _facts("any", "single-numa-node", "pod")),
    AllocatorCase("hgx-h100-8", _facts("distributed", "restricted")),
    AllocatorCase("hgx-h100-8", _facts("best-effort", "best-effort", "pod")),
    AllocatorCase("dgx-a100", _facts("packed", "best-effort"), 2),
)
"""Machines with how they choose: the plugin's policy, the Topology Manager, shares of a GPU."""


def fleet(*groups: tuple[str, int], facts: AllocatorFacts | None = None) -> list[NodeTopology]:
    """So many nodes of each machine, chosen by ``facts`` where given."""
    nodes = [machine(name).topology(f"{name}-{i}") for name, count in groups for i in range(count)]
    if facts is None:
        return nodes
    return [replace(node, allocator=facts, name=NodeName(f"{node.name}-tm")) for node in nodes]


MIXED = (
    ("dgx1-v100", 4),
    ("dgx1-p100", 2),
    ("a100-pcie-4-bridged", 3),
    ("l40s-4", 1),
    ("hgx-h100-8", 3),
    ("dgx-a100", 2),
)
"""Fifteen nodes, ten of which are not all-linked."""
