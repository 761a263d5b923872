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
3. The *policy* looks at the merged hint. ``best-effort`` admits every container. ``restricted``
   refuses one whose hint is not preferred, with ``TopologyAffinityError``. ``single-numa-node``
   does the same, and looks only at hints of one NUMA node.

Which NUMA nodes a GPU is on, the device plugin says: one, several, or none. The device manager's
hints for GPUs are found here (:func:`device_hints`), those of the other providers come as
:data:`~topology.core.admission.hintproviders.KnownHints`. Where these are not known, every hint
that the merge could end with counts, and so does the refusal.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

from topology.core.admission.hintproviders import MAX_NUMA_NODES, KnownHints
from topology.core.admission.kubelet import Kubelet
from topology.core.admission.topologyhints import (
    NO_HINTS,
    HintProvider,
    Hints,
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

TOO_MANY_NODES = "too-many-numa-nodes"  # more NUMA nodes have GPUs than hints are followed for

Aligned = Mask | None  # GPUs on the hinted NUMA nodes; None where there is no hint

BEST_EFFORT = "best-effort"
SINGLE = "single-numa-node"
POLICIES = (BEST_EFFORT, "restricted", SINGLE)
"""By the name in the kubelet's configuration. Under ``none`` there are no hints, and one that
nobody could tell (``unknown``) may do what any of these does."""


class Merged(NamedTuple):
    """Every hint that the merge may end with."""

    hints: tuple[Aligned, ...]
    may_refuse: bool = False  # whether the policy may refuse the container instead
    short_of_memory: bool = False  # whether the Memory Manager may refuse one of the hints


def too_many_nodes(shape: Shape) -> bool:
    """Whether GPUs are on more NUMA nodes than we follow hints for."""
    return len(hinted_nodes(shape)) > MAX_NUMA_NODES


def hints_whole_pods(kubelet: Kubelet) -> bool:
    """Whether one hint holds for all containers of a pod.

    Under an unknown policy each container may have any hint.
    """
    config = kubelet.config
    return (
        kubelet.aligns
        and config.topology_manager_scope == "pod"
        and config.topology_manager_policy != UNKNOWN
    )


def merged_hints(
    kubelet: Kubelet,
    free: DeviceSet,
    reusable: DeviceSet,
    count: int,
    others: KnownHints = NO_HINTS,
) -> Merged:
    """What the Topology Manager may decide for a container that asks for ``count`` devices.

    ``others`` are the hints of the other providers.
    """
    policy = kubelet.config.topology_manager_policy
    if policy not in POLICIES:
        return Merged(_every_union(kubelet), may_refuse=True)
    strict = policy != BEST_EFFORT
    if not kubelet.config.sees_topology:
        return Merged((None,), may_refuse=strict)  # the allocator is any
    placed = bool(placed_gpus(kubelet.shape))  # else no NUMA node matters to the device manager
    ours = (device_hints(kubelet, free, reusable, count),) * placed
    if others is not None:
        return _merged(kubelet, others, ours)
    if not placed:
        return Merged((None,), may_refuse=strict)
    if not strict:  # the others may leave any NUMA nodes, and it is admitted all the same
        return Merged(_every_union(kubelet))
    # All providers have to prefer one hint, so it is one of ours; or they do not, and it refuses.
    admitted = on_one_node(ours[0]) if policy == SINGLE else ours[0]
    return Merged(_stored(kubelet, [h.nodes for h in admitted if h.preferred]), may_refuse=True)


def device_hints(
    kubelet: Kubelet, free: DeviceSet, reusable: DeviceSet, count: int
) -> HintProvider:
    """The device manager's hints: NUMA nodes whose free devices suffice, the fewest preferred.

    Empty if too few devices are free, or too few of those whose NUMA node is known. NUMA nodes
    without GPUs are left out: they make no hint better.
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
    """Every set of NUMA nodes with GPUs, the smaller ones first: their numbers and their GPUs."""
    nodes = hinted_nodes(shape)
    chosen = [some for n in range(1, len(nodes) + 1) for some in combinations(nodes, n)]
    return tuple(
        (sum(1 << number for number, _ in some), reduce(or_, (there for _, there in some)))
        for some in chosen
    )


def _merged(kubelet: Kubelet, others: Hints, ours: tuple[HintProvider, ...]) -> Merged:
    """The merge of hints that are known, or known to be possible."""
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
    kubelet: Kubelet, providers: list[HintProvider], ranked: tuple[Ranking, ...]
) -> tuple[Mask, ...] | None:
    """The merges that may come if no combination is preferred; None if they are not known.

    The device manager of Kubernetes 1.36 hints at NUMA nodes with devices only, older ones at all
    NUMA nodes.
    """
    with_gpus = sum(1 << number for number, _ in hinted_nodes(kubelet.shape))
    if len(providers) == 1:  # NUMA nodes without GPUs change nothing
        return not_preferred(providers, with_gpus, ranked)
    distances = kubelet.config.numa_distances
    known = distances is not None and len(distances) <= MAX_NUMA_NODES
    if distances is None or not known or with_gpus >> len(distances) or not with_gpus:
        return None
    every = (1 << len(distances)) - 1
    without = every & ~with_gpus
    more = [m for m in range(every + 1) if not m & ~without]
    *others, ours = providers
    widened = tuple(TopologyHint(hint.nodes | m, False) for hint in ours for m in more)
    newer, older = (not_preferred([*others, hints], every, ranked) for hints in (ours, widened))
    return None if newer is None or older is None else tuple(dict.fromkeys((*newer, *older)))


def _stored(kubelet: Kubelet, merged: Sequence[Mask]) -> tuple[Aligned, ...]:
    """The merged NUMA nodes as the device manager gets them: the GPUs there.

    ``single-numa-node`` drops a hint that names all NUMA nodes of the machine, which has one. If
    the machine's NUMA nodes are not known, it may drop the hint or keep it.
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


def _every_union(kubelet: Kubelet) -> tuple[Aligned, ...]:
    """The GPUs of every set of NUMA nodes, and no hint at all."""
    return tuple(dict.fromkeys((None, *(there for _, there in _unions(kubelet.shape)))))
