"""Fleets and jobs for the worlds: what runs where, drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.promises.closed_loop import Job, manifest
from topology.core.devices import GpuResource, NodeName
from topology.core.graph import AllocatorFacts, NodeTopology
from topology.machines import machine

Kind = tuple[float, str, dict[str, str], tuple[tuple[str, int], ...]]

NVLINK = {"link": "nvlink"}
EVERYTHING: tuple[Kind, ...] = (
    # weight, name, annotations, containers
    (30, "single", {}, (("app", 1),)),
    (6, "double", {}, (("app", 2),)),
    (20, "pair", NVLINK, (("app", 2),)),
    (8, "triple", NVLINK, (("app", 3),)),
    (10, "quad", NVLINK, (("app", 4),)),
    (3, "octet", {"link": "nvlink", "shape": "connected"}, (("app", 8),)),
    (4, "two-containers", NVLINK, (("app", 1), ("app", 1))),
    (3, "init", NVLINK, (("init", 1), ("app", 2))),
    (2, "init-more", {}, (("init", 3), ("app", 1))),
    (3, "sidecar", NVLINK, (("sidecar", 1), ("app", 1))),
    (4, "preferred", {"link": "nvlink", "policy": "preferred"}, (("app", 2),)),
    (4, "numa", {"same-numa": "true"}, (("app", 2),)),
)
"""Every kind of request and container there is."""

CONTAINERS: tuple[Kind, ...] = (
    (24, "single", {}, (("app", 1),)),
    (10, "pair", NVLINK, (("app", 2),)),
    (6, "quad", NVLINK, (("app", 4),)),
    (10, "three", NVLINK, (("app", 1), ("app", 1), ("app", 1))),
    (6, "three-plain", {}, (("app", 1), ("app", 1), ("app", 1))),
    (6, "one-two-one", NVLINK, (("app", 1), ("app", 2), ("app", 1))),
    (6, "four", NVLINK, (("app", 1), ("app", 1), ("app", 1), ("app", 1))),
    (3, "four-plain", {}, (("app", 1), ("app", 1), ("app", 1), ("app", 1))),
    (2, "five", {}, (("app", 1),) * 5),
    (5, "sidecar-init-app", NVLINK, (("sidecar", 1), ("init", 1), ("app", 1))),
    (5, "init-two-apps", NVLINK, (("init", 2), ("app", 1), ("app", 1))),
    (3, "two-inits", NVLINK, (("init", 1), ("init", 2), ("app", 2))),
    (3, "init-more", {}, (("init", 3), ("app", 1), ("app", 1))),
    (4, "sidecars", NVLINK, (("sidecar", 1), ("sidecar", 1), ("app", 1))),
    (3, "all-roles", {}, (("init", 1), ("sidecar", 1), ("app", 1), ("app", 1))),
    (4, "numa-three", {"same-numa": "true"}, (("app", 1), ("app", 1), ("app", 1))),
)
"""Pods with three, four and five GPU containers of every role, among pods with one."""

SINGLES: tuple[Kind, ...] = (
    (60, "single", {}, (("app", 1),)),
    (25, "pair", NVLINK, (("app", 2),)),
    (15, "quad", NVLINK, (("app", 4),)),
)
"""Single-GPU pods among pairs and quads that need their links."""

FOREIGN: Kind = (1, "foreign", {}, (("app", 1),))


def jobs(
    count: int,
    seed: int,
    *,
    rate: float,
    kinds: tuple[Kind, ...] = EVERYTHING,
    runs: float = 60.0,
    foreign: float = 0.0,
    patience: float = 60.0,
) -> list[Job]:
    """``count`` pods that come at ``rate`` a second and run ``runs`` seconds, both on average.

    A share ``foreign`` of them is bound by others, three in ten are deleted before they end.
    """
    rng = random.Random(seed)
    now, found = 0.0, []
    for number in range(count):
        now += rng.expovariate(rate)
        _, name, annotations, containers = rng.choices(kinds, [kind[0] for kind in kinds])[0]
        stranger = rng.random() < foreign
        if stranger:
            _, name, annotations, containers = FOREIGN
        found.append(
            Job(
                now,
                1 + rng.expovariate(1 / runs),
                manifest(name, number, annotations, *containers),
                patience=patience,
                deleted=rng.random() < 0.3,
                foreign=stranger,
            )
        )
    return found


def mixed_allocators() -> list[NodeTopology]:
    """A fleet whose nodes choose in different ways, on machines of different shapes."""
    found: list[NodeTopology] = []
    for number, (name, facts, replicas) in enumerate(ALLOCATORS):
        node = machine(name).topology(f"{name}-{number}")
        strategy = "none" if replicas == 1 else "time-slicing"
        served = (GpuResource("nvidia.com/gpu", strategy, replicas),)
        found.append(replace(node, allocator=facts, resources=served))
    return found


def _facts(
    policy: str, manager: str = "none", scope: str = "container", *, known: bool = True
) -> AllocatorFacts:
    hints = ("none", "None") if known else (None, None)
    return AllocatorFacts(policy, "v0.20.0", manager, scope, *hints)


ALLOCATORS: tuple[tuple[str, AllocatorFacts, int], ...] = (
    ("dgx1-v100", _facts("best-effort"), 1),
    ("dgx1-v100", _facts("any"), 1),
    ("dgx1-v100", _facts("best-effort", "best-effort"), 1),
    ("dgx1-v100", _facts("best-effort", "single-numa-node"), 1),
    ("dgx1-p100", _facts("best-effort", "restricted", "pod"), 1),
    ("dgx1-p100", _facts("best-effort", "best-effort", known=False), 1),
    ("a100-pcie-4-bridged", _facts("best-effort", "restricted"), 1),
    ("a100-pcie-4-bridged", _facts("packed"), 2),
    ("a100-pcie-4-bridged", _facts("distributed"), 3),
    ("l40s-8", _facts("best-effort", "single-numa-node", "pod"), 1),
    ("l40s-4", _facts("any", "single-numa-node", "pod"), 1),
    ("hgx-h100-8", _facts("distributed", "restricted"), 1),
    ("hgx-h100-8", _facts("best-effort", "best-effort", "pod"), 1),
    ("dgx-a100", _facts("packed", "best-effort"), 2),
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
