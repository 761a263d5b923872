"""What a pod asks of its GPUs: counts by container, constraints over the set, and a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import ClassVar, NamedTuple

from topology.core.devices import MIB, Bytes
from topology.core.hashing import hashed_once
from topology.core.links import GBps, LinkKind


class Role(Enum):
    """What a container's devices do for the pod's set.

    ``APP`` and ``SIDECAR`` (an init container with restartPolicy Always) hold theirs while the pod
    runs; an ordinary ``INIT`` container's devices are reused and show in no report.
    """

    APP = "app"
    SIDECAR = "sidecar"
    INIT = "init"

    __hash__ = object.__hash__  # quicker than Enum's, which hashes the name (see hashing)


class Demand(NamedTuple):
    """What one container of a pod of the class Guaranteed asks: devices, CPUs and memory.

    ``cpus`` are exclusive CPUs, which a static CPU Manager gives it: 0 where it asks for a
    fraction. ``memory`` is bytes by type, in the order of the types (``hugepages-1Gi``,
    ``memory``).
    """

    role: Role
    devices: int
    cpus: int = 0
    memory: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Exclusive:
    """What static CPU and Memory Managers have to give to a pod: it depends on the pod's class.

    They care about pods of the class Guaranteed alone. The Memory Manager gives each of their
    containers memory of certain NUMA nodes, the CPU Manager whole CPUs to those that ask for a
    whole number. ``demands`` are all containers of the pod in the kubelet's order, those without
    devices included; empty where it is not known what the managers would make of them.
    """

    cpus: bool = False
    memory: bool = False
    demands: tuple[Demand, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self.cpus or self.memory or bool(self.demands)

    NOTHING: ClassVar[Exclusive]
    """Nothing: the pod is not of the class Guaranteed."""
    MEMORY: ClassVar[Exclusive]
    """Memory, nobody knows how much."""
    CPUS: ClassVar[Exclusive]
    """CPUs and memory, nobody knows how many."""

    @property
    def cpus_asked(self) -> int:
        """CPUs that kube-scheduler counts for the pod."""
        return device_count(tuple((d.role, d.cpus) for d in self.demands))

    @property
    def most_cpus(self) -> int:
        """CPUs that the pod may hold in the end.

        Later containers may use again what ordinary init containers got, and need not: the CPU
        Manager takes theirs from all that is free, and the rest stays taken.
        """
        return sum(demand.cpus for demand in self.demands)

    @property
    def text(self) -> str:
        """What the pod has exclusively, in a word; empty for nothing.

        >>> Exclusive(True, True, (Demand(Role.APP, 1, 8),)).text, Exclusive.MEMORY.text
        ('8 exclusive CPUs', 'exclusive memory')
        """
        if self.cpus:
            some = self.cpus_asked
            return f"{some} exclusive CPU{'s' if some != 1 else ''}" if some else "exclusive CPUs"
        return "exclusive memory" if self.memory else ""

    @property
    def most_memory(self) -> tuple[tuple[str, int], ...]:
        """Bytes by type that all containers of the pod may hold together."""
        found: dict[str, int] = {}
        for kind, amount in (entry for demand in self.demands for entry in demand.memory):
            found[kind] = found.get(kind, 0) + amount
        return tuple(sorted(found.items()))


Exclusive.NOTHING = Exclusive()
Exclusive.MEMORY = Exclusive(memory=True)
Exclusive.CPUS = Exclusive(cpus=True, memory=True)
MAX_DEMANDS = 64
"""Containers of a pod whose CPUs and memory are followed."""


class Policy(Enum):
    """Whether a node that cannot keep the constraints is refused or only scored lower."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Pattern(Enum):
    """Which pairs of the set must meet ``link`` and ``min-nvlinks``."""

    PAIRWISE = "pairwise"
    RING = "ring"
    CONNECTED = "connected"


