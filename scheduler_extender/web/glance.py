"""The cluster at a glance: nodes by machine kind, alike ones together, within a page's bounds.

Up to :data:`ALONE` nodes each stand for themselves. Of more, nodes whose drawings would be the same
share one, with their number; where that is still too much for a page, nodes share one whose numbers
of free, held and sick GPUs are the same, drawn as one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from scheduler_extender.told.nodes import Flag, NodeState, Totals, Use, totals

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
            part in "/".join(holder.pod or ()).lower()
            for gpu in node.gpus
            for holder in gpu.holders
        )

    @property
    def any(self) -> bool:
        """Whether some node may be left out."""
        return bool(self.kind or self.use or self.flag or self.name)


@dataclass(frozen=True, slots=True)
class Tile:
    """One drawing, of one node or of several."""

    sample: NodeState  # the one that is drawn
    nodes: tuple[str, ...]  # all that it stands for
    exact: bool = True  # they would all look the same

    @property
    def many(self) -> int:
        """How many nodes it stands for."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class KindSection:
    """All nodes of one kind of machine, with drawings of some."""

    kind: str
    totals: Totals
    tiles: tuple[Tile, ...]
    unseen: int  # nodes in no drawing, for want of room on the page


@dataclass(frozen=True, slots=True)
class Glance:
    """The whole map."""

    filters: Filters
    total: int  # all nodes
    seen: Totals  # those that the filters let through
    flags: Counter[Flag]  # of these
    kinds: tuple[str, ...]  # all that there are, for the filter
    sections: tuple[KindSection, ...]
    kinds_left: int  # kinds without a section of their own


def glance(nodes: Sequence[NodeState], filters: Filters) -> Glance:
    """The map of these nodes through these filters."""
    seen = [node for node in nodes if filters.let(node)]
    by_kind: dict[str, list[NodeState]] = {}
    for node in seen:
        by_kind.setdefault(node.kind, []).append(node)
    ordered = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    rooms = _rooms([len(by_kind[kind]) for kind in ordered[:KINDS]])
    return Glance(
        filters,
        len(nodes),
        totals(seen),
        Counter(flag for node in seen for flag in node.flags),
        tuple(sorted({node.kind for node in nodes})[: KINDS * 2]),
        tuple(
            _section(kind, by_kind[kind], room, alone=len(seen) <= ALONE)
            for kind, room in zip(ordered[:KINDS], rooms, strict=True)
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


def _section(kind: str, nodes: list[NodeState], room: int, *, alone: bool) -> KindSection:
    tiles = _tiles(nodes, room, alone=alone)
    unseen = sum(tile.many for tile in tiles[room:])
    return KindSection(kind, totals(nodes), tuple(tiles[:room]), unseen)


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
    uses = node.uses
    free = sum(uses[use] for use in (Use.FREE, Use.STRANDED, Use.IN_FLIGHT, Use.KEPT_PLACE))
    return free, uses[Use.SICK], uses[Use.BROKEN] > 0, uses[Use.STRANDED] > 0, node.flags


def some(names: Sequence[str], most: int = NAMES) -> str:
    """Names in brief, the first ``most`` of them.

    >>> some(["a"]), some(["a", "b", "c", "d", "e"])
    ('a', 'a, b and 3 more')
    """
    more = len(names) - most
    text = ", ".join(names[:most])
    return f"{text} and {more} more" if more > 0 else text
