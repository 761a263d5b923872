"""Recorded answers of the real allocator and kubelet, where somebody has them.

They are third parties' and no part of this project: tests read them from the folder that
``GPU_TOPOLOGY_SHARED`` names, or from ``../shared``, and skip where there is none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from topology.devices import Bytes, Gpu, GpuUuid, Mask, NodeName
from topology.graph import AllocatorFacts, NodeTopology
from topology.links import Link, LinkKind

SHARED = Path(os.environ.get("GPU_TOPOLOGY_SHARED", Path(__file__).parents[2] / "shared"))

POINTS = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "BOARD"}


def shared(path: str) -> Path:
    """A file or folder of what was collected; skips the test where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"not here: {path} (see GPU_TOPOLOGY_SHARED)")
    return found


def recorded(path: str) -> Path:
    """A recorded file; skips the test where it is absent."""
    return shared(f"recorded/{path}")


def lines(path: str) -> list[Any]:
    """The JSON lines of a recorded file."""
    return [json.loads(line) for line in recorded(path).read_text().splitlines()]


def matrices(path: str) -> dict[str, NodeTopology]:
    """Recorded machines: PCIe points and NVLinks for every pair."""
    found = json.loads(recorded(path).read_text())
    return {name: node(name, matrix) for name, matrix in found.items()}


def node(name: str, matrix: dict[str, list[list[int]]]) -> NodeTopology:
    """A node from matrices of PCIe points and direct NVLinks."""
    n = len(matrix["pcie"])
    gpus = tuple(Gpu(i, GpuUuid(f"GPU-{i}"), "GPU", Bytes(2**34)) for i in range(n))
    links = tuple(
        Link(a, b, LinkKind[POINTS[matrix["pcie"][a][b]]], matrix["nvlinks"][a][b])
        for a in range(n)
        for b in range(a + 1, n)
    )
    return NodeTopology(NodeName(name), gpus, links, allocator=AllocatorFacts("best-effort"))


def mask(indices: list[int]) -> Mask:
    """A list of GPU indices as a mask."""
    return sum(1 << i for i in indices)
