"""A node's graph of GPUs and links, and the shape it shares with nodes of the same hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from topology.core.devices import (
    Bytes,
    Fabric,
    Gpu,
    GpuResource,
    GpuUuid,
    Mask,
    Nic,
    NodeName,
    positions,
)
from topology.core.hashing import hashed_once
from topology.core.links import GBps, Link, LinkKind, canonical_product
from topology.core.numa import NumaFacts
from topology.core.remembering import remembered

if TYPE_CHECKING:
    import networkx as nx

    from topology.core.patterns import Rows

MAX_GPUS = 64


class TopologyError(ValueError):
    """A description of a node contradicts itself. The message names the field and the value."""


UNKNOWN = "unknown"
"""A Topology Manager policy that the agent could not find out: it may do what any of them does."""


@hashed_once
@dataclass(frozen=True)
class AllocatorFacts:
    """How the node's kubelet and device plugin choose devices.

    ``policy`` names an allocator (``allocators``). The CPU and Memory Managers matter
    where the Topology Manager has a policy other than ``none``: unless both are known to give no
    hints, its merged hint can be anything (``admission``). ``None`` is unknown.

    ``prefers_closest`` is the Topology Manager's option ``prefer-closest-numa-nodes``;
    ``numa_distances`` are the node's NUMA distances, a row for each NUMA node by its number, GPUs
    or not. ``sees_topology`` is false where it is not known which NUMA nodes the plugin names to
    the kubelet (a record of an older agent): then devices may be aligned in any way.
    ``full_cores_only`` is the CPU Manager's option ``full-pcpus-only``: it refuses CPUs that would
    not make up whole cores. ``numa`` are the machine's CPUs and memory, where a static manager
    gives them to pods. Where it is None, ``numa_lacks`` names the fields that the record lacks for
    that; nothing but what people read depends on them.
    """

    policy: str = "any"
    plugin_version: str | None = None
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    cpu_manager_policy: str | None = None
    memory_manager_policy: str | None = None
    prefers_closest: bool | None = None
    numa_distances: tuple[tuple[int, ...], ...] | None = None
    sees_topology: bool = True
    full_cores_only: bool | None = None
    numa: NumaFacts | None = None
    numa_lacks: tuple[str, ...] = field(default=(), compare=False)


@lru_cache(maxsize=256)
def plugin_version(text: str | None) -> tuple[int, ...] | None:
    """A version such as ``v0.20.1`` as numbers; None where it is unknown or unreadable.

    >>> plugin_version("v0.20.1")
    (0, 20, 1)
    """
    parts = (text or "").strip().removeprefix("v").split("-")[0].split(".")
    return tuple(int(p) for p in parts) if all(p.isascii() and p.isdigit() for p in parts) else None


@hashed_once
@dataclass(frozen=True)
class Shape:
    """The hardware of a node without its names: what outcomes, verdicts and scores depend on.

    All tuples are by position, matrices n × n and symmetric. Nodes with equal hardware in the same
    order share one shape *object* (see :func:`NodeTopology.shape`), so a look-up by shape costs an
    identity test. ``nic`` is the kind of the nearest RDMA NIC per GPU. ``numa`` is where the
    hardware has the GPUs, ``topology_nodes`` what the kubelet is told of that.

    Where MIG instances are served (:mod:`topology.core.mig`) a position stands for equal instances
    of one GPU: ``instances`` says how many, ``parents`` numbers their GPUs. Both are empty where
    the positions are GPUs.
    """

    products: tuple[str, ...]
    memory: tuple[Bytes, ...]
    numa: tuple[int | None, ...]
    mig: tuple[bool, ...]
    nic: tuple[LinkKind, ...]
    links: tuple[tuple[Link | None, ...], ...]
    topology_nodes: tuple[tuple[int, ...], ...]
    instances: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many GPUs."""
        return len(self.products)

    @cached_property
    def in_mig_mode(self) -> Mask:
        """The whole GPUs that are cut into MIG instances, or may be."""
        return sum(1 << p for p, split in enumerate(self.mig) if split)

    @property
    def of_mig(self) -> bool:
        """Whether the positions stand for MIG instances."""
        return bool(self.instances)

    @cached_property
    def by_gpu(self) -> tuple[Mask, ...]:
        """The positions of each GPU: one, unless they stand for MIG instances of several kinds."""
        if not self.parents:
            return tuple(1 << p for p in range(self.size))
        found: dict[int, Mask] = {}
        for p, parent in enumerate(self.parents):
            found[parent] = found.get(parent, 0) | 1 << p
        return tuple(found.values())

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes; nodes and memories share it."""
        return 1000 + 70 * self.size**2

    @property
    def all_gpus(self) -> Mask:
        """The mask of every GPU."""
        return (1 << self.size) - 1

    def rows(self, meets: frozenset[Link]) -> Rows:
        """The adjacency of the pairs whose link is in ``meets``."""
        found = [0] * self.size
        for link, rows in self._rows_by_link.items():
            if link in meets:
                found = [a | b for a, b in zip(found, rows, strict=True)]
        return tuple(found)

    def distinct_links(self) -> frozenset[Link]:
        """Every link that occurs, once (positions left out)."""
        return self._distinct_links

    @cached_property
    def _distinct_links(self) -> frozenset[Link]:
        return frozenset(self._rows_by_link)

    @cached_property
    def _rows_by_link(self) -> dict[Link, Rows]:
        """The adjacency of the pairs with each link: asked again and again, and dear to hash."""
        found: dict[Link, list[Mask]] = {}
        for p, row in enumerate(self.links):
            for q, link in enumerate(row):
                if link is not None:
                    found.setdefault(link, [0] * self.size)[p] |= 1 << q
        return {link: tuple(rows) for link, rows in found.items()}

    @cached_property
    def graph(self) -> nx.Graph[int]:
        """The shape as a networkx graph: nodes carry ``gpu``, edges ``link`` and ``bandwidth``."""
        import networkx as nx  # a quarter of a second and 20 MiB, which the agent never needs

        graph: nx.Graph[int] = nx.Graph()
        for p in range(self.size):
            label = f"{self.products[p]}/{self.memory[p]}/{self.nic[p].name}"
            graph.add_node(p, gpu=label)
        for p in range(self.size):
            for q in range(p + 1, self.size):
                link = self.links[p][q]
                if link is not None:
                    label = f"{link.pcie.name}/{link.nvlinks}/{link.via.value}"
                    graph.add_edge(p, q, link=label, bandwidth=link.bandwidth)
        return graph

    @cached_property
    def fingerprint(self) -> str:
        """A hash that renumbering the GPUs does not change (Weisfeiler and Lehman's, 16 hex)."""
        import networkx as nx

        digest: str = nx.weisfeiler_lehman_graph_hash(
            self.graph, node_attr="gpu", edge_attr="link", iterations=4, digest_size=8
        )
        return digest

    def isomorphic(self, other: Shape) -> bool:
        """Whether the two shapes are one machine with its GPUs numbered differently."""
        import networkx as nx

        return self.fingerprint == other.fingerprint and nx.is_isomorphic(
            self.graph,
            other.graph,
            node_match=lambda a, b: a["gpu"] == b["gpu"],
            edge_match=lambda a, b: a["link"] == b["link"],
        )


_shapes: WeakKeyDictionary[Shape, ref[Shape]] = WeakKeyDictionary()


def shared_shape(shape: Shape) -> Shape:
    """The one object that stands for every equal shape, as long as anybody refers to it."""
    known = _shapes.get(shape)
    found = known() if known is not None else None
    if found is None:
        found = shape
        _shapes[shape] = ref(shape)
    return found


@dataclass(frozen=True)
class NodeTopology:
    """A node's hardware: GPUs by ascending index, their links, NICs and how devices are served.

    Built once and never changed; a contradiction (an index twice, a link to a GPU that is not
    there, a pair linked twice, a GPU at two distances from a NIC) raises :class:`TopologyError`.
    """

    name: NodeName
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    resources: tuple[GpuResource, ...] = (GpuResource(),)
    allocator: AllocatorFacts = AllocatorFacts()
    fabric: Fabric | None = None

    def __post_init__(self) -> None:
        if len(self.gpus) > MAX_GPUS:
            raise TopologyError(f"devices: {len(self.gpus)} GPUs, at most {MAX_GPUS} are allowed")
        _unique("devices.index", [g.index for g in self.gpus])
        _unique("devices.uuid", [g.uuid for g in self.gpus])
        _unique("nics.name", [n.name for n in self.nics])
        _unique("resources.name", [r.name for r in self.resources])
        object.__setattr__(self, "gpus", tuple(sorted(self.gpus, key=lambda g: g.index)))
        object.__setattr__(self, "links", tuple(sorted(self.links, key=lambda k: (k.a, k.b))))
        known = {g.index for g in self.gpus}
        for link in self.links:
            if link.a >= link.b:
                raise TopologyError(f"links: a={link.a} b={link.b}, a must be below b")
            for end in (link.a, link.b):
                if end not in known:
                    raise TopologyError(f"links: GPU {end} is not among the devices")
        _unique("links", [(link.a, link.b) for link in self.links])
        for nic in self.nics:
            _unique(f"nics[{nic.name}].distances", [index for index, _ in nic.distances])
            for index, _ in nic.distances:
                if index not in known:
                    raise TopologyError(f"nics[{nic.name}]: GPU {index} is not among the devices")

    def renamed(self, name: NodeName, uuids: Sequence[GpuUuid]) -> NodeTopology:
        """The same hardware under other names; ``uuids`` are by position, each another one.

        What does not depend on names is shared with this one.
        """
        gpus = tuple(gpu.renamed(uuid) for gpu, uuid in zip(self.gpus, uuids, strict=True))
        # Nothing is checked again, and cached properties without names are kept.
        found = object.__new__(NodeTopology)
        found.__dict__.update({each.name: getattr(self, each.name) for each in fields(self)})
        found.__dict__.update(
            name=name, gpus=gpus, shape=self.shape, position_of_index=self.position_of_index
        )
        return found

    @cached_property
    def shape(self) -> Shape:
        """The hardware without names; equal nodes get the same object."""
        n = len(self.gpus)
        at = self.position_of_index
        matrix: list[list[Link | None]] = [[None] * n for _ in range(n)]
        for link in self.links:
            nameless = replace(link, a=0, b=0)
            matrix[at[link.a]][at[link.b]] = matrix[at[link.b]][at[link.a]] = nameless
        nearest = [LinkKind.UNKNOWN] * n
        for nic in self.nics:
            for index, kind in nic.distances:
                nearest[at[index]] = max(nearest[at[index]], kind)
        return shared_shape(
            Shape(
                products=tuple(canonical_product(g.product) for g in self.gpus),
                memory=tuple(g.memory for g in self.gpus),
                numa=tuple(g.numa_node for g in self.gpus),
                mig=tuple(g.mig_mode == "enabled" for g in self.gpus),
                nic=tuple(nearest),
                links=tuple(tuple(row) for row in matrix),
                topology_nodes=tuple(g.topology_nodes or () for g in self.gpus),
            )
        )

    @cached_property
    def views(self) -> dict[GpuResource, Any]:
        """What :mod:`topology.core.mig` has worked out of each resource."""
        return {}

    @cached_property
    def position_of_index(self) -> dict[int, int]:
        """Driver index → position in masks."""
        return {g.index: p for p, g in enumerate(self.gpus)}

    @cached_property
    def position_of_uuid(self) -> dict[GpuUuid, int]:
        """UUID → position in masks."""
        return {g.uuid: p for p, g in enumerate(self.gpus)}

    @cached_property
    def bit_of_uuid(self) -> dict[str, Mask]:
        """UUID → the mask of this GPU alone."""
        found: dict[str, Mask] = {}
        bit = 1
        for gpu in self.gpus:
            found[gpu.uuid] = bit
            bit <<= 1
        return found

    def indices(self, mask: Mask) -> tuple[int, ...]:
        """The driver indices of a mask's GPUs, ascending."""
        return tuple(self.gpus[p].index for p in positions(mask))

    def resource(self, name: str) -> GpuResource | None:
        """How the node serves the extended resource ``name``, None where it does not."""
        for served in self.resources:
            if served.name == name:
                return served
        return None

    def summary(self) -> str:
        """One line for people.

        >>> from topology.machines import machine
        >>> machine("dgx1-v100").topology("n").summary()
        '8 × Tesla V100-SXM2-16GB, NVLink 1-2'
        """
        parts = [f"{n} × {p}" for p, n in sorted(Counter(g.product for g in self.gpus).items())]
        profiles = Counter(part.profile for gpu in self.gpus for part in gpu.mig_instances)
        instances = [f"{n} × MIG {profile}" for profile, n in sorted(profiles.items())]
        return ", ".join(filter(None, [*parts, *instances, self.link_summary()]))

    def link_summary(self) -> str:
        """What joins the GPUs, in a word: NVLinks per pair, or PCIe classes; empty for one GPU."""
        counts = sorted({link.nvlinks for link in self.links if link.nvlinks})
        if counts:
            span = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
            return f"NVLink {span}"
        if len(self.gpus) > 1:
            kinds = sorted({link.pcie for link in self.links}, reverse=True)
            return "PCIe " + "/".join(k.label for k in kinds)
        return ""


def _unique(what: str, values: Sequence[object]) -> None:
    for value, times in Counter(values).items():
        if times > 1:
            raise TopologyError(f"{what}: {value} stands {times} times, once is allowed")


@remembered
def numa_nodes(shape: Shape) -> tuple[Mask, ...]:
    """The GPUs of each NUMA node that has some, by ascending node."""
    nodes = sorted({n for n in shape.numa if n is not None})
    return tuple(sum(1 << p for p, at in enumerate(shape.numa) if at == n) for n in nodes)


@remembered
def hinted_nodes(shape: Shape) -> tuple[tuple[int, Mask], ...]:
    """The NUMA nodes that the kubelet knows of GPUs, ascending, each with its GPUs.

    A GPU may be on several of them, or on none.
    """
    nodes = sorted({n for named in shape.topology_nodes for n in named})
    return tuple(
        (n, sum(1 << p for p, named in enumerate(shape.topology_nodes) if n in named))
        for n in nodes
    )


def names_strange_nodes(shape: Shape, facts: AllocatorFacts) -> bool:
    """Whether the plugin names NUMA nodes that the machine has not, by its distances.

    A kubelet hints at the NUMA nodes of its machine only, so it is not known what it makes of
    these.
    """
    known = facts.numa_distances
    return known is not None and any(n >= len(known) for n, _ in hinted_nodes(shape))


@remembered
def placed_gpus(shape: Shape) -> Mask:
    """The GPUs of which the kubelet knows a NUMA node."""
    return sum(1 << p for p, named in enumerate(shape.topology_nodes) if named)


@remembered
def wide_rows(shape: Shape, threshold: GBps) -> Rows:
    """The adjacency of the pairs whose hop carries at least ``threshold`` GB/s."""
    return shape.rows(frozenset(k for k in shape.distinct_links() if k.bandwidth >= threshold))


def subsets(mask: Mask, size: int) -> Iterator[Mask]:
    """Every subset of ``mask`` with ``size`` members, in ascending order of its compressed value.

    Gosper's hack over the compressed mask, spread out again.
    """
    members = positions(mask)
    if size > len(members) or size < 0:
        return
    if size == 0:
        yield 0
        return
    pick = (1 << size) - 1
    limit = 1 << len(members)
    while pick < limit:
        yield sum(1 << members[i] for i in positions(pick))
        low = pick & -pick
        ripple = pick + low
        pick = ripple | ((pick ^ ripple) >> 2) // low
