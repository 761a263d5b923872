"""The kubelet's Topology Manager, step by step (Kubernetes 1.36, ``topologymanager``).

It merges the hints of the device manager with those of other providers: the CPU and Memory
Managers, and other device plugins. The hints of these other providers are drawn at random from all
hints that are possible on a node with this record.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations

from topology.core.graph import NodeTopology
from topology.core.requests import GpuRequest
from topology.emulation.plugin import Device

TOPOLOGY_AFFINITY = "TopologyAffinityError"
# The share of containers for which the other providers give hints if they may.
OTHERS_HINT = 0.7

Nodes = frozenset[int]  # a set of NUMA nodes
# NUMA nodes, or None for any NUMA nodes, and whether the provider prefers them.
Hint = tuple[Nodes | None, bool]


class Refused(Exception):  # noqa: N818 (it is an answer)
    """A refusal of the pod by the kubelet. The pod is then Failed, with this reason and message."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.message = message or reason


class TopologyManager:
    """The Topology Manager of one node whose device plugin advertises these ``devices``.

    ``nodes`` are the NUMA nodes that the plugin names, by the first number of a device. ``others``
    says whether there are other providers.
    """

    def __init__(
        self,
        topology: NodeTopology,
        devices: Sequence[Device],
        nodes: Sequence[Iterable[int]],
        rng: random.Random,
        *,
        others: bool,
    ) -> None:
        self._config = topology.allocator
        self._named = [tuple(sorted(named)) for named in nodes]
        self._devices = devices
        self._rng = rng
        self._others = others
        with_gpus = {n for named in self._named for n in named}
        self._places = bool(with_gpus)
        distances = self._config.numa_distances
        self._nodes = list(range(len(distances))) if distances else sorted(with_gpus)

    @property
    def whole_pods(self) -> bool:
        """Whether one hint holds for all containers of a pod."""
        return self._config.topology_manager_scope == "pod"

    def nodes_of(self, device: Device) -> tuple[int, ...]:
        """Return the NUMA nodes that the plugin names for a device."""
        return self._named[device[0]]

    def others_hint(self, request: GpuRequest) -> bool:
        """Check whether the other providers may give hints for a pod with this request."""
        if not self._others:
            return False
        cpus = self._config.cpu_manager_policy != "none" and request.exclusive.cpus
        memory = self._config.memory_manager_policy != "None" and request.exclusive.memory
        return cpus or memory or not request.only_gpu_plugin

    def aligns(self, *, others: bool) -> bool:
        """Check whether the Topology Manager influences a container's devices or its admission."""
        return self._config.topology_manager_policy != "none" and (self._places or others)

    def merged(
        self,
        available: Sequence[Device],
        reusable: set[Device],
        count: int,
        *,
        others: bool,
        lost: bool = False,
    ) -> Nodes | None:
        """Return the NUMA nodes to which a container is aligned; None if it is not aligned.

        With ``others`` the other providers may give hints, too. ``lost`` says that the device
        manager has no possible hint. Raises :class:`Refused` if the policy does not admit the
        merged hint.
        """
        policy = self._config.topology_manager_policy
        ours: list[Hint] = [(None, True)]  # devices without NUMA nodes allow any NUMA nodes
        if self._places:
            ours = [] if lost else self._hints(available, reusable, count)
        theirs: list[Hint] = self._theirs() if others else [(None, True)]
        lists = [ours or [(None, False)], theirs]
        if policy == "single-numa-node":
            lists = [
                [hint for hint in hints if hint[1] and (hint[0] is None or len(hint[0]) == 1)]
                for hints in lists
            ]
        best: Hint | None = None
        # The minimum of NUMA nodes of each provider's hints, and the largest of these minima.
        need = max(
            (min(len(m) for m, _ in hints if m) for hints in lists if any(m for m, _ in hints)),
            default=0,
        )
        for a in lists[0]:
            for b in lists[1]:
                masks = [m for m, _ in (a, b) if m is not None]
                merged = frozenset(self._nodes).intersection(*masks)
                if merged:
                    agreed = a[1] and b[1] and len(set(masks)) <= 1
                    best = self._better(best, (merged, agreed), need)
        found, preferred = best or (frozenset(self._nodes), False)
        if not self._nodes:  # without known NUMA nodes, only other providers matter, at random
            preferred = not others or self._rng.random() < 0.5
        if policy in ("restricted", "single-numa-node") and not preferred:
            raise Refused(TOPOLOGY_AFFINITY, "Resources cannot be allocated with Topology locality")
        if policy == "single-numa-node" and found == frozenset(self._nodes):
            return None  # the hint has all NUMA nodes, and this policy drops such a hint
        return found if self._places else None

    def _hints(self, available: Sequence[Device], reusable: set[Device], count: int) -> list[Hint]:
        """Return the hints of the device manager (``generateDeviceTopologyHints``)."""
        if len(set(available) | reusable) < count:
            return []
        fewest, found = len(self._nodes), []
        placed = [d for d in reusable if self.nodes_of(d)]
        for n in range(1, len(self._nodes) + 1):
            for chosen in combinations(self._nodes, n):
                if sum(self._touches(d, chosen) for d in self._devices) >= count:
                    fewest = min(fewest, n)
                if not all(self._touches(d, chosen) for d in placed):
                    continue
                here = sum(self._touches(d, chosen) for d in available) + len(placed)
                if here >= count:
                    found.append(frozenset(chosen))
        return [(mask, len(mask) == fewest) for mask in found]

    def _touches(self, device: Device, nodes: tuple[int, ...]) -> bool:
        return any(n in nodes for n in self.nodes_of(device))

    def _theirs(self) -> list[Hint]:
        """Return the hints of the other providers as one list of random hints."""
        if self._rng.random() >= OTHERS_HINT or not self._nodes:
            return [(None, True)]
        masks = [
            frozenset(c)
            for n in range(1, len(self._nodes) + 1)
            for c in combinations(self._nodes, n)
        ]
        some = self._rng.sample(masks, self._rng.randint(1, min(len(masks), 8)))
        return [(mask, self._rng.random() < 0.5) for mask in some]

    def _better(self, current: Hint | None, candidate: Hint, need: int) -> Hint:
        """Return the hint that the merge prefers (``compare`` of ``policy.go``)."""
        if current is None or (candidate[1] and not current[1]):
            return candidate
        if current[1] and not candidate[1]:
            return current
        narrow = self._narrower(current, candidate)
        if current[1]:
            return narrow
        now, then = len(current[0] or ()), len(candidate[0] or ())
        if now > need:
            return narrow
        if now == need:
            return narrow if then == need else current
        if then > need:
            return current
        if then == need or then > now:
            return candidate
        return current if then < now else narrow

    def _narrower(self, current: Hint, candidate: Hint) -> Hint:
        """Return the hint with fewer NUMA nodes, then (by option) nearer ones, then lower numbers.

        The option is ``prefer-closest-numa-nodes``.
        """

        def order(hint: Hint) -> tuple[int, float, int]:
            nodes = hint[0] or frozenset()
            apart = self._apart(nodes) if self._config.prefers_closest else 0.0
            return len(nodes), apart, sum(1 << n for n in nodes)

        return min(current, candidate, key=order)

    def _apart(self, nodes: Nodes) -> float:
        """Return the mean distance between NUMA nodes, including each node's to itself."""
        distances = self._config.numa_distances
        if distances is None or not nodes:
            return 0.0
        return sum(distances[a][b] for a in nodes for b in nodes) / len(nodes) ** 2
