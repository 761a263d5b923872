"""A node's hardware as a graph of networkx, which is imported nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.core.graph import NodeTopology

if TYPE_CHECKING:
    from networkx import Graph


def graph_of(topology: NodeTopology) -> Graph[str]:
    """Return the graph that :func:`topology.networkx_graph` describes."""
    import networkx

    graph: Graph[str] = networkx.Graph(name=topology.name)
    homes = {}
    for gpu in topology.gpus:
        homes[f"gpu-{gpu.index}"] = gpu.numa_node
        about = {"uuid": gpu.uuid, "product": gpu.product, "memory": gpu.memory}
        graph.add_node(f"gpu-{gpu.index}", kind="gpu", number=gpu.index, **about)
    for nic in topology.nics:
        homes[f"nic-{nic.name}"] = nic.numa_node
        graph.add_node(f"nic-{nic.name}", kind="nic")
        for index, kind in nic.distances:
            graph.add_edge(f"gpu-{index}", f"nic-{nic.name}", link=kind.label)
    for device, number in homes.items():
        if number is not None:
            graph.add_node(f"numa-{number}", kind="numa", number=number)
            graph.add_edge(device, f"numa-{number}", link="NUMA")
    for link in topology.links:
        speed = {"nvlinks": link.nvlinks, "bandwidth": float(link.bandwidth)}
        graph.add_edge(f"gpu-{link.a}", f"gpu-{link.b}", link=link.kind.label, **speed)
    return graph
