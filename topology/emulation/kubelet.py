"""The kubelet's device manager, step by step (Kubernetes 1.36, ``devicemanager/manager.go``).

It hands out devices container by container. Pods that have ended release their devices when the
next container asks for some. The report shows what PodResources would show, so it leaves ordinary
init containers out; it can be taken between two containers of an admission.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest, Role
from topology.emulation.plugin import Device, PluginCrash, best_effort, greedy

UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
TOPOLOGY_AFFINITY = "TopologyAffinityError"


class Refused(Exception):  # noqa: N818 (it is an answer)
    """The kubelet refuses the pod, which is then Failed; the argument is its reason."""


@dataclass
class _Pod:
    namespace: str
    name: str
    request: GpuRequest
    containers: dict[str, list[Device]] = field(default_factory=dict)
    ended: bool = False


class EmulatedKubelet:
    """One node. ``rng`` decides what the real programs leave to chance.

    ``foreign_hints`` says that the CPU Manager and others give the Topology Manager hints, too, for
    pods that they serve; the model does not know them.
    """

    def __init__(
        self,
        topology: NodeTopology,
        rng: random.Random,
        resource: str = "nvidia.com/gpu",
        *,
        boot_id: str = "boot-1",
        foreign_hints: bool = False,
    ) -> None:
        served = topology.resource(resource)
        assert served is not None, f"{topology.name} does not serve {resource}"  # noqa: S101
        self.topology = topology
        self.resource = resource
        self.boot_id = boot_id
        self._replicas = served.replicas
        self._rng = rng
        self._foreign_hints = foreign_hints
        self._others_hint = False
        self._devices = [(p, r) for p in range(len(topology.gpus)) for r in range(self._replicas)]
        self._pods: dict[PodUid, _Pod] = {}
        self._sequence = 0
        self._withheld: set[Device] = set()

    def admit(self, uid: PodUid, namespace: str, name: str, request: GpuRequest) -> None:
        """Admit a pod at once. Raises :class:`Refused`."""
        for _ in self.admission(uid, namespace, name, request):
            pass

    def admission(
        self, uid: PodUid, namespace: str, name: str, request: GpuRequest
    ) -> Iterator[str]:
        """Admit a pod container by container, yielding each one's name. Raises :class:`Refused`."""
        pod = self._pods[uid] = _Pod(namespace, name, request)
        reusable: set[Device] = set()
        self._others_hint = self._foreign_hints and (
            request.exclusive.cpus or not request.only_gpu_plugin
        )
        try:
            hint = self._pod_hint(request)
            for container in request.containers:
                given = self._give(container.count, reusable, hint)
                pod.containers[container.name] = given
                if container.role is Role.INIT:
                    reusable |= set(given)
                else:
                    reusable -= set(given)
                yield container.name
        except (Refused, PluginCrash) as refusal:
            self._pods.pop(uid, None)
            if isinstance(refusal, PluginCrash):
                raise Refused(UNEXPECTED_ADMISSION) from refusal
            raise

    def restore(
        self,
        uid: PodUid,
        namespace: str,
        name: str,
        request: GpuRequest,
        given: Mapping[str, Sequence[Device]],
    ) -> None:
        """Take a pod and the devices of its containers as given, as if from a checkpoint."""
        containers = {container: list(devices) for container, devices in given.items()}
        self._pods[uid] = _Pod(namespace, name, request, containers)

    def end(self, uid: PodUid) -> None:
        """The pod ends; its devices come free when the next container asks for some."""
        if uid in self._pods:
            self._pods[uid].ended = True

    def withhold(self, positions: Iterable[int]) -> None:
        """Take GPUs out of what may be handed out, as if others held them from now on."""
        gone = set(positions)
        self._withheld |= {d for d in self._devices if d[0] in gone}

    def held(self, uid: PodUid) -> tuple[int, ...]:
        """Positions of the GPUs that a pod's app and sidecar containers have, ascending."""
        pod = self._pods[uid]
        found = {p for name in self._shown(pod) for p, _ in pod.containers[name]}
        return tuple(sorted(found))

    def free(self) -> list[Device]:
        """Devices that nobody holds once all ended pods have released theirs."""
        taken = {d for pod in self._pods.values() if not pod.ended for d in _devices_of(pod)}
        return [d for d in self._devices if d not in taken | self._withheld]

    def report(self, *, forget_ended: bool = True) -> Report:
        """What an agent would publish now."""
        self._sequence += 1
        allocations = []
        for uid, pod in self._pods.items():
            if pod.ended and forget_ended:
                continue
            for name in self._shown(pod):
                ids = tuple(self._id(d) for d in pod.containers[name])
                allocations.append(
                    Allocation(uid, pod.namespace, pod.name, name, self.resource, ids)
                )
        return Report(self.boot_id, self._sequence, allocations=tuple(allocations))

    def forget_sequence(self) -> None:
        """The node's record is made anew: its numbers start again."""
        self._sequence = 0

    def _shown(self, pod: _Pod) -> list[str]:
        hidden = {c.name for c in pod.request.containers if c.role is Role.INIT}
        return [name for name in pod.containers if name not in hidden]

    def _id(self, device: Device) -> DeviceId:
        uuid = self.topology.gpus[device[0]].uuid
        return DeviceId(uuid if self._replicas == 1 else f"{uuid}::{device[1]}")

    def _available(self) -> list[Device]:
        for uid in [uid for uid, pod in self._pods.items() if pod.ended]:
            del self._pods[uid]
        return self._shuffled(self.free())

    def _shuffled(self, devices: Sequence[Device]) -> list[Device]:
        return self._rng.sample(devices, len(devices))

    def _give(
        self, count: int, reusable: set[Device], pod_hint: frozenset[int] | None
    ) -> list[Device]:
        available = self._available()
        hint = pod_hint
        if self._aligns and self.topology.allocator.topology_manager_scope == "container":
            hint = self._merged_hint(available, reusable, count)
        given = self._shuffled(sorted(reusable))[:count]
        missing = count - len(given)
        if not missing:
            return given
        if missing > len(available):
            raise Refused(UNEXPECTED_ADMISSION)
        aligned = [] if hint is None else [d for d in available if self._numa(d) in hint]
        if missing < len(aligned):
            available = aligned
        else:
            given += aligned
            available = [d for d in available if d not in set(aligned)]
            if len(given) == count:
                return given
        wanted = self._prefer(self._shuffled(available + given), given, count)
        given += [d for d in wanted if d not in set(given)][: count - len(given)]
        rest = self._shuffled([d for d in available if d not in set(given)])
        return given + rest[: count - len(given)]

    def _prefer(
        self, available: Sequence[Device], required: Sequence[Device], size: int
    ) -> list[Device]:
        policy = self.topology.allocator.policy
        shape = self.topology.shape
        if policy == "best-effort" and self._replicas == 1:
            return best_effort(shape, available, required, size)
        if policy in ("distributed", "packed"):
            choose = greedy(self._replicas, fewest_first=policy == "distributed")
            return choose(shape, available, required, size)
        return [*required, *(d for d in available if d not in set(required))][:size]

    # The Topology Manager.

    @property
    def _aligns(self) -> bool:
        known = any(gpu.numa_node is not None for gpu in self.topology.gpus)
        return known and self.topology.allocator.topology_manager_policy != "none"

    def _numa(self, device: Device) -> int | None:
        return self.topology.gpus[device[0]].numa_node

    def _pod_hint(self, request: GpuRequest) -> frozenset[int] | None:
        if self._aligns and self.topology.allocator.topology_manager_scope == "pod":
            return self._merged_hint(self._available(), set(), request.effective_count)
        return None

    def _merged_hint(
        self, available: Sequence[Device], reusable: set[Device], count: int
    ) -> frozenset[int] | None:
        """Merge our hints with those of providers that we know nothing of, as 1.36 does."""
        policy = self.topology.allocator.topology_manager_policy
        ours = self._hints(available, reusable, count)
        nodes = sorted({n for n in map(self._numa, self._devices) if n is not None})
        everything = frozenset(nodes)
        theirs: list[tuple[frozenset[int] | None, bool]] = [(None, True)]
        if self._others_hint and self._rng.random() < 0.7:
            masks = [frozenset(c) for n in range(1, len(nodes) + 1) for c in combinations(nodes, n)]
            some = self._rng.sample(masks, self._rng.randint(1, len(masks)))
            theirs = [(mask, self._rng.random() < 0.5) for mask in some]
        lists = [ours or [(None, False)], theirs]
        if policy == "single-numa-node":
            lists = [
                [(m, pref) for m, pref in hints if pref and (m is None or len(m) == 1)]
                for hints in lists
            ]
        widest_need = max(
            (min(len(m) for m, _ in hints if m) for hints in lists if any(m for m, _ in hints)),
            default=0,
        )
        best: tuple[frozenset[int], bool] | None = None
        for a in lists[0]:
            for b in lists[1]:
                masks_of = [m for m, _ in (a, b) if m is not None]
                merged = everything.intersection(*masks_of)
                agreed = a[1] and b[1] and len(set(masks_of)) <= 1
                if merged:
                    best = _better(best, (merged, agreed), widest_need)
        found, preferred = best if best is not None else (everything, False)
        if policy in ("restricted", "single-numa-node") and not preferred:
            raise Refused(TOPOLOGY_AFFINITY)
        return found

    def _hints(
        self, available: Sequence[Device], reusable: set[Device], count: int
    ) -> list[tuple[frozenset[int] | None, bool]]:
        nodes = sorted({n for n in map(self._numa, self._devices) if n is not None})
        fewest, found = len(nodes), []
        for n in range(1, len(nodes) + 1):
            for chosen in combinations(nodes, n):
                mask = frozenset(chosen)
                if sum(self._numa(d) in mask for d in self._devices) >= count:
                    fewest = min(fewest, n)
                if any(self._numa(d) not in mask for d in reusable):
                    continue
                here = sum(self._numa(d) in mask for d in available) + len(reusable)
                if here >= count:
                    found.append(mask)
        return [(mask, len(mask) == fewest) for mask in found]


def _better(
    current: tuple[frozenset[int], bool] | None, candidate: tuple[frozenset[int], bool], need: int
) -> tuple[frozenset[int], bool]:
    """The merge's preference between two hints: ``compare`` of ``topologymanager/policy.go``."""
    if current is None or (candidate[1] and not current[1]):
        return candidate
    if current[1] and not candidate[1]:
        return current
    narrow = min(current, candidate, key=lambda h: (len(h[0]), sum(1 << n for n in h[0])))
    if current[1]:
        return narrow
    now, then = len(current[0]), len(candidate[0])
    if now > need:
        return narrow
    if now == need:
        return narrow if then == need else current
    if then > need:
        return current
    if then == need or then > now:
        return candidate
    return current if then < now else narrow


def _devices_of(pod: _Pod) -> set[Device]:
    return {d for given in pod.containers.values() for d in given}
