"""What bad links cost a job: a model with three numbers, none of them measured here.

A job that runs at full speed spends a share ``communication`` of its time sending over its weakest
hop. At ``full`` GB/s and more nothing is lost; below, that share grows as the hop narrows:
slowdown = 1 + c · (max(1, full / hop) - 1). With the numbers below a ring whose weakest hop is one
NVLink of a V100 (50 GB/s both ways) loses nothing, one across sockets (5) takes 1.45 times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from topology.core.devices import Mask
from topology.core.scoring import best_ring
from topology.core.shape import Shape


@dataclass(frozen=True, slots=True)
class Speed:
    """The three numbers."""

    communication: float = 0.05  # the share of its time for which a job communicates
    full: float = 50.0  # GB/s from which on nothing is lost, both ways
    network: float = 25.0  # GB/s between nodes, both ways

    def slowdown(self, hop: float) -> float:
        """How many times as long a job takes whose weakest hop has so many GB/s; 0 is no hop.

        >>> round(Speed().slowdown(5.0), 2), Speed().slowdown(100.0), Speed().slowdown(0.0)
        (1.45, 1.0, 1.0)
        """
        if not hop or not self.communication:
            return 1.0
        return 1 + self.communication * (max(1.0, self.full / hop) - 1)


def weakest_hop(shapes: Sequence[Shape], masks: Sequence[Mask], speed: Speed) -> float:
    """GB/s of the weakest hop of the best rings through a job's GPUs; 0 where it has one GPU.

    Several pods are joined by the network, whichever node they are on.
    """
    hops = [_ring(s, m) for s, m in zip(shapes, masks, strict=True) if m.bit_count() > 1]
    if len(masks) > 1 and any(masks):
        hops.append(speed.network)
    return min(hops, default=0.0)


@cache
def _ring(shape: Shape, mask: Mask) -> float:
    # A hop of which nothing is known is at least the slowest there is.
    return float(best_ring(shape, mask)) or 1.0
