"""The hints of the CPU Manager and the Memory Manager: where they could serve a container.

Both follow ``pkg/kubelet/cm/cpumanager/policy_static.go`` and ``memorymanager/policy_static.go`` of
Kubernetes 1.36. A hint is a set of NUMA nodes. It is preferred if no smaller set could ever serve
such a container. What is left there is known as two bounds (:mod:`topology.core.room`), so a hint
is either sure, or one that may be given.
"""

from __future__ import annotations

from typing import NamedTuple

from topology.core.devices import Mask, positions
from topology.core.numa import MemoryBlock, NumaFacts
from topology.core.room import Room


class Hint(NamedTuple):
    """NUMA nodes that a provider hints at, as a mask of their numbers."""

    nodes: Mask
    preferred: bool
    sure: bool = True


Provider = tuple[Hint, ...]
"""Every hint that a provider gives, or may give. Empty: it has no possible hint."""


def cpu_hints(
    facts: NumaFacts, room: Room, cpus: int, *, before: int = 0, reusable: int = 0
) -> Provider | None:
    """The CPU Manager's hints for a container that asks for ``cpus``; None if they are not known.

    Containers of the same pod have taken ``before`` CPUs, of which ordinary init containers left
    ``reusable`` for use again: then only NUMA nodes will do that include those.
    """
    every = all_nodes(facts)
    fewest = min(
        (m.bit_count() for m in masks(every) if _cpus(facts, m) >= cpus),
        default=every.bit_count(),
    )
    fewest_sockets = _fewest_sockets(facts, fewest) if facts.socket_aligned else 0
    if fewest_sockets is None:
        return None
    found = []
    for nodes in masks(every):
        if room.most(nodes) + reusable < cpus:
            continue
        sure = not reusable and room.least(nodes) - before >= cpus
        preferred = nodes.bit_count() == fewest or (
            facts.socket_aligned and len(_sockets(facts, nodes)) == fewest_sockets
        )
        found.append(Hint(nodes, preferred, sure))
    return tuple(found)


def memory_hints(
    facts: NumaFacts, room: Room, memory: tuple[tuple[str, int], ...], *, settled: bool
) -> Provider:
    """The Memory Manager's hints for a container, the same for each type of memory.

    One NUMA node serves either containers on it alone or those of one group of NUMA nodes.
    ``settled`` is false where another container of the pod may have taken memory before.
    """
    every = all_nodes(facts)
    settled = settled and not room.memory_taken and not room.ending
    table = _Memory(facts, room.blocks if settled else ())
    found: list[tuple[Mask, bool]] = []
    fewest = every.bit_count()
    for nodes in masks(every):
        if any(table.allocatable(nodes, kind) < amount for kind, amount in memory):
            continue
        fewest = min(fewest, nodes.bit_count())
        if table.grouped_otherwise(nodes):
            continue
        if any(table.free(nodes, kind) < amount for kind, amount in memory):
            continue
        found.append((nodes, settled))
    return tuple(Hint(nodes, nodes.bit_count() == fewest, sure) for nodes, sure in found)


def all_nodes(facts: NumaFacts) -> Mask:
    """The mask of all NUMA nodes."""
    return (1 << len(facts.nodes)) - 1


def masks(every: Mask) -> range:
    """Every set of NUMA nodes but the empty one."""
    return range(1, every + 1)


def _cpus(facts: NumaFacts, nodes: Mask) -> int:
    return sum(facts.nodes[i].cpus.bit_count() for i in positions(nodes))


def _sockets(facts: NumaFacts, nodes: Mask) -> set[int | None]:
    return {facts.nodes[i].socket for i in positions(nodes)}


def _fewest_sockets(facts: NumaFacts, fewest: int) -> int | None:
    """As many sockets as the fewest NUMA nodes make up; None where sockets are not known."""
    sockets = _sockets(facts, all_nodes(facts))
    if None in sockets:
        return None
    each = len(facts.nodes) // len(sockets)
    return -(-fewest // each) if each else -1


class _Memory:
    """The Memory Manager's table: what is free on each NUMA node, and how it is grouped."""

    def __init__(self, facts: NumaFacts, blocks: tuple[MemoryBlock, ...]) -> None:
        self._total = [dict(node.memory) for node in facts.nodes]
        self._free = [dict(table) for table in self._total]
        self._group: dict[int, Mask] = {}
        for block in blocks:
            left = block.amount
            for node in block.nodes:
                if node >= len(self._free):
                    continue
                self._group[node] = sum(1 << n for n in block.nodes)
                used = min(left, self._free[node].get(block.type, 0))
                self._free[node][block.type] = self._free[node].get(block.type, 0) - used
                left -= used

    def allocatable(self, nodes: Mask, kind: str) -> int:
        return sum(self._total[i].get(kind, 0) for i in positions(nodes))

    def free(self, nodes: Mask, kind: str) -> int:
        return sum(self._free[i].get(kind, 0) for i in positions(nodes))

    def grouped_otherwise(self, nodes: Mask) -> bool:
        """Whether one of the NUMA nodes serves another group."""
        return any(self._group.get(i, nodes) != nodes for i in positions(nodes))
