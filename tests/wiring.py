"""Whether two nodes are wired alike, however their GPUs are numbered: networkx tells."""

from __future__ import annotations

import networkx as nx

from topology.core.patterns import Rows
from topology.core.shape import Shape


def graph_of(rows: Rows) -> nx.Graph[int]:
    """An adjacency as a graph."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(rows)))
    pairs = ((p, q) for p, row in enumerate(rows) for q in range(p) if row >> q & 1)
    graph.add_edges_from(pairs)
    return graph


def _labelled(shape: Shape) -> nx.Graph[int]:
    graph: nx.Graph[int] = nx.Graph()
    for p in range(shape.size):
        graph.add_node(p, gpu=f"{shape.products[p]}/{shape.memory[p]}/{shape.nic[p].name}")
    for p in range(shape.size):
        for q in range(p):
            link = shape.links[p][q]
            if link is not None:
                graph.add_edge(p, q, link=f"{link.pcie.name}/{link.nvlinks}/{link.via.value}")
    return graph


def isomorphic(one: Shape, other: Shape) -> bool:
    """Whether the two shapes are one machine with its GPUs numbered differently."""
    graphs = (_labelled(one), _labelled(other))
    # Without it the search goes through all numberings of two that differ in one link.
    if len({nx.weisfeiler_lehman_graph_hash(g, "link", "gpu") for g in graphs}) > 1:
        return False
    return nx.is_isomorphic(
        *graphs,
        node_match=lambda a, b: a["gpu"] == b["gpu"],
        edge_match=lambda a, b: a["link"] == b["link"],
    )
