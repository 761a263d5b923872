"""Recorded answers of the real allocator and kubelet, and other reference data, where it is.

It is third parties' and no part of this project: tests read it from the folder that
``GPU_TOPOLOGY_SHARED`` names, or from ``../shared``, and skip where there is none. With
``GPU_TOPOLOGY_REQUIRE_SHARED=1``, as in ``.ci/run``, they fail instead: a run that checks nothing
against reality must not pass for one that did.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from topology.core.devices import Bytes, Gpu, GpuUuid, Mask, NodeName
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import Link, LinkKind

SHARED = Path(os.environ.get("GPU_TOPOLOGY_SHARED", Path(__file__).parents[2] / "shared"))

REQUIRE = "GPU_TOPOLOGY_REQUIRE_SHARED"

POINTS = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "BOARD"}


def required() -> bool:
    """Whether the absence of reference data is a failure."""
    return os.environ.get(REQUIRE, "") not in ("", "0", "false")


def absence(*parts: str) -> str:
    """Why a test cannot run without a file or folder; empty where it is there."""
    if SHARED.joinpath(*parts).exists():
        return ""
    return f"no reference data here: {'/'.join(parts)} (see GPU_TOPOLOGY_SHARED)"


def shared(*parts: str) -> Path:
    """A file or folder of the reference data; where it is absent the test is skipped or fails."""
    if reason := absence(*parts):
        if required():
            pytest.fail(f"{reason}; {REQUIRE} is set")
        pytest.skip(reason)
    return SHARED.joinpath(*parts)


def needs(*parts: str) -> pytest.MarkDecorator:
    """A mark for tests that read a file or folder in their own way."""
    return pytest.mark.skipif(bool(absence(*parts)) and not required(), reason=absence(*parts))


def files(folder: str, pattern: str) -> list[str]:
    """The files in a folder by their paths, for a parametrisation and then :func:`shared`.

    Where there is none, the pattern itself: the test then says what it misses.
    """
    found = sorted(str(p.relative_to(SHARED)) for p in (SHARED / folder).glob(pattern))
    return found or [f"{folder}/{pattern}"]


def recorded(path: str) -> Path:
    """A recorded file, as :func:`shared` gives it."""
    return shared("recorded", path)


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
    return NodeTopology(NodeName(name), gpus, links, allocator=AllocatorConfig("best-effort"))


def mask(indices: list[int]) -> Mask:
    """A list of GPU indices as a mask."""
    return sum(1 << i for i in indices)