@hashed_once
@dataclass(frozen=True)
class Constraints:
    """All constraint keys of a pod; they hold together, over all its GPUs.

    ``link`` and ``nic`` are the least kind that will do; ``models`` are products as
    :func:`topology.core.links.is_product` compares them; any one of them may match. ``same_gpu``
    asks for MIG instances or shares of one GPU, ``spread_gpus`` for no two of one. ``gpu_memory``
    is what the pod will use on each GPU that it gets; ``exclusive_gpus`` asks for all shares of its
    GPUs.
    """

    link: LinkKind | None = None
    min_nvlinks: int | None = None
    pattern: Pattern = Pattern.PAIRWISE
    min_bandwidth: GBps | None = None
    min_gpu_memory: Bytes | None = None
    models: tuple[str, ...] = ()
    same_numa: bool = False
    nic: LinkKind | None = None
    same_gpu: bool = False
    spread_gpus: bool = False
    gpu_memory: Bytes | None = None
    exclusive_gpus: bool = False

    def least_memory(self, replicas: int) -> Bytes:
        """The memory that a GPU has to have which is served as so many replicas.

        ``min_gpu_memory`` is what each share's part has to be, unless the pod has its GPUs alone or
        says what it uses of them.
        """
        parts = 1 if self.exclusive_gpus or self.gpu_memory else replicas
        return Bytes(max((self.min_gpu_memory or 0) * parts, self.gpu_memory or 0))

    @property
    def over_links(self) -> bool:
        """Whether a key speaks about what joins two GPUs."""
        return (
            self.link is not None or self.min_nvlinks is not None or self.min_bandwidth is not None
        )

    @property
    def over_pairs(self) -> bool:
        """Whether a key speaks about pairs, so that two shares of one GPU cannot meet it."""
        return self.over_links or self.same_numa or self.spread_gpus

    @property
    def text(self) -> str:  # noqa: C901 (a line for each key)
        """The constraints as a person wrote them, in one fixed order.

        >>> Constraints(link=LinkKind.NVLINK, min_gpu_memory=Bytes(40 * 1024 * MIB)).text
        'link=nvlink min-gpu-memory=40Gi'
        """
        words = []
        if self.link is not None:
            words.append(f"link={self.link.name.lower()}")
        if self.min_nvlinks is not None:
            words.append(f"min-nvlinks={self.min_nvlinks}")
        if self.pattern is not Pattern.PAIRWISE:
            words.append(f"shape={self.pattern.value}")
        if self.min_bandwidth is not None:
            words.append(f"min-bandwidth={self.min_bandwidth:g}")
        if self.min_gpu_memory is not None:
            words.append(f"min-gpu-memory={memory_text(self.min_gpu_memory)}")
        if self.models:
            words.append(f"gpu-model={self.models_text}")
        if self.same_numa:
            words.append("same-numa")
        if self.nic is not None:
            words.append(f"nic={self.nic.name.lower()}")
        if self.same_gpu:
            words.append("same-gpu")
        if self.spread_gpus:
            words.append("spread-gpus")
        if self.gpu_memory is not None:
            words.append(f"gpu-memory={memory_text(self.gpu_memory)}")
        if self.exclusive_gpus:
            words.append("sharing=exclusive")
        return " ".join(words)

    @property
    def models_text(self) -> str:
        """The models as a reason names them."""
        return first_few(self.models)


MODELS_SHOWN = 3
MODEL_SHOWN = 64
"""Characters of each."""
NO_CONSTRAINTS = Constraints()


