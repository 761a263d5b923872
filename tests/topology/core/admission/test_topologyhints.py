"""The merge of hints, held against every combination tried one after the other.

:func:`folded` does what the Topology Manager does, combination by combination, and knows none of
the short cuts of the model.
"""

import random
from collections.abc import Iterator
from itertools import product

import pytest

from topology.core.admission.topologyhints import (
    ProviderHints,
    TopologyHint,
    not_preferred,
    on_one_node,
    preferred,
    rankings,
)
from topology.core.devices import Mask, positions

DISTANCES = ((10, 12, 21, 32), (12, 10, 32, 21), (21, 32, 10, 12), (32, 21, 12, 10))
TRIES = 400


def folded(providers: list[ProviderHints], nodes: int, *, closest: bool) -> tuple[Mask, bool]:
    """The best combination, found by comparing each with the best so far."""
    every = (1 << nodes) - 1
    given = [list(p) if p else [None] for p in providers]
    narrowest = [min(h.nodes.bit_count() for h in p) for p in providers if p]
    wanted = max(narrowest, default=0)
    best: tuple[Mask, bool] | None = None
    for combination in product(*given):
        merged, is_preferred = every, True
        named = {hint.nodes for hint in combination if hint is not None}
        for hint in combination:
            merged &= every if hint is None else hint.nodes
            is_preferred &= hint is not None and hint.preferred
        candidate = (merged, is_preferred and len(named) <= 1)
        if merged and (best is None or _better(candidate, best, wanted, closest=closest)):
            best = candidate
    return best or (every, False)


def _better(
    candidate: tuple[Mask, bool], best: tuple[Mask, bool], wanted: int, *, closest: bool
) -> bool:
    if candidate[1] != best[1]:
        return candidate[1]
    mine, theirs = candidate[0].bit_count(), best[0].bit_count()
    if candidate[1] or theirs > wanted or mine == theirs:
        return _fitter(candidate[0], best[0], closest=closest)
    return theirs < mine <= wanted


def _fitter(candidate: Mask, best: Mask, *, closest: bool) -> bool:
    if candidate.bit_count() != best.bit_count():
        return candidate.bit_count() < best.bit_count()
    if closest and _apart(candidate) != _apart(best):
        return _apart(candidate) < _apart(best)
    return candidate < best


def _apart(nodes: Mask) -> float:
    numbers = positions(nodes)
    return sum(DISTANCES[a][b] for a in numbers for b in numbers) / len(numbers) ** 2


def random_provider(rng: random.Random, nodes: int, *, unsure: bool) -> ProviderHints:
    """A provider whose preferred hints are of one size, as real ones are but for sockets."""
    fewest = rng.randint(1, nodes)
    return tuple(
        TopologyHint(mask, mask.bit_count() == fewest, not unsure or rng.random() < 0.5)
        for mask in range(1, 1 << nodes)
        if rng.random() < 0.5
    )


def ours(providers: list[ProviderHints], nodes: int, *, closest: bool) -> set[tuple[Mask, bool]]:
    """What the model says may come."""
    ranked = rankings(closest, DISTANCES)
    found = preferred(providers, ranked)
    merged = {(mask, True) for mask in found.nodes}
    if not found.nodes:
        loose = not_preferred(providers, (1 << nodes) - 1, ranked)
        assert loose is not None
        merged |= {(mask, False) for mask in loose}
    assert found.may_fail is not bool(found.nodes)
    return merged


@pytest.mark.parametrize("closest", [False, True], ids=["lowest", "closest"])
def test_the_merge_is_what_trying_every_combination_finds(closest: bool) -> None:
    rng = random.Random(7)
    for _ in range(TRIES):
        nodes = rng.choice((1, 2, 2, 3, 4))
        providers = [
            random_provider(rng, nodes, unsure=False) for _ in range(rng.choice((1, 2, 2, 3)))
        ]
        assert ours(providers, nodes, closest=closest) == {
            folded(providers, nodes, closest=closest)
        }


def test_hints_that_may_be_given_lead_to_every_merge_that_may_come() -> None:
    rng = random.Random(11)
    for _ in range(TRIES // 2):
        nodes = rng.choice((2, 3))
        providers = [random_provider(rng, nodes, unsure=True) for _ in range(2)]
        found = preferred(providers, rankings(False, DISTANCES))
        for actual in _each_choice(providers):
            mask, is_preferred = folded(actual, nodes, closest=False)
            if is_preferred:
                assert mask in found.nodes
            else:
                assert found.may_fail


def _each_choice(providers: list[ProviderHints]) -> Iterator[list[ProviderHints]]:
    """Each way in which hints that may be given are given or not."""
    unsure = [h for p in providers for h in p if not h.sure]
    for bits in range(min(1 << len(unsure), 256)):
        left_out = {id(h) for i, h in enumerate(unsure) if bits >> i & 1}
        yield [tuple(h for h in p if id(h) not in left_out) for p in providers]


def test_with_unknown_distances_any_numa_nodes_of_as_many_may_come() -> None:
    pairs = tuple(TopologyHint(mask, True) for mask in (0b0011, 0b0101, 0b1100))
    assert preferred([pairs], rankings(None, None)).nodes == (0b0011, 0b0101, 0b1100)
    assert preferred([pairs], rankings(True, DISTANCES)).nodes == (0b0011,)
    alone = tuple(TopologyHint(mask, True) for mask in (0b10, 0b01))
    assert preferred([alone], rankings(None, None)).nodes == (0b01,)


def test_single_numa_node_looks_at_preferred_hints_of_one_node() -> None:
    given = (TopologyHint(0b01, True), TopologyHint(0b10, False), TopologyHint(0b11, True))
    assert on_one_node(given) == (TopologyHint(0b01, True),)
