"""The kubelet's device manager, step by step (Kubernetes 1.36, ``devicemanager/manager.go``).

It hands out devices container by container. The devices of ended pods are released when the next
container requests devices. The report shows the same as PodResources, so it leaves out ordinary
init containers. A report can be taken between two containers of an admission.

When the kubelet starts again, it knows from its checkpoint which pods hold which devices. But it
shows no pods until it has heard of them, and it has no devices to hand out until the device plugin
has registered.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from topology.core.devices import DeviceId, GpuResource, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest, Role
from topology.emulation.plugin import (
    Device,
    PluginCrash,
    PluginRefusal,
    best_effort,
    greedy,
    refuses_several,
)
from topology.emulation.topologymanager import Nodes, Refused, TopologyManager

UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
# The kubelet's error if the device plugin ends before it answers.
NO_ANSWER = (
    "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Canceled desc = "
    "grpc: the client connection is closing"
)
# The share of containers that a static CPU or Memory Manager refuses if it may.
MANAGERS_REFUSE = 0.1


@dataclass(frozen=True, slots=True)
class _Unit:
    """A GPU or MIG instance, which the device plugin advertises as one or more devices."""

    uuid: str
    gpu: int  # the position of the GPU, or of the GPU of the MIG instance


def _units(topology: NodeTopology, served: GpuResource) -> list[_Unit]:
    """Return the units of one resource.

    If the resource is named after a MIG profile, these are the instances of this profile. A plugin
    that serves instances serves no whole GPU that is in MIG mode.
    """
    if served.strategy != "mig":
        serves_mig = any(each.strategy == "mig" for each in topology.resources)
        return [
            _Unit(gpu.uuid, p)
            for p, gpu in enumerate(topology.gpus)
            if not (serves_mig and gpu.mig_mode == "enabled")
        ]
    _, by_profile, wanted = served.name.partition("/mig-")
    return [
        _Unit(part.uuid, p)
        for p, gpu in enumerate(topology.gpus)
        for part in gpu.mig_instances
        if not by_profile or part.profile.replace("+", ".") == wanted
    ]


@dataclass
class _Pod:
    namespace: str
    name: str
    request: GpuRequest
    containers: dict[str, list[Device]] = field(default_factory=dict)
    ended: bool = False


class EmulatedKubelet:
    """The kubelet and the device plugin of one node. ``rng`` makes every random choice.

    With ``foreign_hints`` the CPU and Memory Managers and other device plugins give hints for the
    pods that they serve, and may refuse them. Their answers are drawn at random from all answers
    that are possible on such a node.
    """

    def __init__(
        self,
        topology: NodeTopology,
        rng: random.Random,
        resource: str = "nvidia.com/gpu",
        *,
        foreign_hints: bool = False,
    ) -> None:
        served = topology.resource(resource)
        assert served is not None, f"{topology.name} does not serve {resource}"  # noqa: S101
        self.topology = topology
        self.resource = resource
        self._replicas = served.replicas
        self._rng = rng
        self._foreign_hints = foreign_hints
        self._refuses_several = refuses_several(topology, served)
        self._units = _units(topology, served)
        self._devices = [(u, r) for u in range(len(self._units)) for r in range(self._replicas)]
        self._pods: dict[PodUid, _Pod] = {}
        self._sequence = 0
        self._sick: set[Device] = set()
        self._of_mig = served.strategy == "mig"
        nodes = [topology.gpus[unit.gpu].topology_nodes or () for unit in self._units]
        self._manager = TopologyManager(topology, self._devices, nodes, rng, others=foreign_hints)
        self.answers = True  # whether the kubelet runs
        self.shows_pods = True  # whether it has heard of its pods since it started
        # Whether the device plugin is registered. Without it every pod is refused.
        self.registered = True

    def admit(self, uid: PodUid, namespace: str, name: str, request: GpuRequest) -> None:
        """Admit a pod at once. Raises :class:`Refused`."""
        for _ in self.admission(uid, namespace, name, request):
            pass

    def admission(
        self, uid: PodUid, namespace: str, name: str, request: GpuRequest
    ) -> Iterator[str]:
        """Admit a pod container by container, and yield the name of each. Raises :class:`Refused`.

        If a restart has interrupted the pod's admission, its containers keep the devices that they
        have.
        """
        pod = self._pods.setdefault(uid, _Pod(namespace, name, request))
        resumed = frozenset(pod.containers)
        reusable: set[Device] = set()
        try:
            hint = self._pod_hint(request, resumed=bool(resumed))
            for container in request.containers:
                if container.name in resumed:
                    given = self._keep(pod.containers[container.name], request)
                else:
                    given = self._give(request, container.count, reusable, hint)
                pod.containers[container.name] = given
                if container.role is Role.INIT:
                    reusable |= set(given)
                else:
                    reusable -= set(given)
                yield container.name
        except (Refused, PluginCrash, PluginRefusal) as refusal:
            self._pods.pop(uid, None)
            if isinstance(refusal, Refused):
                raise
            raise _unexpected(
                NO_ANSWER if isinstance(refusal, PluginCrash) else refusal
            ) from refusal

    def restore(
        self,
        uid: PodUid,
        namespace: str,
        name: str,
        request: GpuRequest,
        given: Mapping[str, Sequence[Device]],
    ) -> None:
        """Add a pod whose containers have these devices, as if from a checkpoint."""
        containers = {container: list(devices) for container, devices in given.items()}
        self._pods[uid] = _Pod(namespace, name, request, containers)

    def end(self, uid: PodUid) -> None:
        """End a pod. Its devices become free when the next container requests devices."""
        if uid in self._pods:
            self._pods[uid].ended = True

    def stop(self) -> None:
        """Stop the kubelet. After its next start it shows no pods and has no device plugin."""
        self.answers = self.registered = self.shows_pods = False

    def start(self) -> None:
        """Start the kubelet again."""
        self.answers = True

    def holds(self, uid: PodUid) -> bool:
        """Check whether a pod is on the node and has not ended."""
        return uid in self._pods and not self._pods[uid].ended

    def register(self) -> None:
        """Register the device plugin anew. It reports every GPU as healthy."""
        self.registered = True
        self._sick.clear()

    def sicken(self, positions: Iterable[int]) -> None:
        """Let the device plugin report GPUs as sick.

        They are no longer handed out, but pods that hold them keep them.
        """
        self._sick |= self._on(positions)

    def heal(self, positions: Iterable[int]) -> None:
        """Let the device plugin report GPUs as healthy."""
        self._sick -= self._on(positions)

    def held(self, uid: PodUid) -> tuple[int, ...]:
        """Return the positions of the GPUs of a pod's app and sidecar containers, ascending."""
        pod = self._pods[uid]
        found = {self._gpu(d) for name in self._shown(pod) for d in pod.containers[name]}
        return tuple(sorted(found))

    def held_ids(self, uid: PodUid) -> tuple[DeviceId, ...]:
        """Return the device ids of a pod's app and sidecar containers."""
        pod = self._pods[uid]
        return tuple(self._id(d) for name in self._shown(pod) for d in pod.containers[name])

    def sharing(self) -> dict[str, list[tuple[PodUid, GpuRequest, int]]]:
        """Return the pods on each GPU or MIG instance, each with its request and number of devices.

        Devices of ordinary init containers count until the pod ends.
        """
        found: dict[str, list[tuple[PodUid, GpuRequest, int]]] = {}
        for uid, pod in self._pods.items():
            if not pod.ended:
                for unit, devices in Counter(unit for unit, _ in _devices_of(pod)).items():
                    found.setdefault(self._units[unit].uuid, []).append((uid, pod.request, devices))
        return found

    def free(self) -> list[Device]:
        """Return the devices that are free to hand out once all ended pods have released theirs."""
        if not self.registered:
            return []
        taken = {d for pod in self._pods.values() if not pod.ended for d in _devices_of(pod)}
        return [d for d in self._devices if d not in taken | self._sick]

    def report(self, *, forget_ended: bool = True) -> Report:
        """Return the report that an agent would publish now.

        Unless ``forget_ended``, it still shows pods that have ended and whose devices are not yet
        released.
        """
        self._sequence += 1
        allocations = []
        for uid, pod in self._pods.items() if self.shows_pods else ():
            if pod.ended and forget_ended:
                continue
            for name in self._shown(pod):
                ids = tuple(self._id(d) for d in pod.containers[name])
                allocations.append(
                    Allocation(uid, pod.namespace, pod.name, name, self.resource, ids)
                )
        return Report(
            "boot-1",
            self._sequence,
            allocatable=self._allocatable(),
            allocations=tuple(allocations),
        )

    def _allocatable(self) -> frozenset[DeviceId] | None:
        """Return the devices that the kubelet hands out, held ones included; None for all."""
        if not self.registered:
            return frozenset()
        if not self._sick:
            return None
        return frozenset(self._id(d) for d in self._devices if d not in self._sick)

    def forget_sequence(self) -> None:
        """Restart the numbering of the reports, as for a new record."""
        self._sequence = 0

    def _shown(self, pod: _Pod) -> list[str]:
        hidden = {c.name for c in pod.request.containers if c.role is Role.INIT}
        return [name for name in pod.containers if name not in hidden]

    def _id(self, device: Device) -> DeviceId:
        uuid = self._units[device[0]].uuid
        return DeviceId(uuid if self._replicas == 1 else f"{uuid}::{device[1]}")

    def _gpu(self, device: Device) -> int:
        """Return the position of the GPU of a device."""
        return self._units[device[0]].gpu

    def _on(self, positions: Iterable[int]) -> set[Device]:
        """Return the devices on the GPUs at these positions."""
        gpus = set(positions)
        return {d for d in self._devices if self._gpu(d) in gpus}

    def _available(self) -> list[Device]:
        for uid in [uid for uid, pod in self._pods.items() if pod.ended]:
            del self._pods[uid]
        return self._shuffled(self.free())

    def _shuffled(self, devices: Sequence[Device]) -> list[Device]:
        return self._rng.sample(devices, len(devices))

    def _pod_hint(self, request: GpuRequest, *, resumed: bool) -> Nodes | None:
        """Return the hint of a whole pod under scope ``pod``; None without alignment."""
        others = self._manager.others_hint(request)
        if not self._manager.whole_pods or not self._manager.aligns(others=others):
            return None
        count = request.effective_count
        return self._manager.merged(self._available(), set(), count, others=others, lost=resumed)

    def _container_hint(
        self, request: GpuRequest, available: Sequence[Device], reusable: set[Device], count: int
    ) -> Nodes | None:
        """Return the hint of one container under scope ``container``; None without alignment."""
        others = self._manager.others_hint(request)
        if self._manager.whole_pods or not self._manager.aligns(others=others):
            return None
        return self._manager.merged(available, reusable, count, others=others)

    def _keep(self, devices: list[Device], request: GpuRequest) -> list[Device]:
        """Return the devices that a container got before a restart.

        Raises :class:`Refused` if it may not keep them.
        """
        self._container_hint(request, devices, set(), len(devices))
        if not self.registered or not self._sick.isdisjoint(devices):
            raise _unexpected(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy "
                f"devices {self.resource}"
            )
        return devices

    def _give(
        self, request: GpuRequest, count: int, reusable: set[Device], pod_hint: Nodes | None
    ) -> list[Device]:
        available = self._available()
        hint = pod_hint or self._container_hint(request, available, reusable, count)
        if self._managers_refuse(request):
            raise Refused(SMT_ALIGNMENT)
        if not self.registered:
            raise _unexpected(
                "no healthy devices present; cannot allocate unhealthy devices " + self.resource
            )
        given = self._choose(available, count, reusable, hint)
        if count > 1 and self._refuses_several:
            raise PluginRefusal(
                "rpc error: code = Unknown desc = invalid allocation request for "
                f'"{self.resource}": invalid request: maximum request size for shared resources is '
                f"1; found {count}"
            )
        return given

    def _managers_refuse(self, request: GpuRequest) -> bool:
        """Decide at random whether a static manager refuses a container, whatever the hints.

        The managers are the CPU Manager and the Memory Manager. They can refuse only a pod to which
        they give exclusive CPUs or memory.
        """
        config, exclusive = self.topology.allocator, request.exclusive
        cpus = config.cpu_manager_policy != "none" and config.full_cores_only is not False
        memory = config.memory_manager_policy != "None"
        may = (cpus and exclusive.cpus) or (memory and exclusive.memory)
        return self._foreign_hints and may and self._rng.random() < MANAGERS_REFUSE

    def _choose(
        self, available: list[Device], count: int, reusable: set[Device], hint: Nodes | None
    ) -> list[Device]:
        """Return the devices that one container gets (``devicesToAllocate``)."""
        given = self._shuffled(sorted(reusable))[:count]
        missing = count - len(given)
        if not missing:
            return given
        if missing > len(available):
            raise _unexpected(
                f"requested number of devices unavailable for {self.resource}. Requested: "
                f"{missing}, Available: {len(available)}"
            )
        near = self._manager.nodes_of
        aligned = [] if hint is None else [d for d in available if not hint.isdisjoint(near(d))]
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
        if policy == "best-effort" and self._replicas == 1 and not self._of_mig:
            return best_effort(shape, available, required, size)
        if policy in ("distributed", "packed") or (self._of_mig and policy == "best-effort"):
            # The plugin uses best effort only for whole GPUs. By default it distributes the others.
            choose = greedy(self._replicas, fewest_first=policy != "packed")
            return choose(shape, available, required, size)
        return [*required, *(d for d in available if d not in set(required))][:size]


