"""Clusters to place jobs on: groups of catalogue machines, and cluster files."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.simulation.jobs import WHOLE_GPU
from scheduler_extender.files.allocatable import Allocatable
from scheduler_extender.files.clusterfile import ClusterFileError, load
from topology.core.graph import NodeTopology
from topology.machines import UnknownMachine, machine

# What a node has of which nothing is said: CPU and memory do not bind.
ENDLESS = Allocatable(10**12, 10**18, 10**6)
MAX_NODES = 100_000


class ClusterError(ValueError):
    """A cluster cannot be made of what was given; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what pods can have of it."""

    topology: NodeTopology
    allocatable: Allocatable = ENDLESS


@lru_cache(maxsize=4)
def cluster(source: str) -> tuple[Node, ...]:
    """The nodes of a source, empty: groups and cluster files, with commas between.

    A group is a machine and how many, such as ``dgx1-v100=16``. Of a cluster file (as
    ``/v1/snapshot`` writes) the nodes count, not the pods. Raises :class:`ClusterError`.
    """
    nodes: list[Node] = []
    for word in source.split(","):
        nodes += _group(word.strip()) if "=" in word else _file(Path(word.strip()))
        if len(nodes) > MAX_NODES:
            raise ClusterError(f"{source}: {len(nodes)} nodes; at most {MAX_NODES:,} are allowed")
    names = Counter(node.topology.name for node in nodes)
    for name, times in names.items():
        if times > 1:
            raise ClusterError(f"{source}: node {name} is there twice")
    return tuple(nodes)


def _group(word: str) -> Iterator[Node]:
    name, _, count = word.partition("=")
    digits = count.isascii() and count.isdigit() and len(count) <= len(str(MAX_NODES))
    if not digits or not 1 <= int(count) <= MAX_NODES:
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
        yield Node(kind.topology(f"{name}-{i:0{width}}"))


def _file(path: Path) -> Iterator[Node]:
    try:
        content = load(path)
    except ClusterFileError as error:
        raise ClusterError(str(error)) from error
    for record in content.records:
        node = record.topology
        serves = [(s.name, s.strategy) for s in node.resources if node.gpus]
        if serves != [(WHOLE_GPU, "none")]:
            said = ", ".join(f"{name} ({strategy})" for name, strategy in serves) or "no GPUs"
            raise ClusterError(
                f"{path}: node {node.name} serves {said}; allowed are whole GPUs, {WHOLE_GPU}"
            )
        yield Node(node, content.allocatable.get(node.name, ENDLESS))
