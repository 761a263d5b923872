"""Room: the CPUs and the memory of a node that a pod may get for its own, by NUMA node.

What we see is a moment old. So room is two bounds: what is left even if every pod takes its CPUs
that may do so first, and what is left if every pod has released its own that may. Whoever asks
(:mod:`topology.core.admission.providers`) gets a hint that is sure, one that may be given, or none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topology.core.numa import MemoryBlock, NumaFacts
from topology.core.requests import Exclusive


@dataclass(frozen=True, slots=True)
class Room:
    """What static managers may still give.

    ``free`` counts CPUs that nobody has for its own, by NUMA node, ``back`` those that may be
    released any moment; ``whole`` and ``whole_back`` are the same over the whole machine, of cores
    without a reserved CPU. ``taken`` of the CPUs are somebody's, and it is not known which.
    ``blocks`` is the memory that pods have, ``ending`` that of pods that may release it;
    ``memory_taken`` says that more is somebody's, and it is not known where.
    """

    free: tuple[int, ...]
    back: tuple[int, ...]
    whole: int
    whole_back: int
    taken: int = 0
    blocks: tuple[MemoryBlock, ...] = ()
    ending: tuple[MemoryBlock, ...] = ()
    memory_taken: bool = False

    def least(self, nodes: int) -> int:
        """CPUs that are surely left on NUMA nodes, given as a mask."""
        return self._sum(self.free, nodes) - self.taken

    def most(self, nodes: int) -> int:
        """CPUs that are left there at most."""
        return self._sum(self.free, nodes) + self._sum(self.back, nodes)

    def beside(self, pod: Exclusive) -> Room:
        """The room once this pod is admitted, nobody knows where."""
        if pod == Exclusive.NOTHING:
            return self
        taken = pod.most_cpus if pod.demands or not pod.cpus else sum(self.free)
        return replace(self, taken=self.taken + taken, memory_taken=self.memory_taken or pod.memory)

    @staticmethod
    def _sum(counts: tuple[int, ...], nodes: int) -> int:
        return sum(n for i, n in enumerate(counts) if nodes >> i & 1)


def emptied(facts: NumaFacts) -> Room:
    """The room of a machine on which nobody has anything for its own."""
    free = tuple((node.cpus & facts.allocatable).bit_count() for node in facts.nodes)
    return Room(free, (0,) * len(free), facts.whole_cores.bit_count(), 0)


def at_any_moment(facts: NumaFacts) -> Room:
    """The room where pods, with GPUs or without, may come and end before ours is admitted."""
    empty = emptied(facts)
    none = (0,) * len(empty.free)
    return Room(none, empty.free, 0, empty.whole, memory_taken=True)
