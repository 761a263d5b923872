"""The hardware of a node without its names. Nodes with the same hardware share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from topology.core.devices import Bytes, Mask
from topology.core.links import GBps, Link, LinkKind
from topology.core.memo import hashed_once, memoized

if TYPE_CHECKING:
    from topology.core.patterns import Rows


@hashed_once
@dataclass(frozen=True)
class Shape:
    """The hardware of a node without its names, on which outcomes, verdicts and scores depend.

    All tuples are by position. Nodes with equal hardware in the same order share one shape *object*
    (see :func:`shared_shape`), so a look-up by shape costs only an identity test. For a resource of
    MIG instances (:mod:`topology.core.mig`) a position stands for equal instances of one GPU.
    """

    products: tuple[str, ...]
    memory: tuple[Bytes, ...]
    numa: tuple[int | None, ...]  # the NUMA node of each GPU by the hardware
    mig: tuple[bool, ...]  # whether the GPU is in MIG mode
    nic: tuple[LinkKind, ...]  # how near the nearest RDMA NIC is
    links: tuple[tuple[Link | None, ...], ...]  # n × n, symmetric
    # The NUMA nodes of each GPU that the device plugin names to the kubelet.
    topology_nodes: tuple[tuple[int, ...], ...]
    instances: tuple[int, ...] = ()  # how many MIG instances; empty if the positions are GPUs
    parents: tuple[int, ...] = ()  # the position of their GPU; empty if the positions are GPUs

    @cached_property
    def size(self) -> int:
        """The number of positions."""
        return len(self.products)

    @cached_property
    def in_mig_mode(self) -> Mask:
        """The mask of the whole GPUs in MIG mode, which are or may be cut into instances."""
        return sum(1 << p for p, split in enumerate(self.mig) if split)

    @cached_property
    def of_mig(self) -> bool:
        """Whether the positions stand for MIG instances."""
        return bool(self.instances)

    @cached_property
    def by_gpu(self) -> tuple[Mask, ...]:
        """The positions of each GPU, as a mask.

        A GPU has one position, unless positions stand for MIG instances of several kinds.
        """
        if not self.parents:
            return tuple(1 << p for p in range(self.size))
        gpus: dict[int, Mask] = {}
        for p, parent in enumerate(self.parents):
            gpus[parent] = gpus.get(parent, 0) | 1 << p
        return tuple(gpus.values())

    @property
    def shared_bytes(self) -> int:
        """The approximate bytes of the shape, which nodes and memos share."""
        return 1000 + 70 * self.size**2

    @cached_property
    def all_gpus(self) -> Mask:
        """The mask of every GPU."""
        return (1 << self.size) - 1

    def rows(self, meets: frozenset[Link]) -> Rows:
        """Return the adjacency of the pairs whose link is in ``meets``."""
        joined = [0] * self.size
        for link, rows in self._rows_by_link.items():
            if link in meets:
                joined = [a | b for a, b in zip(joined, rows, strict=True)]
        return tuple(joined)

    @cached_property
    def distinct_links(self) -> frozenset[Link]:
        """Every distinct link of the shape, without its positions."""
        return frozenset(self._rows_by_link)

    @cached_property
    def _rows_by_link(self) -> dict[Link, Rows]:
        """The adjacency of the pairs with each link.

        It is used often, and a shape's links are expensive to hash.
        """
        joined: dict[Link, list[Mask]] = {}
        for p, row in enumerate(self.links):
            for q, link in enumerate(row):
                if link is not None:
                    joined.setdefault(link, [0] * self.size)[p] |= 1 << q
        return {link: tuple(rows) for link, rows in joined.items()}


_shapes: WeakKeyDictionary[Shape, ref[Shape]] = WeakKeyDictionary()


def shared_shape(shape: Shape) -> Shape:
    """Return the one object that all equal shapes share while any reference to it exists."""
    known = _shapes.get(shape)
    first = known() if known is not None else None
    if first is None:
        _shapes[shape] = ref(shape)
    return first or shape


@memoized
def numa_nodes(shape: Shape) -> tuple[Mask, ...]:
    """Return the mask of the GPUs of each NUMA node that has some, by ascending node."""
    nodes = sorted({n for n in shape.numa if n is not None})
    return tuple(sum(1 << p for p, at in enumerate(shape.numa) if at == n) for n in nodes)


@memoized
def hinted_nodes(shape: Shape) -> tuple[tuple[int, Mask], ...]:
    """Return the NUMA nodes that the kubelet knows of GPUs, ascending, each with its GPUs.

    A GPU may be on several of these NUMA nodes, or on none.
    """
    nodes = sorted({n for named in shape.topology_nodes for n in named})
    return tuple(
        (n, sum(1 << p for p, named in enumerate(shape.topology_nodes) if n in named))
        for n in nodes
    )


@memoized
def placed_gpus(shape: Shape) -> Mask:
    """Return the mask of the GPUs of which the kubelet knows a NUMA node."""
    return sum(1 << p for p, named in enumerate(shape.topology_nodes) if named)


@memoized
def wide_rows(shape: Shape, threshold: GBps) -> Rows:
    """Return the adjacency of the pairs whose hop carries at least ``threshold`` GB/s."""
    return shape.rows(frozenset(k for k in shape.distinct_links if k.bandwidth >= threshold))
