"""The best ring through some GPUs of a shape: what its weakest hop carries."""

from __future__ import annotations

from topology.core.devices import Mask
from topology.core.links import GBps
from topology.core.patterns import has_ring
from topology.core.shape import Shape, wide_rows


def best_ring(shape: Shape, mask: Mask) -> GBps:
    """The weakest hop of the best ring through ``mask``, GB/s both ways; infinite for one GPU.

    The widest threshold at which the pairs still form a ring: a binary search over the distinct
    bandwidths, one :func:`has_ring` each. Where that gives up the answer is a lower bound.
    """
    if mask.bit_count() < 2:
        return GBps(float("inf"))
    low, high = 0, 0
    values = sorted({link.bandwidth for link in shape.distinct_links()})
    high = len(values)
    while low < high:  # values[:low] are known to do
        middle = (low + high) // 2
        if has_ring(wide_rows(shape, values[middle]), mask):
            low = middle + 1
        else:
            high = middle
    return values[low - 1] if low else GBps(0.0)
