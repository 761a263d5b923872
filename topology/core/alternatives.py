"""Which devices will do, in the words of a ResourceClaim: a few sets, any devices of which do.

A claim's ``firstAvailable`` has up to eight alternatives. Each here is a set of GPUs, by product
and PCI address, any ``count`` of which meet the constraints. It has to be so on every machine of
the cluster that has some of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from topology.core.devices import Mask, bus_id, positions
from topology.core.graph import NodeTopology
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import CompiledConstraints, compiled
from topology.core.requests import Constraints
from topology.core.shape import Shape

MOST = 8  # alternatives of one request
MOST_GPUS = 16  # of a machine whose sets are gone through
MOST_TRIED = 500  # sets of one machine that are made larger, and compared
MOST_KINDS = 64  # of machines; those of most nodes are looked at
MOST_COUNTED = 150_000  # sets that are counted; then sets of machines of fewer nodes are left out

Address = tuple[str, str]  # product and PCI address


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What a claim may say.

    ``sets`` come in their order. ``machines`` has each kind of machine with how many of its sets
    meet the constraints, and how many of these are in an alternative.
    """

    sets: tuple[tuple[Address, ...], ...]
    machines: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of machine, by its shape and the addresses of its GPUs, and how many ``nodes`` have
    it."""

    name: str
    shape: Shape
    addresses: tuple[Address, ...]
    nodes: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of machine: ``nodes`` of it, and the sets that meet the constraints."""

    name: str
    at: Mapping[Address, int]
    addresses: tuple[Address, ...]
    nodes: int
    good: frozenset[Mask]

    def matching(self, addresses: Iterable[Address]) -> Mask:
        """The positions that an alternative selects here."""
        return sum(1 << self.at[each] for each in addresses if each in self.at)


def grouped(topologies: Iterable[NodeTopology]) -> tuple[MachineKind, ...]:
    """The kinds of machines of these nodes, the most frequent first, at most :data:`MOST_KINDS`.
    Machines of more than :data:`MOST_GPUS` GPUs are left out."""
    alike: dict[tuple[Shape, tuple[Address, ...]], list[NodeTopology]] = {}
    for each in topologies:
        addresses = tuple((gpu.product, bus_id(gpu.pci_bus_id or "")) for gpu in each.gpus)
        if len(addresses) <= MOST_GPUS:
            alike.setdefault((each.shape, addresses), []).append(each)
    kinds = [MachineKind(nodes[0].summary(), *key, len(nodes)) for key, nodes in alike.items()]
    return tuple(sorted(kinds, key=lambda kind: -kind.nodes)[:MOST_KINDS])


def alternatives(
    machines: Iterable[MachineKind], count: int, constraints: Constraints
) -> Alternatives:
    """The alternatives that cover most: of each next one, the most sets that the ones before do not
    have, counted over all nodes."""
    kinds = [_kind(each, count, constraints) for each in machines]
    candidates = (
        tuple(kind.addresses[p] for p in positions(mask))
        for kind in kinds
        for mask in _largest(kind, count)
    )
    covers: dict[tuple[Address, ...], set[tuple[int, Mask]]] = {}
    left = MOST_COUNTED
    for each in candidates:
        if each in covers:
            continue
        selected = [kind.matching(each) for kind in kinds]
        left -= sum(comb(mask.bit_count(), count) for mask in selected)
        if left < 0:
            break
        inside = {(n, mask) for n, here in enumerate(selected) for mask in _inside(here, count)}
        if all(mask in kinds[number].good for number, mask in inside):
            covers[each] = inside
    sound = sorted(covers)
    chosen: list[tuple[Address, ...]] = []
    covered: set[tuple[int, Mask]] = set()

    def gain(each: tuple[Address, ...]) -> int:
        return sum(kinds[number].nodes for number, _ in covers[each] - covered)

    while sound and len(chosen) < MOST:
        best = max(sound, key=gain)
        if not gain(best):
            break
        chosen.append(best)
        covered |= covers[best]
    counts = Counter(number for number, _ in covered)
    told = ((kind.name, len(kind.good), counts[number]) for number, kind in enumerate(kinds))
    return Alternatives(tuple(chosen), tuple(told))


def _kind(alike: MachineKind, count: int, constraints: Constraints) -> _Kind:
    test = compiled(alike.shape, constraints, 0, 1)
    at = {address: p for p, address in enumerate(alike.addresses) if address[1]}
    good = frozenset(_good(test, count) if len(at) == len(alike.addresses) else ())
    return _Kind(alike.name, at, alike.addresses, alike.nodes, good)


def _good(test: CompiledConstraints, count: int) -> Sequence[Mask]:
    masks = subset_masks(test.allowed, count)
    return masks[test.passing(masks, count)[0]].tolist()  # type: ignore[no-any-return]


def _largest(kind: _Kind, count: int) -> list[Mask]:
    """Sets any ``count`` of which are good, made as large as they can be; each good set is in
    one, unless there are too many."""
    found: list[Mask] = []
    everything = range(len(kind.addresses))
    for start in sorted(kind.good):
        if any(start & ~other == 0 for other in found):
            continue
        mask = start
        for p in everything:
            if not mask >> p & 1 and _stays_good(kind, mask, p, count):
                mask |= 1 << p
        found.append(mask)
        if len(found) >= MOST_TRIED:
            break
    return found


def _stays_good(kind: _Kind, mask: Mask, p: int, count: int) -> bool:
    return all(
        sum(1 << q for q in others) | 1 << p in kind.good
        for others in combinations(positions(mask), count - 1)
    )


def _inside(mask: Mask, count: int) -> Iterator[Mask]:
    for chosen in combinations(positions(mask), count):
        yield sum(1 << p for p in chosen)
