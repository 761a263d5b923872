"""Device sets: the number of devices of each GPU, packed into one integer.

A device set has ``width`` bits per GPU. The field of position *p* counts the devices of that GPU.
With whole GPUs the width is 1 and a device set *is* a mask: bit *p* says whether the GPU at
position *p* is in it. Where one GPU is advertised several times (time-slicing, MPS), the fields
count its replicas. Devices of one GPU are interchangeable, so a count loses nothing. Device sets of
one width are added and subtracted as integers, because no field ever overflows or borrows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.devices import Mask, positions
from topology.core.memo import memoized

DeviceSet = int  # devices counted per GPU; the width says how many bits a field has


def width_for(replicas: int) -> int:
    """Return the bits that a field needs where one GPU is advertised ``replicas`` times.

    >>> width_for(1), width_for(4)
    (1, 3)
    """
    return max(1, replicas.bit_length())


def pack(counts: Iterable[int], width: int) -> DeviceSet:
    """Return the device set with ``counts[p]`` devices of the GPU at position *p*.

    >>> pack([1, 0, 1], 1)
    5
    """
    return sum(n << p * width for p, n in enumerate(counts))


def count(pool: DeviceSet, position: int, width: int) -> int:
    """Return the number of devices of one GPU in the device set."""
    return pool >> position * width & (1 << width) - 1


def total(pool: DeviceSet, width: int) -> int:
    """Return the number of all devices in the device set."""
    if width == 1:
        return pool.bit_count()
    field, devices = (1 << width) - 1, 0
    while pool:  # about 1.5 times as fast as a sum, and this is called often
        devices += pool & field
        pool >>= width
    return devices


def _fields(pool: DeviceSet, width: int) -> int:
    """Return the number of positions up to the last one with a device."""
    return -(-pool.bit_length() // width)


def gpus(pool: DeviceSet, width: int) -> Mask:
    """Return the mask of the GPUs of which the set has a device.

    >>> gpus(pack([2, 0, 1], 2), 2)
    5
    """
    if width == 1:
        return pool
    return sum(1 << p for p in members(pool, width))


def gpu_masks(pools: Sequence[DeviceSet], positions: int, width: int) -> NDArray[np.uint64]:
    """Return :func:`gpus` of each device set, on a node of ``positions`` GPUs."""
    if width == 1:
        return np.array(pools, dtype=np.uint64)
    size = -(-positions * width // 8)
    packed = np.frombuffer(b"".join(p.to_bytes(size, "little") for p in pools), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(pools), size), axis=1, bitorder="little")
    there = np.zeros((len(pools), 64), dtype=np.bool_)
    fields = bits[:, : positions * width].reshape(len(pools), positions, width)
    there[:, :positions] = fields.any(axis=2)
    return np.packbits(there, axis=1, bitorder="little").view("<u8")[:, 0].astype(np.uint64)


def marked(pools: tuple[DeviceSet, ...], marks: int) -> DeviceSet:
    """Return the sum of the marked device sets or counts; bit *n* of ``marks`` marks number *n*.

    >>> marked((0b1, 0b10, 0b100), 0b101)
    5
    """
    return sum(pool for n, pool in enumerate(pools) if marks >> n & 1)


def members(pool: DeviceSet, width: int) -> list[int]:
    """Return the positions of which the set has a device, ascending."""
    if width == 1:
        return positions(pool)
    field = (1 << width) - 1
    return [p for p in range(_fields(pool, width)) if pool >> p * width & field]


def only(pool: DeviceSet, mask: Mask, width: int) -> DeviceSet:
    """Return the part of the device set on the GPUs of ``mask``."""
    if width == 1:
        return pool & mask
    field = (1 << width) - 1
    return sum(pool & field << p * width for p in positions(mask))


def common(a: DeviceSet, b: DeviceSet, width: int) -> DeviceSet:
    """Return the intersection of two device sets."""
    if width == 1:
        return a & b
    both = range(_fields(min(a, b), width))
    return sum(min(count(a, p, width), count(b, p, width)) << p * width for p in both)


def choices(pool: DeviceSet, size: int, width: int) -> Iterator[DeviceSet]:
    """Yield every device set of ``size`` devices that can be taken from ``pool``.

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
    """Return the number of :func:`choices`; if it is above ``stop``, any number above ``stop``.

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
    """Count the choices by prefix sums, and cut numbers above ``stop``, because they only grow."""
    ways = [1] + [0] * size
    for most in counts:
        sums = [0, *accumulate(ways)]
        ways = [min(sums[n + 1] - sums[max(0, n - most)], stop + 1) for n in range(size + 1)]
    return ways[size]
