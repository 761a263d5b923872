"""Hints: the NUMA nodes on which a provider could place a container, and how hints are merged.

A provider is the device manager, the CPU Manager or the Memory Manager. What is left on a node is
known as two bounds (:mod:`topology.core.numaresources`), so a hint is either sure, or one that may
be given. Every merge that may come counts.

The Topology Manager combines one hint of each provider, keeps the NUMA nodes that these have in
common, and takes the best combination (``HintMerger`` in
``pkg/kubelet/cm/topologymanager/policy.go``, Kubernetes 1.36). A combination is *preferred* if all
its hints are and name the same NUMA nodes. So where one is, the best is a set of NUMA nodes that
every provider prefers: the one with the fewest, then the nearest to each other (option
``prefer-closest-numa-nodes``), then the lowest numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from topology.core.devices import Mask, positions
from topology.core.numa import NumaConfig


class TopologyHint(NamedTuple):
    """NUMA nodes that a provider hints at."""

    nodes: Mask  # of their numbers
    preferred: bool  # if no fewer NUMA nodes could do, not even on an empty machine
    sure: bool = True  # else it may be given or not


# every hint that it gives or may give; empty: no hint is possible
HintProvider = tuple[TopologyHint, ...]
Rank = tuple[float, ...]
Ranking = Callable[[Mask], Rank]  # how good a set of NUMA nodes is: the lowest is the best


class Hints(NamedTuple):
    """What the providers beside the device manager hint at for one container."""

    providers: tuple[HintProvider, ...] = ()  # those that care
    # The merged NUMA nodes with which the Memory Manager surely admits the container. None where it
    # has nothing to do with it.
    accepted: frozenset[Mask] | None = None


NO_HINTS = Hints()


class Preferred(NamedTuple):
    """The preferred merges that may come, and whether there may be none."""

    nodes: tuple[Mask, ...]
    may_fail: bool


def all_nodes(config: NumaConfig) -> Mask:
    """The mask of all NUMA nodes."""
    return (1 << len(config.nodes)) - 1


def masks(every: Mask) -> Iterator[Mask]:
    """Every non-empty set of these NUMA nodes, ascending."""
    subset = 0
    while subset != every:
        subset = (subset - every) & every
        yield subset


def rankings(
    closest: bool | None, distances: tuple[tuple[int, ...], ...] | None
) -> tuple[Ranking, ...]:
    """The rankings that the Topology Manager may use.

    ``closest`` is its option ``prefer-closest-numa-nodes``; None if that is not known.
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
    """Fewest NUMA nodes first, then the lowest numbers."""
    return (nodes.bit_count(), nodes)


def fewest(nodes: Mask) -> Rank:
    """Fewest NUMA nodes first; of sets with as many any, of single nodes the lowest."""
    return (nodes.bit_count(), nodes if nodes.bit_count() == 1 else 0)


def preferred(providers: Iterable[HintProvider], ranked: tuple[Ranking, ...]) -> Preferred:
    """The sets of NUMA nodes that every provider prefers and that may be the best of these.

    ``providers`` are those that care. A hint that is not sure may be missing.
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
    providers: Iterable[HintProvider], every: Mask, ranked: tuple[Ranking, ...]
) -> tuple[Mask, ...] | None:
    """The merges that may come if no combination is preferred; None if they are not known.

    The merge takes as many NUMA nodes as the neediest provider needs, or the next smaller number
    that a combination has. ``every`` are all NUMA nodes of the machine.
    """
    combined = {every}
    wanted = 0
    for provider in providers:
        if not all(hint.sure for hint in provider):
            return None
        if provider:  # one without any possible hint leaves the others' alone
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


def on_one_node(provider: HintProvider) -> HintProvider:
    """The hints that ``single-numa-node`` looks at: preferred ones of one NUMA node."""
    return tuple(h for h in provider if h.preferred and h.nodes.bit_count() == 1)
