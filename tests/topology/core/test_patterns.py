"""Cliques, connected sets and rings, beside networkx and beside every order of the GPUs."""

from itertools import permutations

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.wiring import graph_of
from topology.core.devices import positions
from topology.core.patterns import (
    Rows,
    are_cliques,
    are_connected,
    have_rings,
    is_clique,
    is_connected,
)


@st.composite
def adjacencies(draw: st.DrawFn, most: int = 7) -> Rows:
    n = draw(st.integers(1, most))
    rows = [0] * n
    for p in range(n):
        for q in range(p):
            if draw(st.booleans()):
                rows[p] |= 1 << q
                rows[q] |= 1 << p
    return tuple(rows)


@given(adjacencies())
def test_cliques_and_connected_sets_are_those_of_networkx(rows: Rows) -> None:
    graph, masks = graph_of(rows), np.arange(1, 1 << len(rows), dtype=np.uint64)
    cliques = {sum(1 << p for p in clique) for clique in nx.enumerate_all_cliques(graph)}
    found = zip(masks.tolist(), are_cliques(rows, masks), are_connected(rows, masks), strict=True)
    for mask, clique, connected in found:
        assert is_clique(rows, mask) == clique == (mask in cliques)
        joined = nx.is_connected(graph.subgraph(positions(mask)))
        assert is_connected(rows, mask) == connected == joined


@given(adjacencies(most=6))
def test_a_ring_is_an_order_in_which_each_is_joined_to_the_next(rows: Rows) -> None:
    masks = np.arange(1, 1 << len(rows), dtype=np.uint64)
    flags, sure = have_rings(rows, masks)
    assert sure
    for mask, ring in zip(masks.tolist(), flags.tolist(), strict=True):
        orders = permutations(positions(mask))
        rings = any(
            all(rows[p] >> q & 1 for p, q in zip(order, (*order[1:], order[0]), strict=True))
            for order in orders
        )
        assert ring == (rings or mask.bit_count() < 2), f"{mask:b}"
