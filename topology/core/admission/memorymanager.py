"""The static Memory Manager: its hints, and what it serves.

It follows ``pkg/kubelet/cm/memorymanager/policy_static.go`` of Kubernetes 1.36. Beside the amounts
it has one rule: a NUMA node serves either containers on it alone, or those of one group of NUMA
nodes. Pods whose place is not known (:class:`~topology.core.room.Room`) may take their memory
anywhere, and form a group where none of its NUMA nodes is in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from topology.core.admission.hints import Hint, Provider, all_nodes, masks
from topology.core.devices import Mask, positions
from topology.core.numa import MemoryBlock, NumaFacts
from topology.core.requests import Amounts
from topology.core.room import Room


class _Amounts:
    """Bytes by type of memory on NUMA nodes, also on several together; each sum is made once."""

    def __init__(self, by_node: list[dict[str, int]]) -> None:
        self._by_node = by_node
        self._sums: dict[Mask, dict[str, int]] = {0: {}}

    def on(self, nodes: Mask) -> dict[str, int]:
        """What these NUMA nodes have together."""
        found = self._sums.get(nodes)
        if found is None:
            last = nodes.bit_length() - 1
            found = dict(self.on(nodes & ~(1 << last)))
            for kind, amount in self._by_node[last].items():
                found[kind] = found.get(kind, 0) + amount
            self._sums[nodes] = found
        return found

    def suffice(self, nodes: Mask, amounts: Amounts) -> bool:
        """Whether these NUMA nodes have so much together."""
        there = self.on(nodes)
        return all(there.get(kind, 0) >= amount for kind, amount in amounts)


class MemoryLeft:
    """What a machine's NUMA nodes have left of their memory, and whom they serve.

    ``most`` is left once pods that are ending have released theirs, ``least`` before they have.
    ``held`` and ``ending`` are the groups that each NUMA node serves.
    """

    def __init__(self, facts: NumaFacts, room: Room) -> None:
        self._tables = [dict(node.memory) for node in facts.nodes]
        self.total = _Amounts(self._tables)
        self.most = self._left(room.blocks)
        self.least = self._left((*room.blocks, *room.ending))
        self.held = _groups(room.blocks)
        self.ending = _groups(room.ending)

    def _left(self, blocks: Iterable[MemoryBlock]) -> _Amounts:
        """What is left. A block on several NUMA nodes is taken from the first, then the next."""
        found = [dict(table) for table in self._tables]
        for block in blocks:
            left = block.amount
            for node in block.nodes:
                if node < len(found):
                    used = min(left, found[node].get(block.type, 0))
                    found[node][block.type] = found[node].get(block.type, 0) - used
                    left -= used
        return _Amounts(found)


class MemoryManager:
    """What the Memory Manager of a node may have left for one container.

    ``left`` is that of the same machine and room, where it has been worked out already.
    ``only_fewest`` says that the Topology Manager admits a container on as few NUMA nodes as its
    memory ever needs alone (``restricted``, ``single-numa-node``), so that one which fits on one
    NUMA node forms no group. ``before`` are the amounts that other containers of the pod asked for
    may have taken already.
    """

    def __init__(
        self,
        facts: NumaFacts,
        room: Room,
        *,
        only_fewest: bool,
        before: Amounts = (),
        left: MemoryLeft | None = None,
    ) -> None:
        left = left or MemoryLeft(facts, room)
        self._every = all_nodes(facts)
        self._total, self._most, self._least = left.total, left.most, left.least
        self._held, self._ending = left.held, left.ending
        self._taken = dict(room.taken_memory)
        for kind, amount in before:
            self._taken[kind] = self._taken.get(kind, 0) + amount
        self._unknown = room.memory_unknown
        alone = all(self._fits_on_each(amounts) for amounts in (room.largest_memory, before))
        self._may_group = bool(self._taken) and not (only_fewest and alone)

    def hints(self, amounts: Amounts) -> Provider:
        """The hints for a container, the same for each type of memory."""
        found: list[tuple[Mask, bool]] = []
        fewest = self._every.bit_count()
        for nodes in masks(self._every):
            if not self._total.suffice(nodes, amounts):
                continue
            fewest = min(fewest, nodes.bit_count())
            if self._unknown:
                found.append((nodes, False))
            elif self._most.suffice(nodes, amounts) and self._may_serve(nodes):
                found.append((nodes, self._has_surely(nodes, amounts) and self._serves(nodes)))
        return tuple(Hint(nodes, nodes.bit_count() == fewest, sure) for nodes, sure in found)

    def accepted(self, amounts: Amounts, hints: Provider) -> frozenset[Mask]:
        """The merged NUMA nodes with which a container surely gets its memory.

        A merged hint may name fewer NUMA nodes than a hint of ours. If their memory does not
        suffice, one of our hints that includes them is taken; if it does, they must not break up a
        group, unless it is one NUMA node alone.
        """
        sure = [hint.nodes for hint in hints if hint.sure]
        found = set(sure)
        for nodes in masks(self._every):
            if self._unknown or not any(nodes & ~wider == 0 for wider in sure):
                continue
            single = nodes.bit_count() == 1
            if not single and any(self._groups_of(i) - {nodes} for i in positions(nodes)):
                continue  # how a group's memory lies on its NUMA nodes is not told
            enough = self._has_surely(nodes, amounts)
            short = not self._most.suffice(nodes, amounts)
            if short or (enough and (single or self._serves(nodes))) or single:
                found.add(nodes)
        return frozenset(found)

    def _groups_of(self, node: int) -> set[Mask]:
        return self._held[node] | self._ending[node]

    def _fits_on_each(self, amounts: Amounts) -> bool:
        return all(self._total.suffice(1 << i, amounts) for i in positions(self._every))

    def _has_surely(self, nodes: Mask, amounts: Amounts) -> bool:
        """Whether enough is left there wherever pods take theirs."""
        more = tuple((kind, amount + self._taken.get(kind, 0)) for kind, amount in amounts)
        return self._least.suffice(nodes, more)

    def _may_serve(self, nodes: Mask) -> bool:
        """Whether the grouping of what stays allows it."""
        return all(self._held[i] <= {nodes} or len(self._held[i]) > 1 for i in positions(nodes))

    def _serves(self, nodes: Mask) -> bool:
        """Whether the grouping surely allows it."""
        single = nodes.bit_count() == 1
        for i in positions(nodes):
            held, ending = self._held[i], self._ending[i]
            if not held | ending <= {nodes}:
                return False
            if not held and (self._may_group or (self._taken and not single)):
                return False
        return True


def _groups(blocks: Iterable[MemoryBlock]) -> defaultdict[int, set[Mask]]:
    """The groups that each NUMA node is seen to serve: one, unless what we see is out of step."""
    found: defaultdict[int, set[Mask]] = defaultdict(set)
    for block in blocks:
        for node in block.nodes:
            found[node].add(sum(1 << n for n in block.nodes))
    return found
