"""The room of a node: CPUs and memory that its pods may get exclusively, from the report.

The report names pods, not their UIDs. It also names pods without GPUs, of which we know nothing
else. The rules are those of the ledger (:mod:`.ledger`):

1. Some pod has what the report shows. It may release that any moment if it is ending, has ended, or
   is unknown although the report shows its GPUs.
2. A pod that is bound and not shown yet takes its CPUs from anywhere. So do the hidden parts of a
   pod (init containers), and a running pod that is missing from the report.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.pods.record import PodName, PodRecord
from topology.core.graph import NodeTopology
from topology.core.numa import Holding, MemoryBlock
from topology.core.report import Report
from topology.core.requests import Exclusive
from topology.core.room import Room, added_up


def room(
    topology: NodeTopology,
    report: Report,
    pods: Iterable[PodRecord],
    unreported: Collection[str],
) -> Room | None:
    """The room of a node; None if its record does not say what its managers have given.

    ``pods`` are those with this node, ``unreported`` the UIDs of those that are counted as
    unreported: they take their part later.
    """
    numa, holdings = topology.allocator.numa, report.holdings
    if numa is None or holdings is None:
        return None
    named: defaultdict[PodName, list[PodRecord]] = defaultdict(list)
    for pod in pods:
        named[pod.namespace, pod.name].append(pod)
    gone = {(a.namespace, a.pod) for a in report.allocations} - named.keys()
    held = back = 0
    blocks: list[MemoryBlock] = []
    ending: list[MemoryBlock] = []
    shown: dict[PodName, Holding] = {}
    for holding in holdings:
        name = (holding.namespace, holding.pod)
        shown[name] = holding
        if name in gone or any(pod.ended or pod.deleting for pod in named[name]):
            back |= holding.cpus
            ending += holding.memory
        else:
            held |= holding.cpus
            blocks += holding.memory
    left = numa.allocatable & ~(held | back)
    returning = numa.allocatable & back & ~held
    left_over = Room(
        tuple((node.cpus & left).bit_count() for node in numa.nodes),
        tuple((node.cpus & returning).bit_count() for node in numa.nodes),
        (numa.whole_cores & left).bit_count(),
        (numa.whole_cores & returning).bit_count(),
        blocks=added_up(numa, blocks),
        ending=added_up(numa, ending),
    )
    for name, theirs in named.items():
        for pod in theirs:
            if pod.uid not in unreported and not pod.ended:
                left_over = _without_the_rest(left_over, pod, shown.get(name))
    return left_over


def _without_the_rest(room: Room, pod: PodRecord, holding: Holding | None) -> Room:
    """The room without what a running pod has beside what the report shows."""
    request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
    exclusive = Exclusive.NOTHING if request is None else request.exclusive
    if holding is None or not exclusive.demands:
        return room.beside(exclusive)
    amounts: defaultdict[str, int] = defaultdict(int)
    for block in holding.memory:
        amounts[block.type] += block.amount
    memory = tuple(
        (kind, amount - amounts[kind])
        for kind, amount in exclusive.most_memory
        if amount > amounts[kind]
    )
    return room.without(max(0, exclusive.most_cpus - holding.cpus.bit_count()), memory)
