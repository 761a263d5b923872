"""The static CPU Manager's hints.

They follow ``pkg/kubelet/cm/cpumanager/policy_static.go`` of Kubernetes 1.36: a set of NUMA nodes
is a hint if enough of its CPUs are nobody's.
"""

from __future__ import annotations

from topology.core.admission.hints import Hint, Provider, masks
from topology.core.devices import Mask, positions
from topology.core.numa import NumaFacts
from topology.core.room import Room


def cpu_hints(
    facts: NumaFacts, room: Room, cpus: int, *, before: int = 0, reusable: int = 0
) -> Provider | None:
    """The CPU Manager's hints for a container that asks for ``cpus``; None if they are not known.

    Containers of the same pod have taken ``before`` CPUs, of which ordinary init containers left
    ``reusable`` for use again: then only NUMA nodes will do that include those.
    """
    every = sum(1 << i for i, node in enumerate(facts.nodes) if node.cpus)
    fewest = min(
        (m.bit_count() for m in masks(every) if _cpus(facts, m) >= cpus),
        default=every.bit_count(),
    )
    fewest_sockets = _fewest_sockets(facts, every, fewest) if facts.socket_aligned else 0
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


def _cpus(facts: NumaFacts, nodes: Mask) -> int:
    return sum(facts.nodes[i].cpus.bit_count() for i in positions(nodes))


def _sockets(facts: NumaFacts, nodes: Mask) -> set[int | None]:
    return {facts.nodes[i].socket for i in positions(nodes)}


def _fewest_sockets(facts: NumaFacts, every: Mask, fewest: int) -> int | None:
    """As many sockets as the fewest NUMA nodes make up; None where sockets are not known."""
    sockets = _sockets(facts, every)
    if None in sockets:
        return None
    each = every.bit_count() // len(sockets)
    return -(-fewest // each) if each else -1
