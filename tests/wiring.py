"""Whether two nodes are wired alike, however their GPUs are numbered: networkx tells."""

from __future__ import annotations

import re
from dataclasses import replace

import networkx as nx

from topology.core.devices import Bytes
from topology.core.graph import NodeTopology
from topology.core.links import Link, LinkKind
from topology.core.patterns import Rows
from topology.core.shape import Shape
from topology.machines import MACHINES, Machine


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


def like(topology: NodeTopology) -> Machine | None:
    """The first machine of the catalogue with the same GPU models and links, None where none has.

    GPU models are compared but for their memory size, then NVLinks per pair and PCIe classes. A
    topo matrix hides the PCIe class of NVLinked pairs: where one is unknown, they do not count.
    None for a single GPU, which has no link to compare.
    """
    if len(topology.gpus) < 2:
        return None
    hides = any(link.nvlinks and link.pcie is LinkKind.UNKNOWN for link in topology.links)
    wanted = _compared(topology.shape, hides)
    same_size = (known for known in MACHINES.values() if known.size == wanted.size)
    for known in same_size:
        if isomorphic(wanted, _compared(known.topology(known.name).shape, hides)):
            return known
    return None


def _compared(shape: Shape, hides: bool) -> Shape:
    """What :func:`like` compares; ``hides``: not the PCIe classes of NVLinked pairs."""
    n = shape.size
    return replace(
        shape,
        products=tuple(re.sub(r"-(\d+gb|hbm\d\w?)(?=-|$)", "", p) for p in shape.products),
        memory=(Bytes(0),) * n,
        nic=(LinkKind.UNKNOWN,) * n,
        links=tuple(
            tuple(link and _compared_link(link, hides) for link in row) for row in shape.links
        ),
    )


def _compared_link(link: Link, hides: bool) -> Link:
    hidden = hides and link.nvlinks > 0
    return Link(0, 0, LinkKind.UNKNOWN if hidden else link.pcie, link.nvlinks)
