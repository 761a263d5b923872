"""A machine's CPUs and memory by NUMA node, and which pods have exclusive ones, on the wire.

In a record they are parts of ``spec.numaNodes``, ``spec.cpus``, ``spec.allocator`` and
``status.exclusive``. Where one of these facts is missing, the machine counts as not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topology.codec import wire
from topology.core.devices import positions
from topology.core.graph import AllocatorFacts, TopologyError
from topology.core.numa import (
    Holding,
    MemoryBlock,
    NumaFacts,
    NumaNode,
    cpu_list,
)

# From the wire.


def distances_of(nodes: Sequence[wire.NumaNode]) -> tuple[tuple[int, ...], ...] | None:
    """The distances by number; None where they are not known of every NUMA node from 0 on."""
    rows = {node.id: tuple(map(int, (node.distances or "").split())) for node in nodes}
    n = len(rows)
    if not rows or set(rows) != set(range(n)) or any(len(row) != n for row in rows.values()):
        return None
    return tuple(rows[i] for i in range(n))


def numa_facts(spec: wire.Spec) -> NumaFacts | None:
    """What the record says of CPUs and memory; None where part of it is missing.

    That is: a NUMA node from 0 on, the CPUs of one, the CPUs that pods may have, or the CPU
    Manager's option. A contradiction raises :class:`TopologyError`.
    """
    given = sorted(spec.numa_nodes or (), key=lambda node: node.id)
    nodes = [_numa_node(node) for node in given]
    _check_nodes(given, nodes)
    cpus = spec.cpus
    if cpus is None:
        return None
    allocatable, whole_cores = wire.cpus_of(cpus.allocatable), wire.cpus_of(cpus.whole_cores)
    if other := whole_cores & ~allocatable:
        raise TopologyError(f"cpus.wholeCores: {_first(other)} is not among the allocatable ones")
    aligned = spec.allocator.align_by_socket
    if aligned is None or not _names_cpus(given):
        return None
    elsewhere: int = allocatable
    for node in nodes:
        elsewhere &= ~node.cpus
    if elsewhere:
        raise TopologyError(f"cpus.allocatable: {_first(elsewhere)} is on no NUMA node")
    return NumaFacts(tuple(nodes), allocatable, whole_cores, cpus.threads_per_core, aligned)


def numa_lacks(spec: wire.Spec) -> tuple[str, ...]:
    """The fields that the record lacks for :func:`numa_facts`; none where it has them all."""
    has = {
        "spec.allocator.alignBySocket": spec.allocator.align_by_socket is not None,
        "spec.numaNodes[].cpus": _names_cpus(spec.numa_nodes or ()),
        "spec.cpus": spec.cpus is not None,
    }
    return tuple(field for field, there in has.items() if not there)


def _names_cpus(nodes: Sequence[wire.NumaNode]) -> bool:
    """Whether the CPUs of each NUMA node from 0 on are there."""
    numbers = sorted(node.id for node in nodes if node.cpus is not None)
    return bool(nodes) and numbers == list(range(len(nodes)))


def _numa_node(node: wire.NumaNode) -> NumaNode:
    memory = sorted((m.type, m.bytes) for m in node.memory or ())
    return NumaNode(wire.cpus_of(node.cpus or ""), node.socket, tuple(memory))


def _check_nodes(given: Sequence[wire.NumaNode], nodes: Sequence[NumaNode]) -> None:
    seen = 0
    for number, times in Counter(node.id for node in given).items():
        if times > 1:
            raise TopologyError(f"numaNodes: {number} stands {times} times, once is allowed")
    for node, found in zip(given, nodes, strict=True):
        if both := found.cpus & seen:
            raise TopologyError(f"numaNodes: {_first(both)} is on two NUMA nodes, allowed is one")
        for kind, times in Counter(kind for kind, _ in found.memory).items():
            if times > 1:
                raise TopologyError(
                    f"numaNodes: {kind} stands {times} times in the memory of NUMA node "
                    f"{node.id}, once is allowed"
                )
        seen |= found.cpus


def _first(cpus: int) -> str:
    return f"CPU {positions(cpus)[0]}"


def holdings(given: Sequence[wire.Exclusive] | None) -> tuple[Holding, ...] | None:
    """Which exclusive CPUs and memory pods have; None where nobody has looked."""
    if given is None:
        return None
    return tuple(
        Holding(
            pod.namespace,
            pod.pod,
            wire.cpus_of(pod.cpus or ""),
            tuple(
                MemoryBlock(block.type, block.bytes, tuple(sorted(set(block.numa_nodes))))
                for block in pod.memory or ()
            ),
        )
        for pod in given
    )


# To the wire.


def numa_nodes(facts: AllocatorFacts) -> list[wire.NumaNode] | None:
    """``spec.numaNodes``: distances, and CPUs and memory, as far as they are known."""
    rows = facts.numa_distances or ()
    nodes = facts.numa.nodes if facts.numa else ()
    found = []
    for number in range(max(len(rows), len(nodes))):
        row = rows[number] if number < len(rows) else None
        node = nodes[number] if number < len(nodes) else None
        found.append(
            wire.NumaNode(
                id=number,
                distances=None if row is None else " ".join(map(str, row)),
                cpus=None if node is None else cpu_list(node.cpus),
                socket=None if node is None else node.socket,
                memory=None
                if node is None
                else [wire.Memory(type=kind, bytes=amount) for kind, amount in node.memory] or None,
            )
        )
    return found or None


def cpus(facts: AllocatorFacts) -> wire.Cpus | None:
    """``spec.cpus``."""
    if facts.numa is None:
        return None
    return wire.Cpus(
        allocatable=cpu_list(facts.numa.allocatable),
        whole_cores=cpu_list(facts.numa.whole_cores),
        threads_per_core=facts.numa.threads,
    )


def exclusive(given: Sequence[Holding] | None) -> list[wire.Exclusive] | None:
    """``status.exclusive``."""
    if given is None:
        return None
    return [
        wire.Exclusive(
            namespace=holding.namespace,
            pod=holding.pod,
            cpus=cpu_list(holding.cpus) or None,
            memory=[
                wire.MemoryBlock(type=block.type, bytes=block.amount, numa_nodes=list(block.nodes))
                for block in holding.memory
            ]
            or None,
        )
        for holding in given
    ]
