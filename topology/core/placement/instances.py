"""MIG instances counted: how many choices of them meet the constraints.

Instances have no links, so every constraint speaks about each instance alone (model, memory, NIC)
or about which GPUs they are on (one, no two on one, one NUMA node). Then nothing has to be listed:
the choices that pass are counted from the number of allowed instances on each GPU. Sixteen GPUs of
seven instances are counted as quickly as one.
"""

from __future__ import annotations

from math import comb

from topology.core.devices import Mask, positions
from topology.core.placement.constraints import CompiledConstraints
from topology.core.pools import Pool, count, total
from topology.core.shape import Shape


def passing_share(
    shape: Shape, constraints: CompiledConstraints, pool: Pool, size: int, width: int
) -> tuple[bool, bool, float]:
    """Of all choices of ``size`` devices from a pool: whether every one passes, whether one does,
    and the share that does.

    >>> from topology.core.placement.constraints import compiled
    >>> from topology.core.requests import Constraints
    >>> shape = Shape(("a", "a"), (1, 1), (0, 1), (False,) * 2, (0, 0), ((None,) * 2,) * 2,
    ...               ((0,), (1,)), (2, 2), (0, 1))
    >>> spread = compiled(shape, Constraints(spread_gpus=True), 0)
    >>> every, some, share = passing_share(shape, spread, 0b1010, 2, 2)
    >>> every, some, round(share, 2)
    (False, True, 0.67)
    """
    everything = comb(total(pool, width), size)
    if not everything:
        return False, False, 0.0
    nodes = (shape.all_gpus,) if constraints.numa is None or size == 1 else constraints.numa
    good = sum(_passing_on(shape, constraints, pool, size, width, node) for node in nodes)
    return good == everything, good > 0, good / everything


def _passing_on(
    shape: Shape, constraints: CompiledConstraints, pool: Pool, size: int, width: int, node: Mask
) -> int:
    """How many choices pass with all devices on the positions of ``node``."""
    here = node & constraints.allowed
    if size == 1:
        return sum(count(pool, p, width) for p in positions(here))
    if constraints.linked is not None or constraints.wide is not None:
        return 0
    by_gpu = [sum(count(pool, p, width) for p in positions(gpu & here)) for gpu in shape.by_gpu]
    if constraints.one_gpu is not None:
        return 0 if constraints.apart is not None else sum(comb(n, size) for n in by_gpu)
    if constraints.apart is not None:
        return _one_of_each(by_gpu, size)
    return comb(sum(by_gpu), size)


def _one_of_each(by_gpu: list[int], size: int) -> int:
    """In how many ways ``size`` devices come from as many GPUs."""
    ways = [1] + [0] * size
    for devices in by_gpu:
        for n in range(size, 0, -1):
            ways[n] += ways[n - 1] * devices
    return ways[size]


def expected_gpus(shape: Shape, pool: Pool, size: int, width: int, gpus: tuple[Mask, ...]) -> float:
    """How many of these GPUs, each as its positions, get a device taken from them if any ``size``
    devices of the pool are, all choices equally often."""
    devices = total(pool, width)
    everything = comb(devices, size)
    if not everything:
        return 0.0
    found = 0.0
    for gpu in gpus:
        there = sum(count(pool, p, width) for p in positions(gpu))
        found += 1 - comb(devices - there, size) / everything
    return found
