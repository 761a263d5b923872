"""The answers of the other hint providers to a pod: hints beside those for GPUs, and refusals.

Beside the device manager the CPU Manager and the Memory Manager have a say, and the plugins of
other devices. Under a policy of the Topology Manager their *hints* decide with ours
(:mod:`.topologymanager`). And each may *refuse* a container what it asks, whatever the hints are:

* With ``full-pcpus-only`` the CPU Manager refuses a number of CPUs that is no multiple of a core's
  threads, and more of them than whole cores are left.
* The Memory Manager refuses where no NUMA nodes have the memory, or those that do serve others in
  another grouping.

Where the record does not tell what a manager has left, or the pod what it asks, any hint counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from topology.core.admission.kubelet import Kubelet
from topology.core.admission.staticmanagers import MemoryLeft, MemoryManager, cpu_hints
from topology.core.admission.topologyhints import (
    NO_HINTS,
    HintProvider,
    Hints,
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

MANAGERS = "cpu-or-memory-manager"
"""A static CPU or Memory Manager may refuse the pod, by whatever name."""
AFFINITY = "topology-affinity"  # the Topology Manager may refuse the pod (TopologyAffinityError)

MAX_NUMA_NODES = 8  # the kubelet's own limit for the Topology Manager, unless it is raised
MAX_SETS = 2048  # sets of NUMA nodes that are gone through for one pod, over all of its containers

KnownHints = Hints | None  # the hints for a container; None where any hint may be given


@dataclass(frozen=True, slots=True)
class ProviderAnswers:
    """The answers of the other hint providers to a pod."""

    containers: tuple[KnownHints, ...] = ()  # the hints for each container with devices
    pod: KnownHints = NO_HINTS  # those for the pod as a whole, under scope `pod`
    hazards: tuple[str, ...] = ()  # refusals that may come whatever GPUs are free
    reason: str = ""  # why one of them surely comes; empty where none does
    steps: int = field(default=0, compare=False)  # what it cost to work out (see budget)

    @property
    def refused(self) -> bool:
        """Whether the pod is surely refused."""
        return bool(self.reason)

    def of(self, container: int) -> KnownHints:
        """The hints for the container in this place."""
        return self.containers[container] if self.containers else NO_HINTS


NO_ANSWERS = ProviderAnswers()  # nobody else cares


def provider_answers(
    kubelet: Kubelet,
    numa_free: FreeNumaResources | None,
    counts: Counts,
    *,
    only_gpu_plugin: bool = True,
    exclusive: Exclusive = Exclusive.NOTHING,
) -> ProviderAnswers:
    """What the other managers say to a pod with these containers, given the ``numa_free`` they
    have."""
    if only_gpu_plugin and not exclusive:  # as most pods are
        return NO_ANSWERS
    return _provider_answers(kubelet, numa_free, counts, only_gpu_plugin, exclusive)


@memoized
def _provider_answers(
    kubelet: Kubelet,
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
    asked = _with_devices(exclusive, counts) if config.numa is not None else None
    listed = memory or config.topology_manager_policy != "none"  # sets of NUMA nodes, one by one
    if (
        config.numa is None
        or numa_free is None
        or asked is None
        or (cpus and config.cpu_manager_policy is None)
        or (memory and config.memory_manager_policy is None)
        or (listed and _too_much(config.numa, exclusive))
    ):
        may_refuse = memory or (cpus and config.full_cores_only is not False)
        return ProviderAnswers(unknown, None, (MANAGERS,) * may_refuse)
    managers = _StaticManagers(kubelet, config.numa, numa_free, cpus=cpus, memory=memory)
    answers = managers.say(exclusive.demands, asked)
    if only_gpu_plugin or answers.refused:
        return answers
    return ProviderAnswers(unknown, None, answers.hazards, steps=answers.steps)


def _with_devices(exclusive: Exclusive, counts: Counts) -> tuple[int, ...] | None:
    """The places of the containers with devices; None if they contradict the pod's ``counts``."""
    places = tuple(i for i, demand in enumerate(exclusive.demands) if demand.devices)
    same = tuple((exclusive.demands[i].role, exclusive.demands[i].devices) for i in places)
    return places if same == counts else None


