"""Nodes and their GPUs: the pure model, what feeds it, and the agent that publishes it.

Start with ``core``, the model. ``machines`` is the catalogue of known hardware. ``sources`` reads
the text that people paste, and ``codec`` reads and writes the records of the API server.
``kubeapi`` talks to the API server, and ``agent`` runs on each node. ``emulation`` plays a node for
tests and benchmarks.

A set of GPUs is a *mask*: an ``int`` whose bit *p* stands for the GPU at position *p* of
``NodeTopology.gpus``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from networkx import Graph


def networkx_graph(record: Mapping[str, Any]) -> Graph[str]:
    """Return a node's topology as a graph of networkx, for your own tools.

    ``record`` is a GPUTopology object as ``kubectl get gputopology NODE -o json`` prints it. The
    graph's ``name`` is the node's. Its nodes have a ``kind``:

    * ``gpu-0``: ``gpu``, with the ``number`` of the driver, ``uuid``, ``product`` and ``memory`` in
      bytes
    * ``nic-mlx5_0``: ``nic``
    * ``numa-0``: ``numa``, with its ``number``

    Its edges have a ``link``: ``NUMA`` between a device and its NUMA node, and otherwise
    ``NVLINK``, a PCIe class such as ``PIX``, or ``?`` if it is unknown. Between two GPUs they also
    have the number of ``nvlinks`` and the ``bandwidth`` in GB/s, both ways, 0 if unknown. Raises
    :class:`topology.codec.RecordError`.

    >>> from topology.codec import encode
    >>> from topology.machines import machine
    >>> graph = networkx_graph(encode(machine("dgx1-v100").topology("n")))
    >>> graph.edges["gpu-0", "gpu-3"]
    {'link': 'NVLINK', 'nvlinks': 2, 'bandwidth': 100.0}
    """
    import networkx  # an extra

    from topology.codec import decode

    topology = decode(record).topology
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


def our_version() -> str:
    """Return the version of this package, or ``unknown`` in a source tree without installation."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpu-topology")
    except PackageNotFoundError:
        return "unknown"
