"""Hints: the NUMA nodes on which a provider could serve a container, and the merge of hints.

A provider is the device manager, the CPU Manager or the Memory Manager. The free resources of a
node are known as two bounds (:mod:`topology.core.numaresources`). So a hint is either sure or only
possible. The result includes every possible merge.

The Topology Manager combines one hint of each provider, keeps the NUMA nodes that these have in
common, and takes the best combination (``HintMerger`` in
``pkg/kubelet/cm/topologymanager/policy.go``, Kubernetes 1.36). A combination is *preferred* if all
its hints are preferred and name the same NUMA nodes. So if there is a preferred combination, the
best one is a set of NUMA nodes that every provider prefers. It is the set with the fewest NUMA
nodes, then the one whose nodes are nearest to each other (option ``prefer-closest-numa-nodes``),
then the one with the lowest numbers.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from topology.core.devices import Mask, positions
from topology.core.numa import NumaConfig


class TopologyHint(NamedTuple):
    """A set of NUMA nodes on which a provider could serve the container."""

    nodes: Mask  # the numbers of the NUMA nodes
    preferred: bool  # whether fewer NUMA nodes never suffice, not even on an empty machine
    sure: bool = True  # false if the provider may give this hint or not


# Every hint that a provider gives or may give. Empty if it has no possible hint.
ProviderHints = tuple[TopologyHint, ...]
Rank = tuple[float, ...]
Ranking = Callable[[Mask], Rank]  # ranks sets of NUMA nodes: the lowest rank is the best


class Hints(NamedTuple):
    """The hints of the providers other than the device manager for one container."""

    providers: tuple[ProviderHints, ...] = ()  # only providers that give hints
    # The merged NUMA nodes with which the Memory Manager surely admits the container. None if the
    # container asks it for no memory.
    accepted: frozenset[Mask] | None = None


NO_HINTS = Hints()


class Preferred(NamedTuple):
    """The possible preferred merges, and whether there may be none."""

    nodes: tuple[Mask, ...]
    may_fail: bool


def all_nodes(config: NumaConfig) -> Mask:
    """Return the mask of all NUMA nodes."""
    return (1 << len(config.nodes)) - 1


def masks(every: Mask) -> Iterator[Mask]:
    """Yield every non-empty set of these NUMA nodes, ascending."""
    subset = 0
    while subset != every:
        subset = (subset - every) & every
        yield subset


def rankings(
    closest: bool | None, distances: tuple[tuple[int, ...], ...] | None
) -> tuple[Ranking, ...]:
    """Return the rankings that the Topology Manager may use.

    ``closest`` is its option ``prefer-closest-numa-nodes``; None if that is unknown.
    """

    def nearest(nodes: Mask) -> Rank:
        numbers = positions(nodes)
        assert distances is not None  # noqa: S101 (for the type checker)
        return (len(numbers), sum(distances[a][b] for a in numbers for b in numbers), nodes)

    if closest is False:
        return (lowest,)
    if distances is None:
        return (fewest,)
    return (nearest,) if closest else (lowest, nearest)


def lowest(nodes: Mask) -> Rank:
    """Rank sets with the fewest NUMA nodes first, then those with the lowest numbers."""
    return (nodes.bit_count(), nodes)


def fewest(nodes: Mask) -> Rank:
    """Rank sets with the fewest NUMA nodes first, and single nodes by their numbers.

    Larger sets of equal size rank equally.
    """
    return (nodes.bit_count(), nodes if nodes.bit_count() == 1 else 0)


def preferred(providers: Iterable[ProviderHints], ranked: tuple[Ranking, ...]) -> Preferred:
    """Return the sets of NUMA nodes that every provider prefers and that may be the best such set.

    ``providers`` are those that give hints. A hint that is not sure may be missing.
    """
    preferences = [[hint for hint in provider if hint.preferred] for provider in providers]
    possible = set.intersection(*({h.nodes for h in hints} for hints in preferences))
    certain = set.intersection(*({h.nodes for h in hints if h.sure} for hints in preferences))
    best: dict[Mask, None] = {}
    for rank in ranked:
        worst = min(map(rank, certain), default=None)
        best |= {m: None for m in sorted(possible) if worst is None or rank(m) <= worst}
    return Preferred(tuple(best), may_fail=not certain)


def not_preferred(
    providers: Iterable[ProviderHints], every: Mask, ranked: tuple[Ranking, ...]
) -> tuple[Mask, ...] | None:
    """Return the possible merges if no combination is preferred; None if they are unknown.

    The merge takes as many NUMA nodes as the neediest provider needs, or the next smaller number
    that a combination has. ``every`` are all NUMA nodes of the machine.
    """
    combined = {every}
    wanted = 0
    for provider in providers:
        if not all(hint.sure for hint in provider):
            return None
        if provider:  # a provider without any possible hint does not narrow the combinations
            combined = {a & hint.nodes for a in combined for hint in provider} - {0}
            wanted = max(wanted, min(hint.nodes.bit_count() for hint in provider))
    if not combined:
        return (every,)
    below = [m for m in combined if m.bit_count() <= wanted]
    size = max((m.bit_count() for m in below), default=0)
    left = [m for m in below if m.bit_count() == size] or list(combined)
    merged: dict[Mask, None] = {}
    for rank in ranked:
        best = min(map(rank, left))
        merged |= {m: None for m in sorted(left) if rank(m) == best}
    return tuple(merged)


def on_one_node(provider: ProviderHints) -> ProviderHints:
    """Return the hints that ``single-numa-node`` considers: preferred hints of one NUMA node."""
    return tuple(h for h in provider if h.preferred and h.nodes.bit_count() == 1)
