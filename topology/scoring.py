"""What a placement is worth to the pod and costs the cluster, as a score from 0 to 10.

Magnitudes (higher is better; in between, thrift decides):

====================================  ==========
guaranteed, required                  6 … 10
expected, required                    1 … 5
preferred                             7 · share of outcomes that satisfy + 3 · thrift
plain                                 10 · thrift
plain, no report or a stale one       5
required or preferred, no report      0
preferred, hardware never can         0
refused                               0
====================================  ==========

*Thrift* is how little the placement spends: half of it says how much of the node is used
afterwards (whole nodes stay whole), half how weak the node's links are (a pod that needs no
NVLink leaves the NVLinked machines to those that do).
"""

from __future__ import annotations

from functools import lru_cache

from topology.belief import Availability
from topology.graph import Shape
from topology.links import LinkKind
from topology.placement import Assessment, Verdict
from topology.requests import GpuRequest

MAX_SCORE = 10
UNKNOWN_PLAIN = 5
LOWEST = 0


def score(shape: Shape, now: Availability, request: GpuRequest, assessed: Assessment) -> int:
    """The score of a node for a request, 0 to 10 (see the table of this module)."""
    if not assessed.fits:
        return LOWEST
    spared = thrift(shape, now, request.count)
    if request.plain:
        return round(MAX_SCORE * spared)
    if request.required:
        if assessed.verdict is Verdict.GUARANTEED:
            return 6 + round(4 * spared)
        if assessed.verdict is Verdict.EXPECTED:
            return 1 + round(4 * spared)
        return LOWEST
    if assessed.verdict is Verdict.NEVER:
        return LOWEST
    return round(7 * assessed.share + 3 * spared)


def thrift(shape: Shape, now: Availability, count: int) -> float:
    """How little a placement of ``count`` GPUs spends, 0 to 1: fullness after it, weak links."""
    units = now.units
    whole = shape.size if units is None else max(sum(units), 1)
    fullness = 1 - max(0, now.devices_left - count) / max(whole, 1)
    return (min(max(fullness, 0.0), 1.0) + 1 - link_strength(shape)) / 2


@lru_cache(maxsize=4096)
def link_strength(shape: Shape) -> float:
    """The share of a shape's pairs that are NVLinked; 0 for a single GPU."""
    pairs = [link for p, row in enumerate(shape.links) for link in row[p + 1 :]]
    if not pairs:
        return 0.0
    linked = sum(link is not None and link.kind is LinkKind.NVLINK for link in pairs)
    return linked / len(pairs)
