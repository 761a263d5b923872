"""The description of a machine that the device plugin of the tests serves."""

from __future__ import annotations

import json

from topology.core.graph import NodeTopology
from topology.core.links import LinkKind, Via

SCORES = {
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}
"""What NVIDIA's allocator scores a pair's PCIe class with."""


def describe(topology: NodeTopology) -> str:
    """The GPUs by position as JSON; a link into a switch is none, as the allocator sees it."""
    n = len(topology.gpus)
    pcie = [[0] * n for _ in range(n)]
    nvlinks = [[0] * n for _ in range(n)]
    position = {gpu.index: p for p, gpu in enumerate(topology.gpus)}
    for link in topology.links:
        a, b = position[link.a], position[link.b]
        pcie[a][b] = pcie[b][a] = SCORES.get(link.pcie, 0)
        nvlinks[a][b] = nvlinks[b][a] = link.nvlinks if link.via is Via.DIRECT else 0
    numa = [-1 if gpu.numa_node is None else gpu.numa_node for gpu in topology.gpus]
    uuids = [gpu.uuid for gpu in topology.gpus]
    return json.dumps({"uuids": uuids, "pcie": pcie, "nvlinks": nvlinks, "numa": numa})
