"""Constraints compiled for a shape: the sets of its GPUs that satisfy them.

A constraint is about links, models or memory, and a set of GPUs is a mask. Compiling computes once
per shape which GPUs are allowed and which pairs are linked well enough. Then testing a set costs a
few operations on integers. Many sets are tested at once as arrays.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from topology.core.budget import SMALL
from topology.core.devices import Mask, positions
from topology.core.devicesets import DeviceSet, count, total
from topology.core.links import is_product
from topology.core.memo import memoized
from topology.core.patterns import ALL, Flags, Masks, Rows, have_pattern, is_clique
from topology.core.requests import Constraints, Pattern
from topology.core.shape import Shape, numa_nodes, wide_rows


@dataclass(frozen=True, slots=True)
class CompiledConstraints:
    """Constraints compiled for a shape. A set satisfies them if it passes every part."""

    allowed: Mask  # the GPUs that meet the constraints on single GPUs
    numa: tuple[Mask, ...] | None  # the GPUs of each NUMA node, if all have to be on one
    linked: Rows | None  # the pairs that are linked well enough, if links matter
    pattern: Pattern  # which pairs of the set have to be linked
    wide: Rows | None  # the pairs that may be hops of the ring, if its bandwidth matters
    over_pairs: bool  # whether the devices have to be on different GPUs, to form pairs
    one_gpu: tuple[Mask, ...] | None  # the positions of each GPU, if all devices have to be on one
    apart: tuple[Mask, ...] | None  # the positions of each GPU, if no two devices may be on one
    whole: int  # the devices of each GPU, if the pod asks for all of them; else 0
    # The cached answers of `good_sets` on a small shape, which has few sets that are tested often.
    # None on other shapes.
    known: dict[int, frozenset[Mask]] | None

    @property
    def shared_bytes(self) -> int:
        """The approximate size in bytes."""
        return 1000 if self.known is None else 30_000

    def passes(self, mask: Mask, count: int) -> bool:
        """Check whether a set of GPUs that holds ``count`` devices satisfies the constraints."""
        if self.known is not None:
            return mask in self.good_sets(count)
        return bool(self.passing(np.array([mask], dtype=np.uint64), count)[0][0])

    def good_sets(self, count: int) -> frozenset[Mask]:
        """Return every set of GPUs that passes if it holds ``count`` devices. Small shapes only."""
        assert self.known is not None  # noqa: S101 (callers looked)
        if not self.whole:  # more devices than GPUs make no further difference
            count = min(count, SMALL + 1)
        good = self.known.get(count)
        if good is None:
            masks = np.arange(self.allowed + 1, dtype=np.uint64)
            good = frozenset(masks[self.passing(masks, count)[0]].tolist())
            self.known[count] = good
        return good

    def passing(self, masks: Masks, count: int) -> tuple[Flags, bool]:
        """Return :meth:`passes` for each mask, and whether all these answers are sure.

        If a search for a ring was given up, the set does not pass and the answer is not sure.
        """
        good = masks & np.uint64(~self.allowed & ALL) == 0
        if self.whole:  # `count` devices on so few GPUs are all devices of these GPUs
            good &= np.bitwise_count(masks) == count / self.whole
        if count == 1:
            return good, True
        if self.over_pairs:
            good &= np.bitwise_count(masks) >= count
        for groups in (self.numa, self.one_gpu):
            if groups is not None:
                good &= inside(groups, masks)
        if self.apart is not None:
            parts = np.bitwise_count(masks) if self.whole else count
            good &= touched(self.apart, masks) >= parts
        sure = True
        for rows, pattern in ((self.linked, self.pattern), (self.wide, Pattern.RING)):
            if rows is not None:
                asked = good.copy()
                good[asked], known = have_pattern(rows, pattern, masks[asked])
                sure &= known
        return good, sure


def inside(nodes: tuple[Mask, ...], masks: Masks) -> Flags:
    """Return, for each mask, whether all its GPUs are on one of the NUMA nodes."""
    flags = np.zeros(len(masks), dtype=np.bool_)
    for node in nodes:
        flags |= masks & np.uint64(~node & ALL) == 0
    return flags


def touched(groups: tuple[Mask, ...], masks: Masks) -> NDArray[np.int64]:
    """Return, for each mask, the number of groups in which it has a GPU."""
    counts = np.zeros(len(masks), dtype=np.int64)
    for group in groups:
        counts += masks & np.uint64(group) != 0
    return counts


def satisfies(
    shape: Shape,
    constraints: Constraints,
    mask: Mask,
    *,
    count: int | None = None,
    sick: Mask = 0,
    replicas: int = 1,
) -> bool:
    """Check whether the GPUs of ``mask`` meet every constraint. A sick GPU meets none.

    ``count`` is the number of devices on these GPUs, if a position may have several. ``replicas``
    is the number of shares of each GPU.
    """
    return compiled(shape, constraints, sick, replicas).passes(mask, count or mask.bit_count())


@memoized
def compiled(
    shape: Shape, constraints: Constraints, sick: Mask, replicas: int
) -> CompiledConstraints:
    """Return the constraints compiled for a shape in which the ``sick`` GPUs are not allowed.

    Each GPU or MIG instance is served as so many ``replicas``.
    """
    # The part of a GPU in MIG mode that the pod would get is unknown.
    allowed = shape.all_gpus & ~sick & ~shape.in_mig_mode
    memory, nic = constraints.least_memory(replicas), constraints.nic
    allowed &= of_models(shape, constraints.models)
    for p in positions(allowed):
        near = nic is None or shape.nic[p] >= nic
        if not (near and shape.memory[p] >= memory):
            allowed &= ~(1 << p)
    linked = None
    if constraints.link is not None or constraints.min_nvlinks is not None:
        level, count = constraints.link or 0, constraints.min_nvlinks or 0
        linked = shape.rows(
            frozenset(k for k in shape.distinct_links if k.kind >= level and k.nvlinks >= count)
        )
    wide = None
    if constraints.min_bandwidth is not None:
        wide = wide_rows(shape, constraints.min_bandwidth)
    whole = replicas if constraints.exclusive_gpus and replicas > 1 else 0
    known: dict[int, frozenset[Mask]] | None = {} if shape.size <= SMALL else None
    return CompiledConstraints(
        allowed,
        numa_nodes(shape) if constraints.same_numa else None,
        linked,
        constraints.pattern,
        wide,
        # Two instances of one GPU are two devices on one NUMA node. A pod that gets all shares of
        # each GPU has whole GPUs, and these form the pairs.
        not whole and (constraints.over_links if shape.of_mig else constraints.over_pairs),
        shape.by_gpu if constraints.same_gpu else None,
        shape.by_gpu if constraints.spread_gpus else None,
        whole,
        known,
    )


@memoized
def always_met(shape: Shape, constraints: Constraints, replicas: int = 1) -> bool:
    """Check whether any devices meet the constraints, by a quick test that may miss some cases.

    They do if every GPU is allowed and linked well enough with all others. Then as many such pods
    fit as there are devices for, whichever devices other pods took.
    """
    test = compiled(shape, constraints, 0, replicas)
    every = shape.all_gpus
    return (
        test.allowed == every
        and all(g is None or g == (every,) for g in (test.numa, test.one_gpu))
        and test.apart is None
        and test.wide is None
        and not test.whole
        and not (test.over_pairs and replicas > 1)
        and (test.linked is None or is_clique(test.linked, every))
    )


@memoized
def of_models(shape: Shape, models: tuple[str, ...]) -> Mask:
    """Return the GPUs whose product matches one of the models; all GPUs if no model is named."""
    names = set(shape.products)  # each product is matched once
    meant = {name for name in names if not models or any(is_product(name, m) for m in models)}
    return sum(1 << p for p, name in enumerate(shape.products) if name in meant)


# MIG instances have no links. So a constraint is about each instance alone (model, memory, NIC), or
# about the GPUs that the instances are on. Then no sets have to be listed: the choices that pass
# are counted from the number of allowed instances on each GPU. That is as quick for sixteen GPUs as
# for one.


def passing_choices(
    shape: Shape, constraints: CompiledConstraints, pool: DeviceSet, size: int, width: int
) -> tuple[bool, bool, float]:
    """Return how many of all choices of ``size`` devices from a pool pass.

    The result says whether every choice passes, whether some choice does, and the fraction that
    does.

    >>> from topology.core.requests import Constraints
    >>> shape = Shape(("a", "a"), (1, 1), (0, 1), (False,) * 2, (0, 0), ((None,) * 2,) * 2,
    ...               ((0,), (1,)), (2, 2), (0, 1))
    >>> spread = compiled(shape, Constraints(spread_gpus=True), 0, 1)
    >>> every, some, fraction = passing_choices(shape, spread, 0b1010, 2, 2)
    >>> every, some, round(fraction, 2)
    (False, True, 0.67)
    """
    everything = comb(total(pool, width), size)
    if not everything:
        return False, False, 0.0
    nodes = (shape.all_gpus,) if constraints.numa is None or size == 1 else constraints.numa
    good = sum(_passing_on(shape, constraints, pool, size, width, node) for node in nodes)
    return good == everything, good > 0, good / everything


def _passing_on(
    shape: Shape,
    constraints: CompiledConstraints,
    pool: DeviceSet,
    size: int,
    width: int,
    node: Mask,
) -> int:
    """Return the number of choices that pass with all devices on the positions of ``node``."""
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
    """Return the number of ways in which ``size`` devices come from as many different GPUs."""
    ways = [1] + [0] * size
    for devices in by_gpu:
        for n in range(size, 0, -1):
            ways[n] += ways[n - 1] * devices
    return ways[size]


def expected_gpus(
    shape: Shape, pool: DeviceSet, size: int, width: int, gpus: tuple[Mask, ...]
) -> float:
    """Return the expected number of these GPUs that lose a device if ``size`` devices are taken.

    Any devices of the pool may be taken, all choices with equal probability. Each of ``gpus`` has
    the positions of one GPU.
    """
    devices = total(pool, width)
    everything = comb(devices, size)
    if not everything:
        return 0.0
    expected = 0.0
    for gpu in gpus:
        there = sum(count(pool, p, width) for p in positions(gpu))
        expected += 1 - comb(devices - there, size) / everything
    return expected
