"""A node's CPUs and memory by NUMA node, and the pods that have exclusive ones.

The kubelet's CPU Manager (policy ``static``) gives whole CPUs to containers of pods of the class
Guaranteed. Its Memory Manager (policy ``Static``) gives them memory of certain NUMA nodes. Both
hint to the Topology Manager on which NUMA nodes they could do so. The kubelet chooses GPUs by these
hints (:mod:`topology.core.admission`).
"""

from dataclasses import dataclass
from typing import NewType

from topology.core.devices import positions, runs

CpuSet = NewType("CpuSet", int)  # logical CPUs: bit *n* is the CPU with the kernel's number *n*

NO_CPUS = CpuSet(0)
MOST_CPUS = 4096  # the largest CPU number is one less


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node."""

    cpus: CpuSet
    socket: int | None = None  # the kernel's number of the package; None if it is not known
    # The memory that pods may have exclusively: bytes by type (`memory`, `hugepages-1Gi` …), in the
    # order of the types.
    memory: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NumaConfig:
    """A machine's NUMA nodes by number, and the CPUs of them that the kubelet hands out."""

    nodes: tuple[NumaNode, ...]
    allocatable: CpuSet  # CPUs that pods may have exclusively: all but the reserved ones
    whole_cores: CpuSet  # the allocatable CPUs whose core has no reserved CPU
    threads: int = 1  # CPUs per core
    socket_aligned: bool = False  # the CPU Manager's option `align-by-socket`


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Exclusive memory of one type that one container has on these NUMA nodes together."""

    type: str
    amount: int  # bytes
    nodes: tuple[int, ...]  # numbers of NUMA nodes, ascending


@dataclass(frozen=True, slots=True)
class Holding:
    """Exclusive CPUs and memory of one pod, as the kubelet shows them.

    The kubelet does not show those of ordinary init containers.
    """

    namespace: str
    pod: str
    cpus: CpuSet = NO_CPUS
    memory: tuple[MemoryBlock, ...] = ()


def cpu_set(text: str) -> CpuSet:
    """Return the CPUs of a list in the kernel's notation.

    Raises :class:`ValueError` that names the wrong part of the list.

    >>> bin(cpu_set("0-2,8"))
    '0b100000111'
    """
    cpus = 0
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = _number(first, part), _number(last if dash else first, part)
        if low > high:
            raise ValueError(f"{part[:40]!r}: the first CPU must not be above the last")
        cpus |= (1 << high + 1) - (1 << low)
    return CpuSet(cpus)


def _number(text: str, part: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 4 or int(text) >= MOST_CPUS:
        most = MOST_CPUS - 1
        raise ValueError(f"{part[:40]!r}: allowed are CPUs from 0 to {most}, such as 0-3,8")
    return int(text)


def cpu_list(cpus: CpuSet) -> str:
    """Return the CPUs as a list in the kernel's notation.

    >>> cpu_list(cpu_set("8,0-2,1"))
    '0-2,8'
    """
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs(positions(cpus))
    )
