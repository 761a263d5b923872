"""The alternatives of a ResourceClaim: sets of GPUs of which any ``count`` meet the constraints.

A claim's ``firstAvailable`` has up to eight alternatives. Each alternative is a set of GPUs, named
by product and PCI address. On every machine of the cluster that has some of these GPUs, any
``count`` of them meet the constraints.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

from topology.core.devices import Mask, bus_id, positions
from topology.core.graph import NodeTopology
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import compiled
from topology.core.requests import Constraints, Pattern
from topology.core.shape import Shape

MOST = 8  # alternatives of one request
MOST_GPUS = 16  # larger machines are left out
MOST_TRIED = 500  # candidate sets of one machine
MOST_KINDS = 64  # kinds of machines; those with the most nodes are examined
# The most steps of one evaluation. Beyond them, the kinds of machines with fewer nodes, or some of
# the sets, are left out.
MOST_STEPS = 500_000

Address = tuple[str, str]  # product and PCI address


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives that a claim may name.

    ``sets`` are in the order in which the claim should name them. ``machines`` has an entry for
    each kind of machine that was examined: its name, how many of its sets meet the constraints, and
    how many of these are in an alternative.
    """

    sets: tuple[tuple[Address, ...], ...]
    machines: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of machine, known by its shape and the addresses of its GPUs.

    ``nodes`` is the number of nodes of this kind.
    """

    name: str
    shape: Shape
    addresses: tuple[Address, ...]
    nodes: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of machine, with its sets that meet the constraints."""

    machine: MachineKind
    at: Mapping[Address, int]
    good: frozenset[Mask]


@dataclass(slots=True)
class _Steps:
    """The steps left of :data:`MOST_STEPS`. A step examines about one set of one machine."""

    left: int

    def take(self, steps: int) -> bool:
        """Take ``steps`` steps, and return whether that many were left."""
        self.left -= steps
        return self.left >= 0


def grouped(topologies: Iterable[NodeTopology]) -> tuple[MachineKind, ...]:
    """Return the kinds of machines of these nodes, the most frequent first.

    At most :data:`MOST_KINDS` are returned. Machines of more than :data:`MOST_GPUS` GPUs are left
    out.
    """
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
    """Return up to :data:`MOST` alternatives, chosen greedily.

    Each next alternative covers the most sets that the earlier ones do not cover, counted over all
    nodes.
    """
    steps = _Steps(MOST_STEPS)
    kinds: list[_Kind] = []
    rings = (constraints.pattern is Pattern.RING) + (constraints.min_bandwidth is not None)
    for machine in machines:
        # The steps that it takes to find the good sets. Rings need a table of all sets of GPUs.
        gpus = len(machine.addresses)
        steps.take(comb(gpus, count) // 4 + rings * (1 << gpus) // 8)
        if steps.left < MOST_STEPS // 2:
            break  # the search below needs the other half
        kinds.append(_kind(machine, count, constraints))
    covers = _covers(kinds, count, steps)
    sound = sorted(covers)
    chosen: list[tuple[Address, ...]] = []
    covered: list[set[Mask]] = [set() for _ in kinds]

    def gain(each: tuple[Address, ...]) -> int:
        return sum(
            kinds[n].machine.nodes * len(here - covered[n]) for n, here in covers[each].items()
        )

    while sound and len(chosen) < MOST:
        best = max(sound, key=gain)
        if not gain(best):
            break
        chosen.append(best)
        for number, here in covers[best].items():
            covered[number] |= here
    examined = (
        (k.machine.name, len(k.good), len(here)) for k, here in zip(kinds, covered, strict=True)
    )
    return Alternatives(tuple(chosen), tuple(examined))


def _covers(
    kinds: Sequence[_Kind], count: int, steps: _Steps
) -> dict[tuple[Address, ...], dict[int, set[Mask]]]:
    """Return the possible alternatives, each with its sets on each kind of machine.

    On every kind of machine, all sets of a possible alternative meet the constraints.
    """
    found: dict[tuple[Address, ...], dict[int, set[Mask]]] = {}
    for kind in kinds:
        for mask in islice(_largest(kind, count, steps), MOST_TRIED):
            each = tuple(kind.machine.addresses[p] for p in positions(mask))
            if each in found:
                continue
            selected = [sum(1 << k.at[a] for a in each if a in k.at) for k in kinds]
            if not steps.take(len(kinds) + sum(comb(m.bit_count(), count) for m in selected)):
                return found
            inside = {n: set(_inside(here, count)) for n, here in enumerate(selected) if here}
            if all(here <= kinds[number].good for number, here in inside.items()):
                found[each] = inside
    return found


def _kind(machine: MachineKind, count: int, constraints: Constraints) -> _Kind:
    at = {address: p for p, address in enumerate(machine.addresses) if address[1]}
    test = compiled(machine.shape, constraints, 0, 1)
    masks = subset_masks(test.allowed, count)
    good = (
        masks[test.passing(masks, count)[0]].tolist() if len(at) == len(machine.addresses) else ()
    )
    return _Kind(machine, at, frozenset(good))


def _largest(kind: _Kind, count: int, steps: _Steps) -> Iterator[Mask]:
    """Yield sets of which any ``count`` GPUs are good, each as large as it can be.

    Each good set is inside one of them, unless the steps run out.
    """
    inside: set[Mask] = set()
    for start in sorted(kind.good):
        if start in inside:
            continue
        mask = start
        for p in range(len(kind.machine.addresses)):
            if mask >> p & 1:
                continue
            if not steps.take(comb(mask.bit_count(), count - 1)):
                return
            if all(others | 1 << p in kind.good for others in _inside(mask, count - 1)):
                mask |= 1 << p
        inside.update(_inside(mask, count))
        yield mask


def _inside(mask: Mask, count: int) -> Iterator[Mask]:
    return map(sum, combinations([1 << p for p in positions(mask)], count))
