"""The CPUs and the memory of a node that a pod may still get exclusively, by NUMA node.

What we see is a moment old. So there are two bounds: what is left even if every pod takes its CPUs
that may do so first, and what is left if every pod has released its own that may. Whoever asks
(:mod:`topology.core.admission.hintproviders`) gets a hint that is sure, one that may be given, or
none.
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
    """The CPUs and memory that static managers may still give."""

    free: tuple[int, ...]  # CPUs that no pod has exclusively, by NUMA node
    back: tuple[int, ...]  # those that may be released any moment
    whole: int  # as `free`, over the whole machine, of cores without a reserved CPU
    whole_back: int  # as `back`, likewise
    taken: int = 0  # CPUs that are somebody's, and it is not known which
    in_all: int | None = None  # CPUs surely left on the machine; None where `free`, `taken` tell
    blocks: tuple[MemoryBlock, ...] = ()  # the memory that pods have, `added_up`
    terminating: tuple[MemoryBlock, ...] = ()  # that of pods that may release it, likewise
    taken_memory: Amounts = ()  # somebody's as well; it is not known where
    largest_memory: Amounts = ()  # no pod has more of a type of `taken_memory`
    memory_unknown: bool = False  # it is not even known how much is taken

    def least(self, nodes: int) -> int:
        """CPUs that are surely left on NUMA nodes, given as a mask."""
        return marked(self.free, nodes) - self.taken

    @property
    def left_in_all(self) -> int:
        """CPUs that are surely left on the whole machine."""
        return sum(self.free) - self.taken if self.in_all is None else self.in_all

    def most(self, nodes: int) -> int:
        """CPUs that are left there at most."""
        return marked(self.free, nodes) + marked(self.back, nodes)

    def beside(self, pod: Exclusive) -> FreeNumaResources:
        """What is left after this pod is admitted, nobody knows where."""
        if not pod.demands:
            if pod == Exclusive.NOTHING:
                return self
            cpus = sum(self.free) if pod.cpus else 0
            return replace(self, taken=self.taken + cpus, memory_unknown=True)
        return self.without(pod.most_cpus, pod.most_memory)

    def without(self, cpus: int, memory: Amounts) -> FreeNumaResources:
        """What is left after so much of it is taken, nobody knows which part."""
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
    """The blocks of a machine in order, one for each set of NUMA nodes and type of memory.

    That is all that matters of them, and a record may have tens of thousands. Blocks of a type that
    no NUMA node has take nothing; they count as being there (type "").

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
    """What a machine has on which no pod has exclusive CPUs or memory."""
    free = tuple((node.cpus & config.allocatable).bit_count() for node in config.nodes)
    return FreeNumaResources(free, (0,) * len(free), config.whole_cores.bit_count(), 0)


def at_any_moment(config: NumaConfig, numa_free: FreeNumaResources) -> FreeNumaResources:
    """What is left if pods, with GPUs or without, may come and end before ours is admitted.

    Those that come leave enough CPUs for ours, because kube-scheduler counts them.
    """
    empty = emptied(config)
    none = (0,) * len(empty.free)
    left = numa_free.left_in_all
    return FreeNumaResources(none, empty.free, 0, empty.whole, in_all=left, memory_unknown=True)
