"""An overview of the cluster: nodes by machine kind, with similar ones together, on one page.

Up to :data:`ALONE` nodes have a drawing each. Of more nodes, those that are alike share one drawing
with their number. They are alike in all that a drawing of one of them shows; or, if that still
makes too many drawings for a page, in how many GPUs have each state. A drawing never shows what
does not hold for all of its nodes.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlencode

from markupsafe import Markup

from scheduler_extender.explain.gpustates import (
    USED,
    Flag,
    NodeState,
    Totals,
    Use,
    totals,
    use_text,
)
from scheduler_extender.explain.wording import set_text
from scheduler_extender.web.drawing import MIXED, counted
from topology.core.devices import NodeName
from topology.core.links import Via, is_glob, matches_glob
from topology.core.requests import at_most

T = TypeVar("T")
ALONE = 96  # the most nodes of which each has its own drawing
TILES = 96  # the most drawings on a page
NAMES = 2  # the most names that are written; the rest is counted
KINDS = 40  # the most kinds of machines with a section on a page; the rest is counted together


class Likeness(Enum):
    """What nodes with one drawing have in common. The value is its word in addresses."""

    LOOKS = "looks"  # all that a drawing of one of them shows
    USES = "uses"  # how many GPUs have each state
    MIXED = "mixed"  # the same with all GPUs in use as one state, except mismatched ones

    @property
    def word(self) -> str:
        """The word for readers."""
        return "alike" if self is Likeness.LOOKS else "similar"


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a page. An empty word lets every node through."""

    kind: str = ""
    use: str = ""
    flag: str = ""
    namespace: str = ""
    name: str = ""
    like: str = ""
    by: str = ""
    sort: str = ""  # the column that a table is sorted by, after a minus if it descends

    def let(self, nodes: Iterable[NodeState]) -> list[NodeState]:
        """Return the nodes that pass the filters."""
        seen = [node for node in nodes if self._lets(node)]
        if not self.like:
            return seen
        by = next((each for each in Likeness if each.value == self.by), Likeness.LOOKS)
        keys = {node.name: _key(node, by, self) for node in seen}
        wanted = keys.get(NodeName(self.like))
        return [node for node in seen if keys[node.name] == wanted] if wanted is not None else []

    def _lets(self, node: NodeState) -> bool:
        if self.kind and node.kind != self.kind:
            return False
        if self.use and not any(use.value == self.use and n for use, n in node.uses.items()):
            return False
        if self.flag and not any(flag.value == self.flag for flag in node.flags):
            return False
        if not self.namespace and means(self.name, node.name):
            return True
        return bool(self.found(node))

    def found(self, node: NodeState) -> frozenset[int]:
        """Return the positions of GPUs whose pods have the wanted name and namespace."""
        if not (self.name or self.namespace):
            return frozenset()
        return frozenset(
            p
            for p, gpu in enumerate(node.gpus)
            if any(self.lets_pod(holder.name) for holder in gpu.holders)
        )

    def lets_pod(self, full_name: str, *words: str) -> bool:
        """Check whether a pod has the wanted namespace, and the wanted name or such ``words``."""
        namespace, _, name = full_name.partition("/")
        wanted = self.namespace
        there = matches_glob(wanted, namespace) if is_glob(wanted) else wanted in ("", namespace)
        return there and means(self.name, full_name, name, *words)

    @property
    def any(self) -> bool:
        """Whether some node or pod may be left out."""
        return any(name != "sort" for name in self.words)

    @property
    def names(self) -> str:
        """The filters by name as the end of an address, for another page."""
        return Filters(namespace=self.namespace, name=self.name).query()

    @property
    def words(self) -> dict[str, str]:
        """The filters that are not empty."""
        return {name: word for name in FILTERS if (word := getattr(self, name))}

    def query(self, **changes: str) -> str:
        """Return these filters with ``changes`` as the end of an address.

        It is empty without any filter.
        """
        words = replace(self, **changes).words
        return f"?{urlencode(words)}" if words else ""


FILTERS = tuple(each.name for each in fields(Filters))  # the names of the filters in addresses


def means(wanted: str, *names: str) -> bool:
    """Check whether ``wanted`` is a part of one of the names, or a glob over the whole of it.

    >>> means("train", "team-a/train-0"), means("train-?", "team-a/train-0", "train-0")
    (True, True)
    >>> means("TRAIN*", "team-a/train-0")
    False
    """
    wanted = wanted.lower()
    if is_glob(wanted):
        return matches_glob(wanted, *(name.lower() for name in names))
    return any(wanted in name.lower() for name in names)


