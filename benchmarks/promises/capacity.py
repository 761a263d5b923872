"""How many GPUs of each node are given out, as kube-scheduler counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from topology.core.graph import NodeTopology


class Capacity:
    """Devices taken and there, node by node; a GPU that is shared counts once for each share."""

    def __init__(self, nodes: Iterable[NodeTopology]) -> None:
        self._there = {str(node.name): _units(node) * node.resources[0].replicas for node in nodes}
        self._taken: Counter[str] = Counter()
        self._closed: set[str] = set()

    def there(self, node: str) -> int:
        """How many devices a node has, taken or not."""
        return self._there[node]

    def take(self, node: str, count: int) -> None:
        """A pod counts on a node from now on."""
        self._taken[node] += count

    def give_back(self, node: str, count: int) -> None:
        """A pod counts there no more."""
        self._taken[node] -= count

    def close(self, node: str) -> None:
        """The node says that it has no devices at all."""
        self._closed.add(node)

    def open(self, node: str) -> None:
        """The node says that its devices are back."""
        self._closed.discard(node)

    def fits(self, node: str, count: int) -> bool:
        """Whether so many devices are left."""
        return node not in self._closed and self._taken[node] + count <= self._there[node]

    def free(self, node: str) -> int:
        """How many devices of a node are left."""
        return self._there[node] - self._taken[node]

    def fitting(self, count: int) -> list[str]:
        """The nodes that have so many devices left, in the order of the fleet."""
        return [node for node in self._there if self.fits(node, count)]

    def used_share(self, node: str) -> float:
        """The share of a node's devices that is taken, 0 to 1."""
        return self._taken[node] / self._there[node]


def _units(node: NodeTopology) -> int:
    """GPUs, or the MIG instances that the node's first resource stands for."""
    served = node.resources[0]
    if served.strategy != "mig":
        return len(node.gpus)
    _, by_profile, wanted = served.name.partition("/mig-")
    parts = [part for gpu in node.gpus for part in gpu.mig_instances]
    return sum(not by_profile or part.profile == wanted for part in parts)