Counts = tuple[tuple[Role, int], ...]
"""Devices asked by each container, in the kubelet's order: init containers and sidecars first."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """How many devices one container asks for."""

    name: str
    count: int
    role: Role = Role.APP


@hashed_once
@dataclass(frozen=True)
class GpuRequest:
    """What a pod asks: devices of one extended resource, and what must hold for the set.

    ``only_gpu_plugin`` says that it asks for no other device plugin's resources, ``exclusive`` what
    the kubelet's static managers would give to it. ``siblings`` is how many pods that ask the same
    may come to a node before it though nobody can know that yet: those of its gang. ``others`` are
    those of its gang that ask for something else, with how many ask for it.

    Two pods that ask the same are equal whatever their containers are called, so a request is the
    key under which verdicts are remembered.
    """

    resource: str
    containers: tuple[ContainerRequest, ...] = field(compare=False)
    constraints: Constraints = NO_CONSTRAINTS
    policy: Policy = Policy.REQUIRED
    only_gpu_plugin: bool = True
    counts: Counts = ()
    exclusive: Exclusive = Exclusive.NOTHING
    siblings: int = 0
    others: tuple[tuple[GpuRequest, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple((c.role, c.count) for c in self.containers))

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes; memories share it."""
        more = 300 * len(self.exclusive.demands)
        beside = sum(each.shared_bytes for each, _ in self.others)
        return 1000 + 300 * len(self.counts) + 100 * len(self.constraints.models) + more + beside

    @cached_property
    def count(self) -> int:
        """Devices the running pod holds and its constraints speak about: apps and sidecars."""
        return sum(n for role, n in self.counts if role is not Role.INIT)

    @cached_property
    def effective_count(self) -> int:
        """Devices the kubelet must find, by Kubernetes' arithmetic.

        See :func:`device_count`.
        """
        return device_count(self.counts)

    @cached_property
    def plain(self) -> bool:
        """Whether the pod asks for devices and nothing else."""
        return self.constraints == NO_CONSTRAINTS

    @cached_property
    def required(self) -> bool:
        """Whether a node must keep the constraints to pass filter."""
        return not self.plain and self.policy is Policy.REQUIRED

    @property
    def alone(self) -> GpuRequest:
        """The same for a pod that nobody may come before."""
        return replace(self, siblings=0, others=()) if self.in_company else self

    @property
    def in_company(self) -> bool:
        """Whether others may come before the pod."""
        return self.company > 0

    @property
    def company(self) -> int:
        """How many others may come before the pod."""
        return self.siblings + sum(count for _, count in self.others)

    @property
    def unit(self) -> str:
        """What it asks for some of, as far as the resource's name tells.

        >>> gpu_request(2, resource="nvidia.com/mig-1g.10gb").unit
        'MIG instance'
        >>> gpu_request(2, resource="nvidia.com/gpu.shared").unit
        'GPU share'
        """
        found = "MIG instance" if "/mig-" in self.resource else "GPU"
        return f"{found} share" if self.resource.endswith(".shared") else found

    @property
    def text(self) -> str:
        """One line for people: ``2 GPUs link=nvlink (preferred)``."""
        _, _, profile = self.resource.partition("/mig-")
        plural = "s" if self.count != 1 else ""
        words = [f"{self.count} {self.unit}{plural}"]
        if profile:
            words.append(profile.removesuffix(".shared"))
        if not self.plain:
            words.append(self.constraints.text)
            if self.policy is Policy.PREFERRED:
                words.append("(preferred)")
        return " ".join(words)


def gpu_request(
    count: int,
    constraints: Constraints = NO_CONSTRAINTS,
    policy: Policy = Policy.REQUIRED,
    resource: str = "nvidia.com/gpu",
) -> GpuRequest:
    """The request of a pod with one container.

    >>> gpu_request(2, Constraints(link=LinkKind.NVLINK)).text
    '2 GPUs link=nvlink'
    """
    return GpuRequest(resource, (ContainerRequest("main", count),), constraints, policy)


def first_few(models: Sequence[str]) -> str:
    """Models as a reason names them: the first few, for every node's reason repeats them.

    >>> first_few(("a100*", "a30", "h100*", "h200*", "v100*"))
    'a100*,a30,h100* and 2 more'
    """
    shown = ",".join(model[:MODEL_SHOWN] for model in models[:MODELS_SHOWN])
    more = len(models) - MODELS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def memory_text(amount: int) -> str:
    """Bytes as a Kubernetes quantity, exact, in the largest binary unit that divides it."""
    for unit, size in (("Ti", MIB * MIB), ("Gi", 1024 * MIB), ("Mi", MIB), ("Ki", 1024)):
        if amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def device_count(counts: Counts) -> int:
    """Devices that a pod with these containers holds in the end, unused ones included.

    An init container runs beside the sidecars started before it, and its devices are reused by
    what comes after: the larger of that peak and what apps and sidecars hold together.
    """
    peak = sidecars = apps = 0
    for role, n in counts:
        if role is Role.SIDECAR:
            sidecars += n
        elif role is Role.INIT:
            peak = max(peak, sidecars + n)
        else:
            apps += n
    return max(peak, sidecars + apps)
