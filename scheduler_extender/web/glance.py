"""The cluster at a glance: nodes by machine kind, alike ones together, within a page's bounds.

Up to :data:`ALONE` nodes each stand for themselves. Of more, nodes whose drawings would be the same
share one, with their number; where that is still too much for a page, nodes share one whose numbers
of free, held and sick GPUs are the same, drawn as one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler_extender.state.answers.capacity import Capacity
from scheduler_extender.told.nodes import Flag, NodeState, Use

ALONE = 48
"""Nodes that are each drawn by themselves."""
TILES = 72
"""Drawings on a page."""
NAMES = 2
"""Names of which the rest is only counted."""
KINDS = 40
"""Kinds of machines on a page; the rest is counted together."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which nodes are to be seen; empty words let every node through.

    ``use`` is a :class:`.Use` that some GPU has to have, ``flag`` a :class:`.Flag` of the node,
    ``kind`` the machine's line, ``name`` a part of the node's name or of the name of a pod on it.
    """

    kind: str = ""
    use: str = ""
    flag: str = ""
    name: str = ""

    def let(self, node: NodeState) -> bool:
        """Whether a node is to be seen."""
        if self.kind and node.kind != self.kind:
            return False
        if self.use and not any(use.value == self.use and n for use, n in node.uses.items()):
            return False
        if self.flag and not any(flag.value == self.flag for flag in node.flags):
            return False
        return not self.name or self._names(node)

    def _names(self, node: NodeState) -> bool:
        part = self.name.lower()
        return part in node.name.lower() or any(
            part in holder.name.lower() for gpu in node.gpus for holder in gpu.holders
        )

    @property
    def any(self) -> bool:
        """Whether some node may be left out."""
        return bool(self.kind or self.use or self.flag or self.name)


@dataclass(frozen=True, slots=True)
class Tile:
    """One drawing: ``sample`` is drawn, and ``nodes`` are all that it stands for. ``exact`` says
    that they would all look the same."""

    sample: NodeState
    nodes: tuple[str, ...]
    exact: bool = True

    @property
    def many(self) -> int:
        """How many nodes it stands for."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class KindSection:
    """All nodes of one kind of machine: counts over all of them, and drawings of some.

    ``unseen`` nodes are in no drawing, for want of room on the page.
    """

    kind: str
    nodes: int
    gpus: int
    uses: Counter[Use]
    coming: int
    capacity: Capacity
    tiles: tuple[Tile, ...]
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Glance:
    """The whole map. ``total`` counts all nodes, ``seen`` those that the filters let through.

    ``uses``, ``flags`` and ``capacity`` are over the nodes that are seen; ``coming`` counts devices
    of pods on their way there. ``kinds`` are all kinds that there are, for the filter.
    ``kinds_left`` kinds have no section of their own.
    """

    filters: Filters
    total: int
    seen: int
    gpus: int
    uses: Counter[Use]
    flags: Counter[Flag]
    coming: int
    capacity: Capacity
    kinds: tuple[str, ...]
    sections: tuple[KindSection, ...] = field(default=())
    kinds_left: int = 0


def glance(
    nodes: Sequence[NodeState], capacity_of: Callable[[NodeState], Capacity], filters: Filters
) -> Glance:
    """The map of these nodes through these filters."""
    seen = [node for node in nodes if filters.let(node)]
    by_kind: dict[str, list[NodeState]] = {}
    for node in seen:
        by_kind.setdefault(node.kind, []).append(node)
    counted = {kind: _sum(map(capacity_of, group)) for kind, group in by_kind.items()}
    ordered = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    room = _rooms([len(by_kind[kind]) for kind in ordered[:KINDS]])
    return Glance(
        filters,
        len(nodes),
        len(seen),
        sum(len(node.gpus) for node in seen),
        _uses(seen),
        Counter(flag for node in seen for flag in node.flags),
        sum(node.coming for node in seen),
        _sum(counted.values()),
        tuple(sorted({node.kind for node in nodes})[: KINDS * 2]),
        tuple(
            _section(kind, by_kind[kind], counted[kind], tiles, alone=len(seen) <= ALONE)
            for kind, tiles in zip(ordered[:KINDS], room, strict=True)
        ),
        max(0, len(ordered) - KINDS),
    )


def _rooms(sizes: Sequence[int]) -> list[int]:
    """How many drawings each kind of machine may have: one each, the rest shared out evenly.

    >>> _rooms([3, 500]), sum(_rooms([1000] * 40)) <= TILES
    ([3, 69], True)
    """
    found = [min(1, size) for size in sizes]
    left = TILES - sum(found)
    while left > 0:
        open_ones = [i for i, size in enumerate(sizes) if found[i] < size]
        if not open_ones:
            break
        for i in open_ones[:left]:
            found[i] += 1
        left -= min(left, len(open_ones))
    return found


def _section(
    kind: str, nodes: list[NodeState], capacity: Capacity, room: int, *, alone: bool
) -> KindSection:
    tiles = _tiles(nodes, room, alone=alone)
    shown = tiles[:room]
    return KindSection(
        kind,
        len(nodes),
        sum(len(node.gpus) for node in nodes),
        _uses(nodes),
        sum(node.coming for node in nodes),
        capacity,
        tuple(shown),
        sum(tile.many for tile in tiles[room:]),
    )


def _tiles(nodes: list[NodeState], room: int, *, alone: bool) -> list[Tile]:
    if alone and len(nodes) <= room:
        return [Tile(node, (node.name,)) for node in nodes]
    exact = _together(nodes, _looks)
    if len(exact) <= room:
        return [Tile(group[0], tuple(node.name for node in group)) for group in exact]
    return [
        Tile(group[0], tuple(node.name for node in group), len({*map(_looks, group)}) == 1)
        for group in _together(nodes, _counts)
    ]


def _together(
    nodes: Iterable[NodeState], key: Callable[[NodeState], Hashable]
) -> list[list[NodeState]]:
    """The nodes with equal keys together, the largest group first."""
    found: dict[Hashable, list[NodeState]] = {}
    for node in nodes:
        found.setdefault(key(node), []).append(node)
    return sorted(found.values(), key=lambda group: (-len(group), group[0].name))


def _looks(node: NodeState) -> Hashable:
    """All that a drawing of the node shows but its name."""
    shape = node.topology.shape if node.topology is not None else None
    return shape, tuple(gpu.key for gpu in node.gpus), node.flags, node.coming


def _counts(node: NodeState) -> Hashable:
    free, sick = node.free, node.uses[Use.SICK]
    return free, sick, node.uses[Use.BROKEN] > 0, node.uses[Use.STRANDED] > 0, node.flags


def _uses(nodes: Iterable[NodeState]) -> Counter[Use]:
    found: Counter[Use] = Counter()
    for node in nodes:
        found.update(node.uses)
    return found


def _sum(capacities: Iterable[Capacity]) -> Capacity:
    return sum(capacities, Capacity())


def some(names: Sequence[str], most: int = NAMES) -> str:
    """Names in brief, the first ``most`` of them.

    >>> some(["a"]), some(["a", "b", "c", "d", "e"])
    ('a', 'a, b and 3 more')
    """
    more = len(names) - most
    text = ", ".join(names[:most])
    return f"{text} and {more} more" if more > 0 else text
