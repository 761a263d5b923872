"""The answers of the hint providers other than the device manager to one pod: hints and refusals.

Beside the device manager, the CPU Manager, the Memory Manager and the plugins of other devices give
hints. Under a policy of the Topology Manager the kubelet combines their *hints* with the device
manager's (:mod:`.topologymanager`). The static managers may also *refuse* the containers of a pod,
whatever the hints are:

* With ``full-pcpus-only`` the CPU Manager refuses a number of CPUs that is not a multiple of a
  core's threads. It also refuses more CPUs than the whole cores that are left have.
* The Memory Manager refuses a container if no NUMA nodes have the memory. It also refuses if the
  NUMA nodes that have it serve other containers in another group of NUMA nodes.

If the node's record does not say what a manager has left, or the pod does not say what it asks for,
any hint counts as possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from topology.core.admission.devicemanager import DeviceManager
from topology.core.admission.staticmanagers import MemoryLeft, MemoryManager, cpu_hints
from topology.core.admission.topologyhints import (
    NO_HINTS,
    Hints,
    ProviderHints,
    all_nodes,
    on_one_node,
    preferred,
    rankings,
)
from topology.core.budget import HINT_STEPS
from topology.core.memo import memoized
from topology.core.numa import NumaConfig
from topology.core.numaresources import FreeNumaResources
from topology.core.requests import (
    Amounts,
    Counts,
    Demand,
    Exclusive,
    Role,
    added,
    device_count,
    memory_text,
)

# A static CPU Manager or Memory Manager may refuse the pod, under any error name.
MANAGERS = "cpu-or-memory-manager"
AFFINITY = "topology-affinity"  # the Topology Manager may refuse the pod (TopologyAffinityError)

MAX_NUMA_NODES = 8  # the kubelet's default limit for the Topology Manager
MAX_SETS = 2048  # sets of NUMA nodes that are tried for one pod, over all of its containers

KnownHints = Hints | None  # the hints for a container; None if any hint may be given


@dataclass(frozen=True, slots=True)
class ProviderAnswers:
    """The answers of the hint providers other than the device manager to one pod."""

    containers: tuple[KnownHints, ...] = ()  # the hints for each container with devices
    pod: KnownHints = NO_HINTS  # the hints for the whole pod, under scope `pod`
    hazards: tuple[str, ...] = ()  # refusals that may come, whatever GPUs are free
    reason: str = ""  # why a refusal surely comes; empty if none surely does
    steps: int = field(default=0, compare=False)  # the cost of these answers (see budget)

    @property
    def refused(self) -> bool:
        """Whether the pod is surely refused."""
        return bool(self.reason)

    def of(self, container: int) -> KnownHints:
        """Return the hints for container number ``container`` of those with devices."""
        return self.containers[container] if self.containers else NO_HINTS


NO_ANSWERS = ProviderAnswers()  # no other provider has hints or refuses


def provider_answers(
    kubelet: DeviceManager,
    numa_free: FreeNumaResources | None,
    counts: Counts,
    *,
    only_gpu_plugin: bool = True,
    exclusive: Exclusive = Exclusive.NOTHING,
) -> ProviderAnswers:
    """Return the other managers' answers to a pod with these containers.

    ``numa_free`` are the NUMA resources that the node has left; None if unknown.
    """
    if only_gpu_plugin and not exclusive:  # most pods
        return NO_ANSWERS
    return _provider_answers(kubelet, numa_free, counts, only_gpu_plugin, exclusive)


@memoized
def _provider_answers(
    kubelet: DeviceManager,
    numa_free: FreeNumaResources | None,
    counts: Counts,
    only_gpu_plugin: bool,
    exclusive: Exclusive,
) -> ProviderAnswers:
    config = kubelet.config
    cpus = exclusive.cpus and config.cpu_manager_policy != "none"
    memory = exclusive.memory and config.memory_manager_policy != "None"
    unknown: tuple[KnownHints, ...] = (None,) * len(counts)
    if not cpus and not memory:
        return NO_ANSWERS if only_gpu_plugin else ProviderAnswers(unknown, None)
    asked = tuple(i for i, demand in enumerate(exclusive.demands) if demand.devices)
    with_devices = tuple((exclusive.demands[i].role, exclusive.demands[i].devices) for i in asked)
    listed = memory or config.topology_manager_policy != "none"  # every set of NUMA nodes is tried
    if (
        config.numa is None
        or numa_free is None
        or with_devices != counts
        or (cpus and config.cpu_manager_policy is None)
        or (memory and config.memory_manager_policy is None)
        or (listed and _too_much(config.numa, exclusive))
    ):
        may_refuse = memory or (cpus and config.full_cores_only is not False)
        return ProviderAnswers(unknown, None, (MANAGERS,) * may_refuse)
    answers = _StaticManagers(kubelet, config.numa, numa_free, cpus=cpus, memory=memory).say(
        exclusive.demands, asked
    )
    if only_gpu_plugin or answers.refused:
        return answers
    return ProviderAnswers(unknown, None, answers.hazards, steps=answers.steps)


def _too_much(numa: NumaConfig, exclusive: Exclusive) -> bool:
    """Check whether there are too many sets of NUMA nodes, times containers, to try."""
    nodes = len(numa.nodes)
    return nodes > MAX_NUMA_NODES or len(exclusive.demands) << nodes > MAX_SETS


class _Step(NamedTuple):
    """The CPUs and memory that the containers before one have taken."""

    cpus: int = 0
    reusable: int = 0  # the CPUs among them that later containers may use again
    memory: Amounts = ()

    def after(self, demand: Demand) -> _Step:
        """Return the CPUs and memory taken after this container has got its own."""
        again = demand.cpus if demand.role is Role.INIT else 0
        memory = added(self.memory, demand.memory)
        return _Step(self.cpus + demand.cpus, self.reusable + again, memory)


class _StaticManagers:
    """The static managers of a node, which answer one pod."""

    def __init__(
        self,
        kubelet: DeviceManager,
        numa: NumaConfig,
        numa_free: FreeNumaResources,
        *,
        cpus: bool,
        memory: bool,
    ) -> None:
        self._kubelet = kubelet
        self._policy = kubelet.config.topology_manager_policy
        self._strict = self._policy in ("restricted", "single-numa-node")
        self._numa = numa
        self._room = numa_free
        self._cpus = cpus
        self._memory = memory
        self._memory_left = MemoryLeft(numa, numa_free) if memory else None
        self._hazards: set[str] = set()
        self._refused = ""
        self._steps = 0

    def say(self, demands: tuple[Demand, ...], asked: tuple[int, ...]) -> ProviderAnswers:
        """Return the managers' answers. ``asked`` are the indices of containers with devices."""
        whole = self._kubelet.config.topology_manager_scope == "pod" and self._policy != "none"
        pod: KnownHints = NO_HINTS
        if whole:
            pod = self._hints(_as_one(demands), _Step(), whole=True)
        containers: list[KnownHints] = []
        step = _Step()
        for place, demand in enumerate(demands):
            self._refuse_cpus(demand, step)
            hints = self._hints(demand, step)
            if whole:
                # The pod has one hint. The call above has recorded refusals for memory.
                hints = NO_HINTS
            elif place not in asked:
                self._judge(demand, hints)
            if place in asked:
                containers.append(hints)
            step = step.after(demand)
        if whole and self._memory and len(demands) > 1:
            # The Memory Manager still allocates each container's memory separately.
            self._hazards.add(MANAGERS)
        return ProviderAnswers(
            tuple(containers),
            pod,
            tuple(sorted(self._hazards)),
            self._refused,
            self._steps,
        )

    def _hints(self, demand: Demand, step: _Step, *, whole: bool = False) -> KnownHints:
        """Return the hints for one container, or for the ``whole`` pod as one.

        None if any hint may come. For one container, also record whether the Memory Manager refuses
        it or may refuse it.
        """
        providers: list[ProviderHints] = []
        accepted = None
        if self._cpus and demand.cpus and self._policy != "none":
            self._steps += HINT_STEPS << len(self._numa.nodes)
            cpus = cpu_hints(
                self._numa, self._room, demand.cpus, before=step.cpus, reusable=step.reusable
            )
            if cpus is None:
                return None
            providers.append(cpus)
        if self._memory and demand.memory:
            self._steps += HINT_STEPS << len(self._numa.nodes)
            manager = MemoryManager(
                self._numa,
                self._room,
                only_fewest=self._strict,
                before=step.memory,
                left=self._memory_left,
            )
            memory = manager.hints(demand.memory)
            accepted = manager.accepted(demand.memory, memory)
            sure = any(hint.sure for hint in memory)
            if whole and memory and not sure:
                return None  # the manager may have no hint, and then it gives none
            if not whole and not sure:
                self._hazards.add(MANAGERS)
            if not whole and not memory:
                self._refused = (
                    "Memory Manager Static: no NUMA nodes have the requested memory free"
                )
            # A manager without any hint is left out.
            providers += [memory] * len(demand.memory) if memory else []
        return Hints(tuple(providers), accepted)

    def _judge(self, demand: Demand, hints: KnownHints) -> None:
        """Record the refusals that a container without GPUs meets or may meet."""
        if self._policy == "none":
            return
        if hints is None:
            self._hazards.update((AFFINITY,) if self._strict else ())
            return
        if not hints.providers:
            return
        config = self._kubelet.config
        single = self._policy == "single-numa-node"
        ranked = rankings(False if single else config.prefers_closest, config.numa_distances)
        given = [on_one_node(h) if single else h for h in hints.providers]
        merged = preferred(given, ranked)
        if merged.may_fail:
            self._hazards.update((AFFINITY,) if self._strict else ())
        if hints.accepted is not None and merged.may_fail and not self._strict:
            self._hazards.add(MANAGERS)
        if self._strict and not merged.nodes:
            where = (
                "and no NUMA node has them free"
                if single
                else "and they are spread over too many NUMA nodes"
            )
            self._refused = (
                f"Topology Manager {self._policy}: a container without GPUs requests "
                f"{_text(demand)}, {where}"
            )

    def _refuse_cpus(self, demand: Demand, step: _Step) -> None:
        """Record whether the CPU Manager refuses a container, or may refuse it, whatever the hints
        are."""
        if not self._cpus or not demand.cpus:
            return
        numa_free = self._room
        if demand.cpus > numa_free.left_in_all - step.cpus:
            # Terminating pods, and init containers, may hold some of the CPUs.
            self._hazards.add(MANAGERS)
        if demand.cpus > numa_free.most(all_nodes(self._numa)) + step.reusable:
            self._refused = f"CPU Manager: fewer than {demand.cpus} CPUs are free"
        self._refuse_cores(demand, step)

    def _refuse_cores(self, demand: Demand, step: _Step) -> None:
        """Record whether ``full-pcpus-only`` refuses, or may refuse, a container."""
        option = self._kubelet.config.full_cores_only
        if option is False:
            return
        numa_free, threads = self._room, self._numa.threads
        uneven = bool(demand.cpus % threads)
        if uneven or demand.cpus > numa_free.whole - numa_free.taken - step.cpus:
            self._hazards.add(MANAGERS)
        if option and uneven:
            self._refused = (
                f"CPU Manager full-pcpus-only: {demand.cpus} CPUs do not fill whole cores of "
                f"{threads} threads"
            )
        elif option and demand.cpus > numa_free.whole + numa_free.whole_back:
            self._refused = (
                f"CPU Manager full-pcpus-only: too few whole cores are free for {demand.cpus} CPUs"
            )


def _as_one(demands: tuple[Demand, ...]) -> Demand:
    """Return the pod as one container, with its amounts added by Kubernetes' rule for pods."""
    # The Memory Manager leaves out a type of memory that no app container asks for.
    kinds = sorted({kind for d in demands if d.role is Role.APP for kind, _ in d.memory})
    return Demand(
        Role.APP,
        device_count(tuple((d.role, d.devices) for d in demands)),
        device_count(tuple((d.role, d.cpus) for d in demands)),
        tuple(
            (kind, device_count(tuple((d.role, dict(d.memory).get(kind, 0)) for d in demands)))
            for kind in kinds
        ),
    )


def _text(demand: Demand) -> str:
    words = [f"{demand.cpus} CPU{'s' if demand.cpus != 1 else ''}"] if demand.cpus else []
    words += [f"{memory_text(amount)} of {kind}" for kind, amount in demand.memory]
    return " and ".join(words)