def ordered(rows: Iterable[T], columns: Mapping[str, Callable[[T], Any]], sort: str) -> list[T]:
    """Return the rows by the column ``sort``, after a minus descending; as they are if unknown.

    >>> ordered(["b", "ccc", "aa"], {"length": len}, "-length")
    ['ccc', 'aa', 'b']
    """
    key = columns.get(sort.removeprefix("-"))
    return sorted(rows, key=key, reverse=sort.startswith("-")) if key is not None else list(rows)


@dataclass(frozen=True, slots=True)
class Tile:
    """One drawing, of one node or of several."""

    sample: NodeState
    nodes: tuple[NodeName, ...]  # all nodes of the drawing
    likeness: Likeness = Likeness.LOOKS  # what they have in common with the sample
    found: frozenset[int] = frozenset()  # positions of the sample's GPUs that have the wanted name

    @property
    def many(self) -> int:
        """The number of nodes of the drawing."""
        return len(self.nodes)

    @property
    def exact(self) -> bool:
        """Whether the nodes are alike in all that a drawing of one of them shows."""
        return self.likeness is Likeness.LOOKS

    @property
    def counts(self) -> dict[str, int]:
        """The GPUs of each node by the value of their state, as far as the nodes are alike."""
        return _counts(self.sample, self.likeness)

    @property
    def counts_text(self) -> str:
        """The counts in words: what similar nodes have in common."""
        return ", ".join(f"{n} {use_text(css)}" for css, n in self.counts.items())


@dataclass(frozen=True, slots=True)
class KindSection:
    """All nodes of one kind of machine, with drawings of some."""

    kind: str
    totals: Totals
    tiles: tuple[Tile, ...]
    unseen: int  # nodes without a drawing, since the page has no room


@dataclass(frozen=True, slots=True)
class Glance:
    """The whole map."""

    filters: Filters
    total: int  # all nodes
    seen: Totals  # the nodes that pass the filters
    flags: Counter[Flag]  # of these nodes
    kinds: tuple[str, ...]  # all kinds, for the filter
    sections: tuple[KindSection, ...]
    kinds_left: int  # kinds without a section of their own

    @property
    def shows(self) -> frozenset[str]:
        """What is drawn beside GPUs, and needs an explanation."""
        return frozenset(word for s in self.sections for t in s.tiles for word in _shows(t))


def _shows(tile: Tile) -> Iterator[str]:
    if tile.many > 1:
        yield "looks" if tile.exact else "similar"
    if MIXED in tile.counts and not tile.exact:
        yield "mixed"
    if tile.exact:
        yield from shown_by(tile.sample)
        if tile.found:
            yield "found"


def shown_by(node: NodeState) -> Iterator[str]:
    """Yield what a drawing of the node shows beside its GPUs."""
    if node.together:
        yield "band"
    if any(gpu.partly for gpu in node.gpus):
        yield "share"
    links = node.topology.shape.distinct_links if node.topology is not None else ()
    if any(link.nvlinks for link in links):
        yield "hub" if any(link.via is Via.SWITCH for link in links) else "line"


def overview(nodes: Sequence[NodeState], filters: Filters) -> Glance:
    """Return the map of the nodes that pass the filters."""
    seen = filters.let(nodes)
    by_kind: dict[str, list[NodeState]] = {}
    for node in seen:
        by_kind.setdefault(node.kind, []).append(node)
    ordered = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    rooms = _rooms([len(by_kind[kind]) for kind in ordered[:KINDS]])
    sections = []
    for kind, room in zip(ordered[:KINDS], rooms, strict=True):
        tiles = _tiles(by_kind[kind], room, filters, alone=len(seen) <= ALONE)
        unseen = sum(tile.many for tile in tiles[room:])
        sections.append(KindSection(kind, totals(by_kind[kind]), tuple(tiles[:room]), unseen))
    return Glance(
        filters,
        len(nodes),
        totals(seen),
        Counter(flag for node in seen for flag in node.flags),
        kinds_of(nodes),
        tuple(sections),
        max(0, len(ordered) - KINDS),
    )


def kinds_of(nodes: Iterable[NodeState]) -> tuple[str, ...]:
    """Return the kinds of machines among these nodes, for the filter."""
    return tuple(sorted({node.kind for node in nodes})[: KINDS * 2])


