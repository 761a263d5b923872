"""The kubelet's Topology Manager: it chooses the NUMA nodes for a container's devices.

It decides for each container or, under scope ``pod``, once for the whole pod
(``pkg/kubelet/cm/topologymanager`` of Kubernetes 1.36):

1. Every *provider* (the device manager for each resource, the CPU Manager, the Memory Manager)
   gives *hints*: sets of NUMA nodes on which it could serve the container. A hint is *preferred*
   if no smaller set of nodes could ever serve such a container, not even on an empty machine. A
   provider that cannot serve the container anywhere has no possible hint. A provider for which
   NUMA nodes do not matter gives no hints.
2. The manager *merges* the hints: it combines one hint of each provider and keeps the nodes that
   these have in common. It takes the best combination: preferred before not preferred, then the
   fewest nodes, then the lowest numbers. With the option ``prefer-closest-numa-nodes`` the nodes
   nearest to each other come before the lowest numbers. A combination is preferred only if all its
   hints are preferred and name the same nodes. If no hint is possible, the merged hint is all
   nodes, not preferred.
3. The *policy* checks the merged hint. ``best-effort`` admits every container. ``restricted``
   refuses a container whose hint is not preferred, with ``TopologyAffinityError``.
   ``single-numa-node`` does the same, and considers only hints of one NUMA node.

The device plugin says on which NUMA nodes a GPU is: one, several, or none. This module computes the
device manager's hints for GPUs (:func:`device_hints`). The other providers' hints are arguments
(:data:`~topology.core.admission.hintproviders.KnownHints`). If these are unknown, the result has
every hint that the merge could result in, and the refusal.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

from topology.core.admission.devicemanager import DeviceManager
from topology.core.admission.hintproviders import MAX_NUMA_NODES, KnownHints
from topology.core.admission.topologyhints import (
    NO_HINTS,
    Hints,
    ProviderHints,
    Ranking,
    TopologyHint,
    not_preferred,
    on_one_node,
    preferred,
    rankings,
)
from topology.core.devices import Mask
from topology.core.devicesets import DeviceSet, gpus, only, total
from topology.core.graph import UNKNOWN
from topology.core.memo import memoized
from topology.core.shape import Shape, hinted_nodes, placed_gpus

TOO_MANY_NODES = "too-many-numa-nodes"  # GPUs are on more than MAX_NUMA_NODES NUMA nodes

Aligned = Mask | None  # GPUs on the hinted NUMA nodes; None if there is no hint

BEST_EFFORT = "best-effort"
SINGLE = "single-numa-node"
# The policies by their names in the kubelet's configuration. Under ``none`` there are no hints. A
# policy that could not be determined (``unknown``) may do what any of these does.
POLICIES = (BEST_EFFORT, "restricted", SINGLE)


class Merged(NamedTuple):
    """Every hint that the merge may result in."""

    hints: tuple[Aligned, ...]
    may_refuse: bool = False  # whether the policy may refuse the container instead
    short_of_memory: bool = False  # whether the Memory Manager may refuse one of the hints


def too_many_nodes(shape: Shape) -> bool:
    """Check whether GPUs are on more NUMA nodes than hints are followed for."""
    return len(hinted_nodes(shape)) > MAX_NUMA_NODES


def hints_whole_pods(kubelet: DeviceManager) -> bool:
    """Check whether one hint holds for all containers of a pod.

    Under an unknown policy each container may have any hint.
    """
    config = kubelet.config
    return (
        kubelet.aligns
        and config.topology_manager_scope == "pod"
        and config.topology_manager_policy != UNKNOWN
    )


def merged_hints(
    kubelet: DeviceManager,
    free: DeviceSet,
    reusable: DeviceSet,
    count: int,
    others: KnownHints = NO_HINTS,
) -> Merged:
    """Return what the Topology Manager may decide for a container that asks for ``count`` devices.

    ``others`` are the hints of the other providers.
    """
    policy = kubelet.config.topology_manager_policy
    if policy not in POLICIES:
        return Merged(_every_union(kubelet), may_refuse=True)
    strict = policy != BEST_EFFORT
    if not kubelet.config.sees_topology:
        return Merged((None,), may_refuse=strict)  # the allocator is `any`
    placed = bool(placed_gpus(kubelet.shape))  # if false, the device manager gives no hints
    ours = (device_hints(kubelet, free, reusable, count),) * placed
    if others is not None:
        return _merged(kubelet, others, ours)
    if not placed:
        return Merged((None,), may_refuse=strict)
    if not strict:  # the merge may leave any NUMA nodes, and the policy admits the container
        return Merged(_every_union(kubelet))
    # If all providers prefer the same NUMA nodes, these are one of the device manager's hints.
    # Otherwise the policy refuses the container.
    admitted = on_one_node(ours[0]) if policy == SINGLE else ours[0]
    return Merged(_stored(kubelet, [h.nodes for h in admitted if h.preferred]), may_refuse=True)


def device_hints(
    kubelet: DeviceManager, free: DeviceSet, reusable: DeviceSet, count: int
) -> ProviderHints:
    """Return the device manager's hints: the NUMA nodes whose free devices suffice, the fewest
    preferred.

    Empty if too few devices are free, or too few of those whose NUMA node is known. NUMA nodes
    without GPUs are left out, because they make no hint better.
    """
    width = kubelet.width
    if total(free, width) + total(reusable, width) < count:
        return ()
    placed = only(reusable, placed_gpus(kubelet.shape), width)
    reused, kept = gpus(placed, width), total(placed, width)
    hinted: list[Mask] = []
    fewest = len(hinted_nodes(kubelet.shape))
    for numbers, there in _unions(kubelet.shape):
        if kubelet.devices_on(there) >= count:
            fewest = min(fewest, numbers.bit_count())
        if not reused & ~there and total(only(free, there, width), width) + kept >= count:
            hinted.append(numbers)
    return tuple(TopologyHint(numbers, numbers.bit_count() == fewest) for numbers in hinted)


@memoized
def _unions(shape: Shape) -> tuple[tuple[Mask, Mask], ...]:
    """Return every set of NUMA nodes with GPUs, the smaller sets first, as their numbers and their
    GPUs."""
    nodes = hinted_nodes(shape)
    chosen = [some for n in range(1, len(nodes) + 1) for some in combinations(nodes, n)]
    return tuple(
        (sum(1 << number for number, _ in some), reduce(or_, (there for _, there in some)))
        for some in chosen
    )


def _merged(kubelet: DeviceManager, others: Hints, ours: tuple[ProviderHints, ...]) -> Merged:
    """Return the merge of hints that are known, or known to be possible."""
    providers = [*others.providers, *ours]
    if not providers:
        return Merged((None,))
    config = kubelet.config
    single = config.topology_manager_policy == SINGLE
    ranked = rankings(False if single else config.prefers_closest, config.numa_distances)
    merged = preferred([on_one_node(p) if single else p for p in providers], ranked)
    hints = _stored(kubelet, merged.nodes)
    if config.topology_manager_policy != BEST_EFFORT or not merged.may_fail:
        return Merged(hints, merged.may_fail)
    loose = None if merged.nodes else _not_preferred(kubelet, providers, ranked)
    more = _every_union(kubelet) if loose is None else _stored(kubelet, loose)
    accepted = others.accepted
    short = accepted is not None and (loose is None or not accepted.issuperset(loose))
    return Merged(tuple(dict.fromkeys((*hints, *more))), short_of_memory=short)


def _not_preferred(
    kubelet: DeviceManager, providers: list[ProviderHints], ranked: tuple[Ranking, ...]
) -> tuple[Mask, ...] | None:
    """Return the possible merges if no combination is preferred; None if they are unknown.

    The device manager of Kubernetes 1.36 gives hints only for NUMA nodes with devices, older ones
    for all NUMA nodes.
    """
    with_gpus = sum(1 << number for number, _ in hinted_nodes(kubelet.shape))
    if len(providers) == 1:  # NUMA nodes without GPUs change nothing
        return not_preferred(providers, with_gpus, ranked)
    distances = kubelet.config.numa_distances
    if (
        not with_gpus
        or distances is None
        or with_gpus >> len(distances)
        or len(distances) > MAX_NUMA_NODES
    ):
        return None
    every = (1 << len(distances)) - 1
    without = every & ~with_gpus
    more = [m for m in range(every + 1) if not m & ~without]
    *others, ours = providers
    widened = tuple(TopologyHint(hint.nodes | m, False) for hint in ours for m in more)
    newer, older = (not_preferred([*others, hints], every, ranked) for hints in (ours, widened))
    return None if newer is None or older is None else tuple(dict.fromkeys((*newer, *older)))


def _stored(kubelet: DeviceManager, merged: Sequence[Mask]) -> tuple[Aligned, ...]:
    """Return the merged NUMA nodes in the device manager's form: the GPUs on them.

    If the machine has only one NUMA node, ``single-numa-node`` drops a hint that names it. If the
    machine's NUMA nodes are unknown, the policy may drop the hint or keep it.
    """
    nodes, machine = hinted_nodes(kubelet.shape), kubelet.config.numa_distances
    stored: list[Aligned] = []
    for numbers in merged:
        there = reduce(or_, (mask for number, mask in nodes if numbers >> number & 1), 0)
        only_one = kubelet.config.topology_manager_policy == SINGLE and len(nodes) == 1
        if only_one and (machine is None or len(machine) == 1):
            stored += [there, None] if machine is None else [None]
        else:
            stored.append(there)
    return tuple(dict.fromkeys(stored))


def _every_union(kubelet: DeviceManager) -> tuple[Aligned, ...]:
    """Return the GPUs of every set of NUMA nodes, and None for no hint."""
    return tuple(dict.fromkeys((None, *(there for _, there in _unions(kubelet.shape)))))
