"""Device sets: how many devices of each GPU, as one integer.

A device set has ``width`` bits per GPU; the field of position *p* counts devices of that GPU. With
whole GPUs the width is 1 and a pool *is* a mask: bit *p* says whether the GPU at position *p* is in
it. Where one GPU is advertised several times (time-slicing, MPS) the fields count its replicas.
Devices of one GPU are interchangeable, so nothing is lost by counting them. Pools of one width are
added and subtracted as integers, since no field ever overflows or borrows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.devices import Mask, positions
from topology.core.memo import memoized

DeviceSet = int  # devices counted per GPU; the width says how many bits a field has


def width_for(replicas: int) -> int:
    """Bits that a field needs where one GPU is advertised ``replicas`` times.

    >>> width_for(1), width_for(4)
    (1, 3)
    """
    return max(1, replicas.bit_length())


def pack(counts: Iterable[int], width: int) -> DeviceSet:
    """The pool with ``counts[p]`` devices of the GPU at position *p*.

    >>> pack([1, 0, 1], 1)
    5
    """
    return sum(n << p * width for p, n in enumerate(counts))


def count(pool: DeviceSet, position: int, width: int) -> int:
    """How many devices of one GPU are in the pool."""
    return pool >> position * width & (1 << width) - 1


def total(pool: DeviceSet, width: int) -> int:
    """How many devices are in the pool."""
    if width == 1:
        return pool.bit_count()
    field, devices = (1 << width) - 1, 0
    while pool:  # half again as quick as a sum, and it is asked often
        devices += pool & field
        pool >>= width
    return devices


def _fields(pool: DeviceSet, width: int) -> int:
    """How many positions the pool has, up to the last with a device."""
    return -(-pool.bit_length() // width)


def gpus(pool: DeviceSet, width: int) -> Mask:
    """The GPUs of which the pool has a device.

    >>> gpus(pack([2, 0, 1], 2), 2)
    5
    """
    if width == 1:
        return pool
    return sum(1 << p for p in members(pool, width))


def gpu_masks(pools: Sequence[DeviceSet], positions: int, width: int) -> NDArray[np.uint64]:
    """:func:`gpus` of each pool, on a node of so many GPUs."""
    if width == 1:
        return np.array(pools, dtype=np.uint64)
    if positions * width > 64:
        return _wide_masks(pools, positions, width)
    packed = np.array(pools, dtype=np.uint64)
    field = np.uint64((1 << width) - 1)
    masks = np.zeros(len(packed), dtype=np.uint64)
    for p in range(positions):
        there = packed >> np.uint64(p * width) & field != 0
        masks |= there.astype(np.uint64) << np.uint64(p)
    return masks


def _wide_masks(pools: Sequence[DeviceSet], positions: int, width: int) -> NDArray[np.uint64]:
    size = -(-positions * width // 8)
    packed = np.frombuffer(b"".join(p.to_bytes(size, "little") for p in pools), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(pools), size), axis=1, bitorder="little")
    there = np.zeros((len(pools), 64), dtype=np.bool_)
    fields = bits[:, : positions * width].reshape(len(pools), positions, width)
    there[:, :positions] = fields.any(axis=2)
    return np.packbits(there, axis=1, bitorder="little").view("<u8")[:, 0].astype(np.uint64)


def marked(pools: tuple[DeviceSet, ...], marks: int) -> DeviceSet:
    """The sum of the pools, or counts, that are marked: bit *n* of ``marks`` stands for number *n*.

    >>> marked((0b1, 0b10, 0b100), 0b101)
    5
    """
    return sum(pool for n, pool in enumerate(pools) if marks >> n & 1)


def members(pool: DeviceSet, width: int) -> list[int]:
    """The positions of which the pool has a device, ascending."""
    if width == 1:
        return positions(pool)
    field = (1 << width) - 1
    return [p for p in range(_fields(pool, width)) if pool >> p * width & field]


def only(pool: DeviceSet, mask: Mask, width: int) -> DeviceSet:
    """The part of the pool on the GPUs of ``mask``."""
    if width == 1:
        return pool & mask
    field = (1 << width) - 1
    return sum(pool & field << p * width for p in positions(mask))


def common(a: DeviceSet, b: DeviceSet, width: int) -> DeviceSet:
    """What is in both pools."""
    if width == 1:
        return a & b
    both = range(_fields(min(a, b), width))
    return sum(min(count(a, p, width), count(b, p, width)) << p * width for p in both)


def choices(pool: DeviceSet, size: int, width: int) -> Iterator[DeviceSet]:
    """Every pool of ``size`` devices that can be taken from ``pool``.

    >>> sorted(choices(pack([2, 1], 2), 2, 2)) == sorted([pack([2, 0], 2), pack([1, 1], 2)])
    True
    """
    fields = [(p * width, count(pool, p, width)) for p in members(pool, width)]
    behind = [0] * (len(fields) + 1)
    for i in range(len(fields) - 1, -1, -1):
        behind[i] = behind[i + 1] + fields[i][1]

    def take(i: int, left: int, taken: DeviceSet) -> Iterator[DeviceSet]:
        if left == 0:
            yield taken
        elif left <= behind[i]:
            shift, most = fields[i]
            for n in range(min(most, left), -1, -1):
                yield from take(i + 1, left - n, taken + (n << shift))

    if size >= 0:
        yield from take(0, size, 0)


def choices_count(pool: DeviceSet, size: int, width: int, stop: int) -> int:
    """How many :func:`choices` there are; above ``stop`` any larger number.

    >>> choices_count(pack([2, 1], 2), 2, 2, 100), choices_count(0b1111, 2, 1, 3)
    (2, 4)
    """
    if width == 1:
        return min(comb(pool.bit_count(), size), stop + 1) if size >= 0 else 0
    counts = sorted(count(pool, p, width) for p in members(pool, width))
    size = min(size, sum(counts) - size)  # as many ways to take some as to leave them
    return _ways_to_take(tuple(counts), size, stop) if size >= 0 else 0


@memoized
def _ways_to_take(counts: tuple[int, ...], size: int, stop: int) -> int:
    """By prefix sums; numbers above ``stop`` are cut, for they only grow."""
    ways = [1] + [0] * size
    for most in counts:
        sums = [0, *accumulate(ways)]
        ways = [min(sums[n + 1] - sums[max(0, n - most)], stop + 1) for n in range(size + 1)]
    return ways[size]
