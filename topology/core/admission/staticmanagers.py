"""The hints of the static CPU Manager and of the static Memory Manager, and what they admit.

They follow ``policy_static.go`` in ``pkg/kubelet/cm/cpumanager`` and ``memorymanager`` of
Kubernetes 1.36. For the CPU Manager, a set of NUMA nodes is a hint if it has enough CPUs that no
container holds.

Apart from the amounts, the Memory Manager has one rule. A NUMA node serves either containers that
are on it alone, or containers of one group of NUMA nodes. If the NUMA nodes of a pod are not known
(:class:`~topology.core.numaresources.FreeNumaResources`), it may take its memory from any of them.
It forms a group if none of its NUMA nodes is in use.
"""

from collections import defaultdict
from collections.abc import Iterable

from topology.core.admission.topologyhints import ProviderHints, TopologyHint, all_nodes, masks
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
) -> ProviderHints | None:
    """Return the CPU Manager's hints for a container that asks for ``cpus``; None if unknown.

    Earlier containers of the pod have taken ``before`` CPUs. Ordinary init containers left
    ``reusable`` of them for use again. Then a hint has to include the NUMA nodes of these CPUs.
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
    """The bytes of each type of memory on one NUMA node or on several together. Each sum is
    computed once."""

    def __init__(self, by_node: list[Amounts]) -> None:
        self._by_node = by_node
        self._known: dict[Mask, dict[str, int]] = {}

    def suffice(self, nodes: Mask, amounts: Amounts) -> bool:
        """Check whether these NUMA nodes together have these amounts."""
        there = self._known.get(nodes)
        if there is None:
            there = dict(added(*(self._by_node[i] for i in positions(nodes))))
            self._known[nodes] = there
        return all(there.get(kind, 0) >= amount for kind, amount in amounts)


class MemoryLeft:
    """The memory that a machine's NUMA nodes have left, and the groups that the nodes are in."""

    def __init__(self, config: NumaConfig, numa_free: FreeNumaResources) -> None:
        tables = [node.memory for node in config.nodes]
        self.total = _Sums(tables)
        # `most` is left after the terminating pods have released theirs, `least` before that.
        self.most = _left(tables, numa_free.blocks)
        self.least = _left(tables, (*numa_free.blocks, *numa_free.terminating))
        self.held = _groups(numa_free.blocks)
        self.terminating = _groups(numa_free.terminating)


def _left(tables: list[Amounts], blocks: Iterable[MemoryBlock]) -> _Sums:
    """Return the memory that is left by NUMA node.

    A block on several NUMA nodes takes its amount from the first of them, then from the next.
    """
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
    """The Memory Manager of a node, with the bounds of what it has left for one container."""

    def __init__(
        self,
        config: NumaConfig,
        numa_free: FreeNumaResources,
        *,
        # Under `restricted` and `single-numa-node` the Topology Manager admits a container only on
        # the fewest NUMA nodes that can have its memory. Then a container that fits on one NUMA
        # node forms no group.
        only_fewest: bool,
        before: Amounts = (),  # the memory that other containers of the pod may have taken
        left: MemoryLeft | None = None,  # from `config` and `numa_free`, if it is already computed
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

    def hints(self, amounts: Amounts) -> ProviderHints:
        """Return the hints for a container. They are the same for each type of memory."""
        hinted: list[tuple[Mask, bool]] = []
        fewest = self._every.bit_count()
        for nodes in masks(self._every):
            if not self._total.suffice(nodes, amounts):
                continue
            fewest = min(fewest, nodes.bit_count())
            if self._unknown:
                hinted.append((nodes, False))
            elif self._most.suffice(nodes, amounts) and all(
                # whether the groups of pods that are not terminating allow these NUMA nodes
                self._held[i] <= {nodes} or len(self._held[i]) > 1
                for i in positions(nodes)
            ):
                hinted.append((nodes, self._has_surely(nodes, amounts) and self._serves(nodes)))
        return tuple(
            TopologyHint(nodes, nodes.bit_count() == fewest, sure) for nodes, sure in hinted
        )

    def accepted(self, amounts: Amounts, hints: ProviderHints) -> frozenset[Mask]:
        """Return the merged NUMA nodes with which a container surely gets its memory.

        A merged hint may name fewer NUMA nodes than a hint of this manager. If their memory does
        not suffice, the manager takes one of its own hints that includes them. If it does suffice,
        they must not break up a group, unless they are one NUMA node alone.
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
                continue  # the memory of a group on each of its NUMA nodes is unknown
            serves = self._has_surely(nodes, amounts) and self._serves(nodes)
            if single or serves or not self._most.suffice(nodes, amounts):
                accepted.add(nodes)
        return frozenset(accepted)

    def _has_surely(self, nodes: Mask, amounts: Amounts) -> bool:
        """Check whether enough memory is left there, wherever other pods take theirs."""
        more = tuple((kind, amount + self._taken.get(kind, 0)) for kind, amount in amounts)
        return self._least.suffice(nodes, more)

    def _serves(self, nodes: Mask) -> bool:
        """Check whether the groups surely allow these NUMA nodes."""
        single = nodes.bit_count() == 1
        for i in positions(nodes):
            held, terminating = self._held[i], self._terminating[i]
            if not held | terminating <= {nodes}:
                return False
            if not held and (self._may_group or (self._taken and not single)):
                return False
        return True


def _groups(blocks: Iterable[MemoryBlock]) -> defaultdict[int, set[Mask]]:
    """Return the groups that each NUMA node is in: one at most, unless the data is inconsistent."""
    groups: defaultdict[int, set[Mask]] = defaultdict(set)
    for block in blocks:
        for node in block.nodes:
            groups[node].add(sum(1 << n for n in block.nodes))
    return groups