def _rooms(sizes: Sequence[int]) -> list[int]:
    """Return how many drawings each kind of machine may have: one each, the rest shared evenly.

    >>> _rooms([3, 500]), sum(_rooms([1000] * 40)) <= TILES
    ([3, 93], True)
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


def _tiles(nodes: list[NodeState], room: int, filters: Filters, *, alone: bool) -> list[Tile]:
    """Return drawings of all nodes, those of most nodes first. There may be more than ``room``."""
    if alone and len(nodes) <= room:
        return [Tile(node, (node.name,), found=filters.found(node)) for node in nodes]
    keys = {node.name: [_key(node, each, filters) for each in Likeness] for node in nodes}
    found: list[Tile] = []
    for level, _ in enumerate(Likeness):
        groups = _together(nodes, lambda node: keys[node.name][level])  # noqa: B023 (used at once)
        found = [_tile(group, keys, filters) for group in groups]
        if len(found) <= room:
            break
    return found


def _tile(
    nodes: list[NodeState], keys: Mapping[NodeName, Sequence[Hashable]], filters: Filters
) -> Tile:
    """Return the drawing of these nodes.

    ``keys`` has for each name the keys of what nodes have in common, one for each
    :class:`Likeness`.
    """
    sample, names = nodes[0], tuple(node.name for node in nodes)
    alike = next(
        likeness
        for level, likeness in enumerate(Likeness)
        if all(keys[name][level] == keys[sample.name][level] for name in names)
    )
    return Tile(sample, names, alike, filters.found(sample))


def _key(node: NodeState, likeness: Likeness, filters: Filters) -> Hashable:
    """Return a key that is equal for nodes that are alike in this way.

    It has all that the node's drawing shows but its name, or how many GPUs have each state.
    """
    if likeness is not Likeness.LOOKS:
        return tuple(_counts(node, likeness).items()), node.flags
    shape = node.topology.shape if node.topology is not None else None
    gpus = tuple(gpu.key for gpu in node.gpus)
    return shape, gpus, node.together, node.flags, node.coming, filters.found(node)


def _counts(node: NodeState, likeness: Likeness) -> dict[str, int]:
    """Return the number of GPUs by the value of their state, in the order of :class:`.Use`.

    For :attr:`Likeness.MIXED`, all GPUs in use count as one state, but mismatched ones still count
    separately.
    """
    counts = {use.value: node.uses[use] for use in Use if node.uses[use]}
    if likeness is not Likeness.MIXED:
        return counts
    used = sum(counts.pop(use.value, 0) for use in USED if use is not Use.MISMATCHED)
    return counts | ({MIXED: used} if used else {})


def _together(
    nodes: Iterable[NodeState], key: Callable[[NodeState], Hashable]
) -> list[list[NodeState]]:
    """Group the nodes with equal keys, the largest group first."""
    found: dict[Hashable, list[NodeState]] = {}
    for node in nodes:
        found.setdefault(key(node), []).append(node)
    return sorted(found.values(), key=lambda group: (-len(group), group[0].name))


def picture_of(tile: Tile) -> Markup:
    """Return the drawing of nodes that are alike only in their counts."""
    gpus = f"{tile.many} nodes: {len(tile.sample.gpus)} GPUs"
    return counted(tile.counts, f"{gpus}, {tile.counts_text}")


def who(node: NodeState) -> list[tuple[str, str]]:
    """Return the pods on a node, each after its GPUs, then the memory in use of shared GPUs."""
    if node.topology is None:
        return []
    on: dict[str, list[int]] = {}
    memory: list[tuple[str, str]] = []
    for gpu, state in zip(node.topology.gpus, node.gpus, strict=True):
        for holder in state.holders:
            on.setdefault(holder.name, []).append(gpu.index)
        if state.memory_used:
            words = f"{at_most(state.memory_used)} of {at_most(gpu.memory)} in use"
            memory.append((str(gpu.index), words))
    return [(set_text(sorted(gpus)), pod) for pod, gpus in on.items()] + memory


def some(names: Sequence[str], most: int = NAMES) -> str:
    """Return the first ``most`` names, and how many more there are.

    >>> some(["a"]), some(["a", "b", "c", "d", "e"])
    ('a', 'a, b and 3 more')
    """
    more = len(names) - most
    text = ", ".join(names[:most])
    return f"{text} and {more} more" if more > 0 else text