def _too_much(numa: NumaConfig, exclusive: Exclusive) -> bool:
    """Whether there are too many sets of NUMA nodes, times containers, to try."""
    nodes = len(numa.nodes)
    return nodes > MAX_NUMA_NODES or len(exclusive.demands) << nodes > MAX_SETS


class _Step(NamedTuple):
    """What the containers before one have taken."""

    cpus: int = 0
    reusable: int = 0  # those of the CPUs that may be used again
    memory: Amounts = ()

    def after(self, demand: Demand) -> _Step:
        """What has been taken once this container has its own."""
        again = demand.cpus if demand.role is Role.INIT else 0
        memory = added(self.memory, demand.memory)
        return _Step(self.cpus + demand.cpus, self.reusable + again, memory)


class _StaticManagers:
    """The static managers of a node, asked about one pod."""

    def __init__(
        self,
        kubelet: Kubelet,
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
        """What they say. ``asked`` are the places of the containers with devices."""
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
                hints = NO_HINTS  # one for all; each has been asked for its memory
            elif place not in asked:
                self._judge(demand, hints)
            if place in asked:
                containers.append(hints)
            step = step.after(demand)
        if whole and self._memory and len(demands) > 1:
            self._hazards.add(MANAGERS)  # each container gets its memory by itself all the same
        return ProviderAnswers(
            tuple(containers),
            pod,
            tuple(sorted(self._hazards)),
            self._refused,
            self._steps,
        )

    def _hints(self, demand: Demand, step: _Step, *, whole: bool = False) -> KnownHints:
        """The hints for one container, or for the ``whole`` pod as one."""
        providers: list[HintProvider] = []
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
                return None  # it may have none, and is silent then
            if not whole and not sure:
                self._hazards.add(MANAGERS)
            if not whole and not memory:
                self._refused = "Memory Manager Static: no NUMA nodes have the memory"
            providers += [memory] * len(demand.memory) if memory else []  # without any it is silent
        return Hints(tuple(providers), accepted)

    def _judge(self, demand: Demand, hints: KnownHints) -> None:
        """Note what may happen to a container that asks for no GPU."""
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
            where = "no NUMA node has them free" if single else "they need more NUMA nodes"
            self._refused = (
                f"Topology Manager {self._policy}: a container without GPUs asks for "
                f"{_text(demand)}, {where}"
            )

    def _refuse_cpus(self, demand: Demand, step: _Step) -> None:
        """Note what the CPU Manager says to a container, whatever the hints are."""
        if not self._cpus or not demand.cpus:
            return
        numa_free = self._room
        if demand.cpus > numa_free.left_in_all - step.cpus:
            self._hazards.add(MANAGERS)  # pods that are ending, and init containers, hold some
        if demand.cpus > numa_free.most(all_nodes(self._numa)) + step.reusable:
            self._refused = f"CPU Manager: fewer than {demand.cpus} CPUs are free"
        self._refuse_cores(demand, step)

    def _refuse_cores(self, demand: Demand, step: _Step) -> None:
        """Note what ``full-pcpus-only`` says to a container."""
        option = self._kubelet.config.full_cores_only
        if option is False:
            return
        numa_free, threads = self._room, self._numa.threads
        uneven = bool(demand.cpus % threads)
        if uneven or demand.cpus > numa_free.whole - numa_free.taken - step.cpus:
            self._hazards.add(MANAGERS)
        if option and uneven:
            self._refused = (
                f"CPU Manager full-pcpus-only: {demand.cpus} CPUs are no whole cores of "
                f"{threads} threads"
            )
        elif option and demand.cpus > numa_free.whole + numa_free.whole_back:
            self._refused = f"CPU Manager full-pcpus-only: no whole cores with {demand.cpus} CPUs"


def _as_one(demands: tuple[Demand, ...]) -> Demand:
    """A pod as one container, by Kubernetes' arithmetic."""
    # The Memory Manager leaves out a type that no app container asks for.
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
