"""The kubelet's Topology Manager: on which NUMA nodes a container's devices should lie.

This is how it decides (``pkg/kubelet/cm/topologymanager`` of Kubernetes 1.36), for each container
or, under scope ``pod``, once for the whole pod:

1. Every *provider* (the device manager for each resource, the CPU Manager, the Memory Manager)
   gives *hints*: sets of NUMA nodes on which it could serve the container. A hint is *preferred*
   if no smaller set of nodes could ever serve such a container, not even on an empty machine. A
   provider that cannot serve it anywhere has no possible hint; one that does not care about NUMA
   nodes gives none.
2. The manager *merges* them: it combines one hint of each provider, keeps the nodes that these have
   in common, and takes the best combination: preferred before not preferred, then the fewest nodes,
   then the lowest numbers (or, with the option ``prefer-closest-numa-nodes``, the nodes nearest to
   each other). A combination is preferred only if all its hints are preferred and name the same
   nodes. Where no hint is possible it is all nodes, not preferred.
3. The *policy* looks at the merged hint and admits the container, or refuses it with
   ``TopologyAffinityError``. Two policies differ in nothing else: each is one function below.

Which NUMA nodes a GPU is on, the device plugin says: one, several, or none. We know the hints of
the device manager for GPUs. We do not know those of the other providers, so unless they are known
to give none, every hint that the merge could end with counts, and so does the refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from topology.core.admission.kubelet import Kubelet
from topology.core.devices import Mask, positions
from topology.core.graph import UNKNOWN, Shape, hinted_nodes, placed_gpus
from topology.core.pools import Pool, gpus, only, total
from topology.core.requests import Exclusive

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

    ``gpus`` are the GPUs there, ``nodes`` counts them, and ``order`` has the bits of their numbers:
    the lower one wins a tie.
    """

    gpus: Hint
    nodes: int
    order: int
    preferred: bool


NO_HINT = DeviceHint(None, 0, 0, preferred=False)
"""What the merge may end with where the providers do not agree."""


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
    return len(hinted_nodes(shape)) > MAX_NUMA_NODES


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
    kubelet: Kubelet,
    free: Pool,
    reusable: Pool,
    count: int,
    *,
    only_gpu_plugin: bool,
    exclusive: Exclusive,
) -> Merged:
    """What the Topology Manager may decide for a container that asks for ``count`` devices."""
    policy = POLICIES.get(kubelet.facts.topology_manager_policy)
    if policy is None:
        return Merged(_every_union(kubelet), may_refuse=True)
    if not kubelet.facts.sees_topology:
        return Merged((None,), may_refuse=policy is not best_effort)  # the allocator is any
    silent = only_gpu_plugin and kubelet.managers_are_silent(exclusive)
    if not placed_gpus(kubelet.shape):  # the device manager does not care about NUMA nodes
        return Merged((None,), may_refuse=not silent and policy is not best_effort)
    ours = device_hints(kubelet, free, reusable, count)
    admitted = [hint for hint in ours if policy(hint)]
    if silent:
        return _alone(kubelet, policy, ours, admitted)
    if (
        policy is best_effort
    ):  # the others may leave any NUMA nodes, and it is admitted all the same
        return Merged(_every_union(kubelet))
    # All providers have to prefer one hint, so it is one of ours; or they do not, and it refuses.
    return Merged(_as_stored(kubelet, policy, admitted), may_refuse=True)


def device_hints(
    kubelet: Kubelet, free: Pool, reusable: Pool, count: int
) -> tuple[DeviceHint, ...]:
    """The device manager's hints: NUMA nodes whose free devices suffice, the fewest preferred.

    None where no hint is possible: too few devices are free, or too few of which a NUMA node is
    known.
    """
    width = kubelet.width
    if total(free, width) + total(reusable, width) < count:
        return ()
    nodes = hinted_nodes(kubelet.shape)
    placed = only(reusable, placed_gpus(kubelet.shape), width)
    reused, kept = gpus(placed, width), total(placed, width)
    found: list[tuple[Mask, int, int]] = []
    fewest = len(nodes)
    for n in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, n):
            mask = order = 0
            for number, there in chosen:
                mask |= there
                order |= 1 << number
            if mask.bit_count() * kubelet.replicas >= count:
                fewest = min(fewest, n)
            if not reused & ~mask and total(only(free, mask, width), width) + kept >= count:
                found.append((mask, n, order))
    return tuple(DeviceHint(mask, n, order, n == fewest) for mask, n, order in found)


def _alone(
    kubelet: Kubelet, policy: Policy, ours: tuple[DeviceHint, ...], admitted: list[DeviceHint]
) -> Merged:
    """The merge where nobody hints but the device manager for GPUs."""
    if not ours:  # no hint is possible: all NUMA nodes, not preferred
        if policy is not best_effort:
            return Merged((), may_refuse=True)
        return Merged((placed_gpus(kubelet.shape),))
    if not admitted:
        return Merged((), may_refuse=True)
    best = min((not hint.preferred, hint.nodes) for hint in admitted)
    tied = [hint for hint in admitted if (not hint.preferred, hint.nodes) == best]
    return Merged(_as_stored(kubelet, policy, _winners(kubelet, policy, tied)))


def _winners(kubelet: Kubelet, policy: Policy, tied: list[DeviceHint]) -> list[DeviceHint]:
    """Which of these hints may win: they are preferred alike and name as many NUMA nodes.

    Alone every NUMA node is as near to itself as any other, so distances say nothing.
    """
    lowest = min(tied, key=lambda hint: hint.order)
    facts = kubelet.facts
    if facts.prefers_closest is False or policy is single_numa_node or tied[0].nodes == 1:
        return [lowest]
    distances = facts.numa_distances
    if distances is None or max(hint.order for hint in tied) >> len(distances):
        return tied
    nearest = min(tied, key=lambda hint: (_apart(hint, distances), hint.order))
    return [nearest] if facts.prefers_closest else [lowest, nearest]


def _apart(hint: DeviceHint, distances: tuple[tuple[int, ...], ...]) -> int:
    """The sum of the distances between the hint's NUMA nodes, both ways."""
    nodes = positions(hint.order)
    return sum(distances[a][b] for a in nodes for b in nodes)


def _as_stored(kubelet: Kubelet, policy: Policy, hints: list[DeviceHint]) -> tuple[Hint, ...]:
    """The hints as the device manager gets them.

    ``single-numa-node`` lets go of a hint that names all NUMA nodes of the machine: of its only
    one. Where the machine's NUMA nodes are not known, that may be so or not.
    """
    found: list[Hint] = []
    for hint in hints:
        if policy is single_numa_node and len(hinted_nodes(kubelet.shape)) == 1:
            machine = kubelet.facts.numa_distances
            if machine is None:
                found += [hint.gpus, None]
            else:
                found.append(None if len(machine) == 1 else hint.gpus)
        else:
            found.append(hint.gpus)
    return tuple(dict.fromkeys(found))


def _every_union(kubelet: Kubelet) -> tuple[Hint, ...]:
    """The GPUs of every set of NUMA nodes, and no hint at all."""
    nodes = hinted_nodes(kubelet.shape)
    found: dict[Hint, None] = {None: None}
    for n in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, n):
            mask = 0
            for _, there in chosen:
                mask |= there
            found[mask] = None
    return tuple(found)
