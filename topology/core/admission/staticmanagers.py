"""The static CPU Manager and the static Memory Manager: their hints, and what they admit.

They follow ``policy_static.go`` in ``pkg/kubelet/cm/cpumanager`` and ``memorymanager`` of
Kubernetes 1.36. For the CPU Manager NUMA nodes are a hint if enough of their CPUs are nobody's.

The Memory Manager has one rule beside the amounts: a NUMA node has either containers on it alone,
or those of one group of NUMA nodes. Pods whose place is not known
(:class:`~topology.core.numaresources.FreeNumaResources`) may take their memory anywhere, and form a
group where none of its NUMA nodes is in use.
"""

from collections import defaultdict
from collections.abc import Iterable

from topology.core.admission.topologyhints import HintProvider, TopologyHint, all_nodes, masks
from topology.core.devices import Mask, positions
from topology.core.numa import MemoryBlock, NumaConfig
from topology.core.numaresources import FreeNumaResources
from topology.core.requests import Amounts, added


def cpu_hints(
    config: NumaConfig,
    numa_free: FreeNumaResources,
    cpus: int,
    *,
    before: int = 0,
    reusable: int = 0,
) -> HintProvider | None:
    """The CPU Manager's hints for a container that asks for ``cpus``; None if they are not known.

    Earlier containers of the pod have taken ``before`` CPUs. Ordinary init containers left
    ``reusable`` of them for use again; then a hint has to include the NUMA nodes of these.
    """
    cpus_of = [node.cpus.bit_count() for node in config.nodes]
    every = sum(1 << i for i, there in enumerate(cpus_of) if there)
    enough = (m for m in masks(every) if sum(cpus_of[i] for i in positions(m)) >= cpus)
    fewest = min((m.bit_count() for m in enough), default=every.bit_count())
    sockets = _sockets(config, every) if config.socket_aligned else set()
    if None in sockets:
        return None
    each = every.bit_count() // len(sockets) if sockets else 0  # NUMA nodes of a socket
    fewest_sockets = -(-fewest // each) if each else -1
    hints = []
    for nodes in masks(every):
        if numa_free.most(nodes) + reusable < cpus:
            continue
        sure = not reusable and numa_free.least(nodes) - before >= cpus
        aligned = config.socket_aligned and len(_sockets(config, nodes)) == fewest_sockets
        hints.append(TopologyHint(nodes, nodes.bit_count() == fewest or aligned, sure))
    return tuple(hints)


def _sockets(config: NumaConfig, nodes: Mask) -> set[int | None]:
    return {config.nodes[i].socket for i in positions(nodes)}


class _Sums:
    """Bytes by type of memory on NUMA nodes, also on several together; each sum is made once."""

    def __init__(self, by_node: list[Amounts]) -> None:
        self._by_node = by_node
        self._known: dict[Mask, dict[str, int]] = {}

    def suffice(self, nodes: Mask, amounts: Amounts) -> bool:
        """Whether these NUMA nodes have so much together."""
        there = self._known.get(nodes)
        if there is None:
            there = dict(added(*(self._by_node[i] for i in positions(nodes))))
            self._known[nodes] = there
        return all(there.get(kind, 0) >= amount for kind, amount in amounts)


class MemoryLeft:
    """What a machine's NUMA nodes have left of their memory, and the groups that they are in."""

    def __init__(self, config: NumaConfig, numa_free: FreeNumaResources) -> None:
        tables = [node.memory for node in config.nodes]
        self.total = _Sums(tables)
        # once pods that are ending have released theirs
        self.most = _left(tables, numa_free.blocks)
        self.least = _left(tables, (*numa_free.blocks, *numa_free.terminating))  # before they have
        self.held = _groups(numa_free.blocks)
        self.terminating = _groups(numa_free.terminating)


def _left(tables: list[Amounts], blocks: Iterable[MemoryBlock]) -> _Sums:
    """What is left. A block on several NUMA nodes is taken from the first, then from the next."""
    left = [dict(table) for table in tables]
    for block in blocks:
        rest = block.amount
        for node in block.nodes:
            if node < len(left):
                used = min(rest, left[node].get(block.type, 0))
                left[node][block.type] = left[node].get(block.type, 0) - used
                rest -= used
    return _Sums([tuple(table.items()) for table in left])


class MemoryManager:
    """What the Memory Manager of a node may have left for one container."""

    def __init__(
        self,
        config: NumaConfig,
        numa_free: FreeNumaResources,
        *,
        # The Topology Manager (`restricted`, `single-numa-node`) admits a container only on as few
        # NUMA nodes as its memory ever needs. One that fits on one NUMA node forms no group then.
        only_fewest: bool,
        before: Amounts = (),  # what other containers of the pod may have taken already
        left: MemoryLeft | None = None,  # of this machine and room, if it is known
    ) -> None:
        left = left or MemoryLeft(config, numa_free)
        self._every = all_nodes(config)
        self._total, self._most, self._least = left.total, left.most, left.least
        self._held, self._terminating = left.held, left.terminating
        self._taken = dict(added(numa_free.taken_memory, before))
        self._unknown = numa_free.memory_unknown
        alone = all(
            self._total.suffice(1 << i, amounts)
            for amounts in (numa_free.largest_memory, before)
            for i in positions(self._every)
        )
        self._may_group = bool(self._taken) and not (only_fewest and alone)

    def hints(self, amounts: Amounts) -> HintProvider:
        """The hints for a container, the same for each type of memory."""
        hinted: list[tuple[Mask, bool]] = []
        fewest = self._every.bit_count()
        for nodes in masks(self._every):
            if not self._total.suffice(nodes, amounts):
                continue
            fewest = min(fewest, nodes.bit_count())
            if self._unknown:
                hinted.append((nodes, False))
            elif self._most.suffice(nodes, amounts) and self._may_serve(nodes):
                hinted.append((nodes, self._has_surely(nodes, amounts) and self._serves(nodes)))
        return tuple(
            TopologyHint(nodes, nodes.bit_count() == fewest, sure) for nodes, sure in hinted
        )

    def accepted(self, amounts: Amounts, hints: HintProvider) -> frozenset[Mask]:
        """The merged NUMA nodes with which a container surely gets its memory.

        A merged hint may name fewer NUMA nodes than a hint of ours. If their memory does not
        suffice, one of our hints that includes them is taken; if it does, they must not break up a
        group, unless it is one NUMA node alone.
        """
        sure = [hint.nodes for hint in hints if hint.sure]
        accepted = set(sure)
        for nodes in masks(self._every):
            if self._unknown or not any(nodes & ~wider == 0 for wider in sure):
                continue
            single = nodes.bit_count() == 1
            if not single and any(
                (self._held[i] | self._terminating[i]) - {nodes} for i in positions(nodes)
            ):
                continue  # how a group's memory lies on its NUMA nodes is not told
            enough = self._has_surely(nodes, amounts)
            short = not self._most.suffice(nodes, amounts)
            if short or (enough and (single or self._serves(nodes))) or single:
                accepted.add(nodes)
        return frozenset(accepted)

    def _has_surely(self, nodes: Mask, amounts: Amounts) -> bool:
        """Whether enough is left there, wherever other pods take theirs."""
        more = tuple((kind, amount + self._taken.get(kind, 0)) for kind, amount in amounts)
        return self._least.suffice(nodes, more)

    def _may_serve(self, nodes: Mask) -> bool:
        """Whether the groups that stay allow it."""
        return all(self._held[i] <= {nodes} or len(self._held[i]) > 1 for i in positions(nodes))

    def _serves(self, nodes: Mask) -> bool:
        """Whether the groups surely allow it."""
        single = nodes.bit_count() == 1
        for i in positions(nodes):
            held, terminating = self._held[i], self._terminating[i]
            if not held | terminating <= {nodes}:
                return False
            if not held and (self._may_group or (self._taken and not single)):
                return False
        return True


def _groups(blocks: Iterable[MemoryBlock]) -> defaultdict[int, set[Mask]]:
    """The groups that each NUMA node is seen in: one, unless what we see is out of step."""
    groups: defaultdict[int, set[Mask]] = defaultdict(set)
    for block in blocks:
        for node in block.nodes:
            groups[node].add(sum(1 << n for n in block.nodes))
    return groups