class MixedKubelet(EmulatedKubelet):
    """The kubelet and the device plugin of a node with several resources: MIG strategy ``mixed``.

    A pod requests devices of one resource, so each resource has an emulation of its own. The
    kubelet and the plugin never stop here, and no GPU becomes sick.
    """

    def __init__(self, topology: NodeTopology, rng: random.Random) -> None:
        names = [served.name for served in topology.resources]
        super().__init__(topology, rng, names[0])
        self._serving = {name: EmulatedKubelet(topology, rng, name) for name in names}

    def admission(
        self, uid: PodUid, namespace: str, name: str, request: GpuRequest
    ) -> Iterator[str]:
        """Admit a pod container by container, and yield the name of each. Raises :class:`Refused`.

        A resource that the node does not serve counts as its first one.
        """
        serving = self._serving.get(request.resource, self._serving[self.resource])
        return serving.admission(uid, namespace, name, request)

    def end(self, uid: PodUid) -> None:
        """End a pod. Its devices become free when the next container requests devices."""
        for each in self._serving.values():
            each.end(uid)

    def holds(self, uid: PodUid) -> bool:
        """Check whether a pod is on the node and has not ended."""
        return any(each.holds(uid) for each in self._serving.values())

    def held(self, uid: PodUid) -> tuple[int, ...]:
        """Return the positions of the GPUs of a pod's app and sidecar containers, ascending."""
        return next(each for each in self._serving.values() if each.holds(uid)).held(uid)

    def report(self, *, forget_ended: bool = True) -> Report:
        """Return the report that an agent would publish now."""
        every = [each.report(forget_ended=forget_ended) for each in self._serving.values()]
        allocations = (allocation for report in every for allocation in report.allocations)
        return replace(every[0], allocations=tuple(allocations))


def _unexpected(problem: object) -> Refused:
    return Refused(UNEXPECTED_ADMISSION, f"Allocate failed due to {problem}, which is unexpected")


def _devices_of(pod: _Pod) -> set[Device]:
    return {d for given in pod.containers.values() for d in given}
