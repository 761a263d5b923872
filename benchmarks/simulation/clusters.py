"""Clusters to place jobs on: groups of catalogue machines, cluster files, openb's node list."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import combinations
from pathlib import Path

from benchmarks.papers import openb
from scheduler_extender.files.allocatable import Allocatable
from scheduler_extender.files.clusterfile import ClusterFileError, load
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import MIB, Bytes, Gpu, GpuUuid, NodeName
from topology.core.graph import NodeTopology
from topology.core.links import Link, LinkKind
from topology.core.report import Report
from topology.machines import UnknownMachine, machine
from topology.machines.notation import STOCK

# What a node has of which nothing is said: CPU and memory do not bind.
ENDLESS = Allocatable(10**12, 10**18, 10**6)
MAX_NODES = 100_000


class ClusterError(ValueError):
    """A cluster cannot be made of what was given; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, what pods can have of it, and who holds GPUs on it already."""

    topology: NodeTopology
    allocatable: Allocatable = ENDLESS
    report: Report = field(default_factory=Report)
    pods: tuple[PodRecord, ...] = ()


def cluster(source: str, adds: Sequence[str] = ()) -> tuple[Node, ...]:
    """The nodes of a source, and of ``adds`` (``machine=count``) beside them.

    A source is a cluster file (as ``/v1/snapshot`` writes), groups such as
    ``dgx1-v100=16,a100-pcie-4-bridged=8``, or ``openb``. Raises :class:`ClusterError`.
    """
    if source == "openb":
        nodes = list(_openb())
    elif "=" in source and not _is_file(source):
        nodes = [n for word in source.split(",") for n in _group(word, "")]
    else:
        nodes = list(_file(Path(source)))
    for number, word in enumerate(adds, 1):
        nodes += _group(word, f"new{number}-")
    if len(nodes) > MAX_NODES:
        raise ClusterError(f"{source}: {len(nodes)} nodes; at most {MAX_NODES:,} are allowed")
    names = Counter(node.topology.name for node in nodes)
    for name, times in names.items():
        if times > 1:
            raise ClusterError(f"{source}: node {name} is there twice")
    return tuple(nodes)


def _is_file(source: str) -> bool:
    try:
        return Path(source).exists()
    except OSError:  # longer than any file's name
        return False


def _group(word: str, prefix: str) -> Iterator[Node]:
    name, _, count = word.strip().partition("=")
    if not (count.isascii() and count.isdigit()) or not 1 <= int(count) <= MAX_NODES:
        raise ClusterError(
            f"{word!r}: allowed are a machine and how many, such as dgx1-v100=16, "
            f"with counts from 1 to {MAX_NODES:,}"
        )
    try:
        kind = machine(name)
    except UnknownMachine as error:
        raise ClusterError(str(error)) from error
    width = len(str(int(count) - 1))
    for i in range(int(count)):
        yield Node(kind.topology(f"{prefix}{name}-{i:0{width}}"))


def _file(path: Path) -> Iterator[Node]:
    try:
        content = load(path)
    except ClusterFileError as error:
        raise ClusterError(str(error)) from error
    pods: dict[NodeName, list[PodRecord]] = {}
    for pod in content.pods:
        if pod.node is not None and not pod.ended:
            pods.setdefault(pod.node, []).append(pod)
    for record in content.records:
        name = record.topology.name
        on = tuple(pods.get(name, ()))
        has = _without(content.allocatable.get(name, ENDLESS), on)
        yield Node(record.topology, has, record.report or Report(), on)


def _without(has: Allocatable, pods: Sequence[PodRecord]) -> Allocatable:
    """What these pods leave of a node; they stay to the end. CPU in milli, memory in bytes."""
    asked: Counter[str] = Counter()
    for pod in pods:
        asked.update(dict(pod.standing.asks))
    return Allocatable(
        max(0, has.cpu - asked["cpu"]),
        max(0, has.memory - asked["memory"] // 1000),
        max(0, has.pods - len(pods)),
    )


def _openb() -> Iterator[Node]:
    """openb's nodes: CPU, memory and models are the trace's, which says nothing of links."""
    try:
        kinds = openb.nodes()
    except openb.TraceMissingError as error:
        raise ClusterError(str(error)) from error
    for i, kind in enumerate(kinds):
        has = Allocatable(kind.cpu, kind.memory * MIB)
        yield Node(pcie_box(f"openb-{i:04}", kind.model, kind.gpus), has)


@cache
def _links(count: int) -> tuple[Link, ...]:
    return tuple(Link(a, b, LinkKind.NODE) for a, b in combinations(range(count), 2))


def pcie_box(name: str, product: str, count: int) -> NodeTopology:
    """A node of GPUs without NVLink, host bridges between any two."""
    gpus = tuple(
        Gpu(i, GpuUuid(f"GPU-{sha256(f'{name}/{i}'.encode()).hexdigest()[:32]}"), product, _MEMORY)
        for i in range(count)
    )
    return NodeTopology(NodeName(name), gpus, _links(count), allocator=STOCK)


_MEMORY = Bytes(16 * 1024 * MIB)  # openb does not say; nothing in its jobs asks
