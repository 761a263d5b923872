"""The kubelet's Topology Manager: on which NUMA nodes a container's devices should lie.

This is how it decides (``pkg/kubelet/cm/topologymanager`` of Kubernetes 1.36), for each container
or, under scope ``pod``, once for the whole pod:

1. Every *provider* (the device manager for each resource, the CPU Manager, the Memory Manager)
   gives *hints*: sets of NUMA nodes on which it could serve the container. A hint is *preferred*
   if no smaller set of nodes could ever serve such a container, not even on an empty machine.
2. The manager *merges* them: it combines one hint of each provider, keeps the nodes that these have
   in common, and takes the best combination: preferred before not preferred, then the fewest nodes.
   A combination is preferred only if all its hints are preferred and name the same nodes.
3. The *policy* looks at the merged hint and admits the container, or refuses it with
   ``TopologyAffinityError``. Two policies differ in nothing else: each is one function below.

We know the hints of the device manager for GPUs. We do not know those of the other providers, so
unless they are known to give none, every hint that the merge could end with counts, and so does the
refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from topology.core.admission.kubelet import Kubelet
from topology.core.devices import Mask
from topology.core.graph import UNKNOWN, Shape, numa_nodes
from topology.core.pools import Pool, gpus, only, total

AFFINITY = "topology-affinity"
"""The Topology Manager may refuse the pod (TopologyAffinityError)."""
TOO_MANY_NODES = "too-many-numa-nodes"
"""More NUMA nodes have GPUs than hints are followed for."""

MAX_NUMA_NODES = 8
"""The kubelet's own limit for the Topology Manager, unless it is raised."""

Hint = Mask | None
"""GPUs on the hinted NUMA nodes; None where there is no hint."""


@dataclass(frozen=True, slots=True)
class DeviceHint:
    """NUMA nodes that a provider hints at.

    ``gpus`` are the GPUs there, ``nodes`` counts them, and ``order`` breaks ties as the kubelet
    does.
    """

    gpus: Hint
    nodes: int
    order: int
    preferred: bool


NO_HINT = DeviceHint(None, 0, 0, preferred=False)
"""What the merge ends with where the device manager has no hint or the providers do not agree."""


Policy = Callable[[DeviceHint], bool]
"""Whether a policy admits a container with this merged hint."""


def best_effort(hint: DeviceHint) -> bool:
    """Policy ``best-effort`` admits every container, aligned or not."""
    return True


def restricted(hint: DeviceHint) -> bool:
    """Policy ``restricted`` admits a container on as few NUMA nodes as its count ever needs."""
    return hint.preferred


def single_numa_node(hint: DeviceHint) -> bool:
    """Policy ``single-numa-node`` admits a container on one NUMA node only."""
    return hint.preferred and hint.nodes == 1


POLICIES: dict[str, Policy] = {
    "best-effort": best_effort,
    "restricted": restricted,
    "single-numa-node": single_numa_node,
}
"""By the name in the kubelet's configuration. Under ``none`` there are no hints, and one that
nobody could tell (``unknown``) may do what any of these does."""


class Merged(NamedTuple):
    """Every hint that the merge may end with, and whether the policy may refuse instead."""

    hints: tuple[Hint, ...]
    may_refuse: bool = False


def too_many_nodes(shape: Shape) -> bool:
    """Whether so many NUMA nodes have GPUs that hints are not followed."""
    return len(numa_nodes(shape)) > MAX_NUMA_NODES


def hints_whole_pods(kubelet: Kubelet) -> bool:
    """Whether one hint holds for all containers of a pod.

    Under a policy that nobody could tell each container may have any hint.
    """
    facts = kubelet.facts
    return (
        kubelet.aligns
        and facts.topology_manager_scope == "pod"
        and facts.topology_manager_policy != UNKNOWN
    )


def merged_hints(
    kubelet: Kubelet, free: Pool, reusable: Pool, count: int, *, only_gpu_plugin: bool
) -> Merged:
    """What the Topology Manager may decide for a container that asks for ``count`` devices."""
    policy = POLICIES.get(kubelet.facts.topology_manager_policy)
    if policy is None:
        return Merged(_every_union(kubelet), may_refuse=True)
    ours = device_hints(kubelet, free, reusable, count) or (NO_HINT,)
    admitted = [hint for hint in ours if policy(hint)]
    if _others_are_silent(kubelet, only_gpu_plugin):
        if not admitted:
            return Merged((), may_refuse=True)
        best = min(admitted, key=lambda hint: (not hint.preferred, hint.nodes, hint.order))
        return Merged((best.gpus,))
    if policy(NO_HINT):  # the others may leave any NUMA nodes, and it is admitted all the same
        return Merged(_every_union(kubelet))
    # All providers have to prefer one hint, so it is one of ours; or they do not, and it refuses.
    return Merged(tuple(hint.gpus for hint in admitted), may_refuse=True)


def device_hints(
    kubelet: Kubelet, free: Pool, reusable: Pool, count: int
) -> tuple[DeviceHint, ...]:
    """The device manager's hints: NUMA nodes whose free devices suffice, the fewest preferred."""
    width = kubelet.width
    nodes = numa_nodes(kubelet.shape)
    here = [total(only(free, node, width), width) for node in nodes]
    reused, kept = gpus(reusable, width), total(reusable, width)
    found: list[tuple[Mask, int, int]] = []
    fewest = len(nodes)
    for n in range(1, len(nodes) + 1):
        for chosen in combinations(range(len(nodes)), n):
            mask = sum(nodes[i] for i in chosen)
            if mask.bit_count() * kubelet.replicas >= count:
                fewest = min(fewest, n)
            if not reused & ~mask and sum(here[i] for i in chosen) + kept >= count:
                found.append((mask, n, sum(1 << i for i in chosen)))
    return tuple(DeviceHint(mask, n, order, n == fewest) for mask, n, order in found)


def _others_are_silent(kubelet: Kubelet, only_gpu_plugin: bool) -> bool:
    """Whether no provider but the device manager for GPUs gives hints for this pod."""
    facts = kubelet.facts
    silent = facts.cpu_manager_policy == "none" and facts.memory_manager_policy == "None"
    return silent and only_gpu_plugin


def _every_union(kubelet: Kubelet) -> tuple[Hint, ...]:
    """Every union of NUMA nodes, and no hint at all."""
    nodes = numa_nodes(kubelet.shape)
    found: list[Hint] = [None]
    for n in range(1, len(nodes) + 1):
        found += [sum(chosen) for chosen in combinations(nodes, n)]
    return tuple(found)
