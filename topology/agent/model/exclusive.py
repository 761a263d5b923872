"""Exclusive CPUs and memory of pods: what the kubelet may give, and which pod has what.

A static CPU Manager gives whole CPUs to a container. A static Memory Manager gives it memory of
certain NUMA nodes. Both serve only pods of the class Guaranteed. The kubelet's PodResources API
shows what the kubelet has given, also to pods without GPUs, and the total that it can give. The
kernel shows the NUMA node, socket and core of each CPU.

The kubelet does not show what ordinary init containers have. Later containers of the pod may or may
not take over their CPUs. The rest stays allocated until the pod ends, and no API shows it. The
memory of an init container is free as soon as the next container has started.

If neither manager is static, none of this matters and nothing is published.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from topology.agent.model import recordlimits
from topology.agent.model.nodecontext import ALIGN_BY_SOCKET, KubeletConfig
from topology.agent.model.observations import Processors, Unseen
from topology.agent.model.podentries import Entry, NodePod, PodName
from topology.core.numa import (
    MOST_CPUS,
    NO_CPUS,
    CpuSet,
    Holding,
    MemoryBlock,
    NumaConfig,
    NumaNode,
    cpu_list,
)

MOST_NUMA_NODES = 64  # the most that the kubelet can name


@dataclass(frozen=True, slots=True)
class Allocatable:
    """The CPUs and memory that the kubelet may give to pods exclusively, including what they have.

    Both are empty if no manager is static, or if the kubelet is too old to list them.
    """

    cpus: CpuSet = NO_CPUS
    memory: Mapping[tuple[int, str], int] = field(default_factory=dict)  # bytes by node and type

    def over(self, former: "Allocatable | None") -> "Allocatable":
        """Return this answer of the kubelet, completed by its former one.

        For a short time after its start a kubelet answers as if it had nothing to give.
        """
        if former is None:
            return self
        return Allocatable(self.cpus or former.cpus, self.memory or former.memory)


class _HiddenError(Exception):
    """A value that is missing, contradicts another one, or does not fit into a record.

    The message says why.
    """


def published(kubelet: KubeletConfig, allocatable: Allocatable | None) -> bool:
    """Check whether the record lists exclusive CPUs and memory.

    It does if a manager is static and the kubelet shows what it can give.
    """
    if not kubelet.static or allocatable is None:
        return False
    told_memory = bool(allocatable.memory) or not kubelet.static_memory
    return told_memory and (bool(allocatable.cpus) or not kubelet.static_cpus)


def numa_config(
    kubelet: KubeletConfig, processors: Processors | Unseen | None, allocatable: Allocatable | None
) -> tuple[NumaConfig | None, tuple[Unseen, ...]]:
    """Return the CPUs and memory that the kubelet may give, or the reasons why they are not known.

    The first part is None if no manager is static, before the kubelet's first answer, and if a
    value is missing. ``processors`` is None before the CPUs were read.
    """
    if not kubelet.static or allocatable is None or processors is None:
        return None, ()
    if isinstance(processors, Unseen):
        return None, (processors,)
    try:
        return _config(kubelet, processors, allocatable), ()
    except _HiddenError as error:
        return None, (Unseen("CPUs and memory by NUMA node", str(error)),)


def _config(kubelet: KubeletConfig, processors: Processors, allocatable: Allocatable) -> NumaConfig:
    if kubelet.socket_aligned is None:
        raise _HiddenError(f"the CPU Manager's option {ALIGN_BY_SOCKET} is not known")
    if kubelet.static_cpus and not allocatable.cpus:
        raise _HiddenError("the kubelet does not report which CPUs pods may have exclusively")
    if kubelet.static_memory and not allocatable.memory:
        raise _HiddenError("the kubelet does not report how much memory pods may have exclusively")
    count = len(processors.nodes)
    if not 0 < count <= MOST_NUMA_NODES:
        raise _HiddenError(
            f"there are {count} NUMA nodes, but a record can have 1 to {MOST_NUMA_NODES}"
        )
    there = union(processors.nodes)
    if there.bit_length() > MOST_CPUS:
        highest = there.bit_length() - 1
        raise _HiddenError(
            f"there is a CPU {highest}, but a record can only have CPUs below {MOST_CPUS}"
        )
    if hidden := allocatable.cpus & ~there:
        raise _HiddenError(f"the kernel does not show the CPUs {cpu_list(CpuSet(hidden))}")
    _check_memory(allocatable, count)
    reserved = there & ~allocatable.cpus
    shared = union(core for core in processors.cores if core & reserved)
    return NumaConfig(
        tuple(
            NumaNode(cpus, processors.sockets[number], _memory(allocatable, number))
            for number, cpus in enumerate(processors.nodes)
        ),
        allocatable.cpus,
        CpuSet(allocatable.cpus & ~shared),
        # The kubelet computes it in this way: it assumes that all cores are alike.
        max(1, there.bit_count() // max(1, len(processors.cores))),
        kubelet.socket_aligned,
    )


def _check_memory(allocatable: Allocatable, count: int) -> None:
    """Raise :class:`_HiddenError` for memory that ``count`` NUMA nodes or a record cannot have."""
    for (number, kind), amount in allocatable.memory.items():
        if not 0 <= number < count:
            raise _HiddenError(f"the kernel does not show NUMA node {number}")
        if not recordlimits.memory_fits(kind, amount):
            raise _HiddenError(f"the kubelet reports {amount} bytes of {kind[:64]!r}")
    for number in range(count):
        types = len(_memory(allocatable, number))
        if types > recordlimits.MOST_TYPES:
            most = recordlimits.MOST_TYPES
            raise _HiddenError(f"there are {types} types of memory, but a record can have {most}")


def _memory(allocatable: Allocatable, number: int) -> tuple[tuple[str, int], ...]:
    found = [(kind, n) for (node, kind), n in allocatable.memory.items() if node == number]
    return tuple(sorted(found))


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """Return the CPUs that are in at least one of the sets."""
    return CpuSet(reduce(or_, sets, 0))


def holdings(
    entries: Sequence[Entry],
    before: Sequence[Holding] = (),
    alive: Collection[PodName] = (),
) -> tuple[Holding, ...]:
    """Return the exclusive CPUs and memory of each pod in the kubelet's list that has some.

    Two pods of one name count as one. A kubelet that has just started lists no pods. So pods that
    are ``alive`` and not listed at all keep what they had ``before``, unless other pods have their
    CPUs now.
    """
    by_name: dict[PodName, Holding] = {}
    for entry in entries:
        if entry.cpus or entry.memory:
            known = by_name.get(entry.key, Holding(*entry.key))
            by_name[entry.key] = Holding(
                *entry.key,
                CpuSet(known.cpus | entry.cpus),
                tuple(sorted((*known.memory, *entry.memory), key=block_order)),
            )
    taken = union(holding.cpus for holding in by_name.values())
    listed = {entry.key for entry in entries}
    for holding in before:
        name = holding.namespace, holding.pod
        if name in alive and name not in listed and not holding.cpus & taken:
            by_name[name] = holding
    return tuple(by_name[name] for name in sorted(by_name))


def block_order(block: MemoryBlock) -> tuple[str, tuple[int, ...], int]:
    """Return the key by which a pod's blocks are sorted; the kubelet lists them in any order."""
    return block.type, block.nodes, block.amount


def whole(pod: NodePod, entry: Entry | None, kubelet: KubeletConfig) -> bool:
    """Check whether the kubelet shows all exclusive CPUs and memory that the pod gets."""
    cpus, memory = (entry.cpus, entry.memory) if entry else (NO_CPUS, ())
    enough_cpus = not kubelet.static_cpus or cpus.bit_count() >= pod.own_cpus
    return enough_cpus and (not kubelet.static_memory or len(memory) >= pod.own_memory)
