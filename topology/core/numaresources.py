"""The CPUs and the memory of a node that a pod may still get exclusively, by NUMA node.

A report is always a little old. So there are two bounds. The lower one is the CPUs that are left
even if every pod that may take CPUs first has taken them. The upper one is the CPUs that are left
if every pod that may release its CPUs has released them. From these,
:mod:`topology.core.admission.hintproviders` derives hints that are certain, possible or excluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from topology.core.devicesets import marked
from topology.core.numa import MemoryBlock, NumaConfig
from topology.core.requests import Amounts, Exclusive


@dataclass(frozen=True, slots=True)
class FreeNumaResources:
    """The CPUs and memory that static managers may still give to pods."""

    free: tuple[int, ...]  # how many CPUs no pod has exclusively, by NUMA node
    back: tuple[int, ...]  # how many CPUs may be released at any time, by NUMA node
    # The same two numbers over the whole machine, of cores without a reserved CPU.
    whole: int
    whole_back: int
    taken: int = 0  # of `free`, CPUs that pods have taken without a report of which
    # CPUs that are surely left on the machine; None if `free` and `taken` give the number.
    in_all: int | None = None
    blocks: tuple[MemoryBlock, ...] = ()  # the memory that pods have, from `added_up`
    terminating: tuple[MemoryBlock, ...] = ()  # memory that pods may release, from `added_up`
    taken_memory: Amounts = ()  # memory that pods have taken on unknown NUMA nodes
    largest_memory: Amounts = ()  # by type, the most of `taken_memory` that one pod has
    memory_unknown: bool = False  # whether even the amount of taken memory is unknown

    def least(self, nodes: int) -> int:
        """Return the CPUs that are surely left on these NUMA nodes, given as a mask."""
        return marked(self.free, nodes) - self.taken

    @property
    def left_in_all(self) -> int:
        """The number of CPUs that are surely left on the whole machine."""
        return sum(self.free) - self.taken if self.in_all is None else self.in_all

    def most(self, nodes: int) -> int:
        """Return the most CPUs that may be left on these NUMA nodes, given as a mask."""
        return marked(self.free, nodes) + marked(self.back, nodes)

    def beside(self, pod: Exclusive) -> FreeNumaResources:
        """Return the resources left after a pod with these demands is admitted.

        It is not known on which NUMA nodes the pod gets its CPUs and memory.
        """
        if not pod.demands:
            if pod == Exclusive.NOTHING:
                return self
            cpus = sum(self.free) if pod.cpus else 0
            return replace(self, taken=self.taken + cpus, memory_unknown=True)
        return self.without(pod.most_cpus, pod.most_memory)

    def without(self, cpus: int, memory: Amounts) -> FreeNumaResources:
        """Return the resources left after these CPUs and this memory are taken.

        It is not known on which NUMA nodes they are taken.
        """
        if not cpus and not memory:
            return self
        return replace(
            self,
            taken=self.taken + cpus,
            taken_memory=_by_type(self.taken_memory, memory, sum),
            largest_memory=_by_type(self.largest_memory, memory, max),
        )


def _by_type(some: Amounts, more: Amounts, joined: Callable[[tuple[int, int]], int]) -> Amounts:
    here, there = dict(some), dict(more)
    return tuple(
        (kind, joined((here.get(kind, 0), there.get(kind, 0))))
        for kind in sorted(here.keys() | there.keys())
    )


def added_up(config: NumaConfig, blocks: Iterable[MemoryBlock]) -> tuple[MemoryBlock, ...]:
    """Return the sums of the blocks, one for each set of NUMA nodes and type of memory, in order.

    Nothing else of the blocks matters, and a record may have tens of thousands. Blocks of a type
    that no NUMA node has take no memory. Their existence counts, so they get the type "".

    >>> from topology.core.numa import CpuSet, NumaNode
    >>> machine = NumaConfig((NumaNode(CpuSet(1), 0, (("memory", 9),)),), CpuSet(1), CpuSet(0))
    >>> [b.amount for b in added_up(machine, [MemoryBlock("memory", n, (0,)) for n in (2, 3)])]
    [5]
    """
    kinds = {kind for node in config.nodes for kind, _ in node.memory}
    amounts: defaultdict[tuple[tuple[int, ...], str], int] = defaultdict(int)
    for block in blocks:
        amounts[block.nodes, block.type if block.type in kinds else ""] += block.amount
    return tuple(
        MemoryBlock(kind, amount, nodes) for (nodes, kind), amount in sorted(amounts.items())
    )


def emptied(config: NumaConfig) -> FreeNumaResources:
    """Return the free resources of a machine on which no pod has exclusive CPUs or memory."""
    free = tuple((node.cpus & config.allocatable).bit_count() for node in config.nodes)
    return FreeNumaResources(free, (0,) * len(free), config.whole_cores.bit_count(), 0)


def at_any_moment(config: NumaConfig, numa_free: FreeNumaResources) -> FreeNumaResources:
    """Return the free resources if other pods may be admitted and end before ours is admitted.

    These are pods with GPUs or without. Those that are admitted leave enough CPUs for ours, because
    kube-scheduler counts the CPUs of all pods.
    """
    empty = emptied(config)
    none = (0,) * len(empty.free)
    left = numa_free.left_in_all
    return FreeNumaResources(none, empty.free, 0, empty.whole, in_all=left, memory_unknown=True)
