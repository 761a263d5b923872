"""What a pod asks of its GPUs: counts by container, constraints over the set, and a policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import ClassVar, NamedTuple

from topology.core.devices import MIB, Bytes
from topology.core.links import GBps, LinkKind
from topology.core.memo import hashed_once


class Role(Enum):
    """What a container's devices do for the pod's set."""

    APP = "app"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: it runs as long as the apps
    INIT = "init"  # an ordinary one: its devices are used again, and show in no report

    __hash__ = object.__hash__  # quicker than Enum's, which hashes the name


Amounts = tuple[tuple[str, int], ...]  # bytes by type of memory, in the order of the types


class Demand(NamedTuple):
    """What one container of a pod of the class Guaranteed asks: devices, CPUs and memory."""

    role: Role
    devices: int
    cpus: int = 0  # exclusive ones, from a static CPU Manager: 0 where it asks for a fraction
    memory: Amounts = ()  # types such as `hugepages-1Gi`, `memory`


@hashed_once
@dataclass(frozen=True)
class Exclusive:
    """What static CPU and Memory Managers have to give to a pod: it depends on the pod's class.

    They care about pods of the class Guaranteed alone. The Memory Manager gives each of their
    containers memory of certain NUMA nodes, the CPU Manager whole CPUs to those that ask for a
    whole number.
    """

    cpus: bool = False
    memory: bool = False
    # All containers of the pod in the kubelet's order, those without devices too. Empty where it is
    # not known what the managers would make of them.
    demands: tuple[Demand, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self.cpus or self.memory or bool(self.demands)

    NOTHING: ClassVar[Exclusive]  # the pod is not of the class Guaranteed
    MEMORY: ClassVar[Exclusive]  # memory, nobody knows how much
    CPUS: ClassVar[Exclusive]  # CPUs and memory, nobody knows how many

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
    def most_memory(self) -> Amounts:
        """Memory that all containers of the pod may hold together."""
        return added(*(demand.memory for demand in self.demands))


def added(*amounts: Amounts) -> Amounts:
    """The sum, type by type."""
    sums: defaultdict[str, int] = defaultdict(int)
    for kind, amount in chain.from_iterable(amounts):
        sums[kind] += amount
    return tuple(sorted(sums.items()))


Exclusive.NOTHING = Exclusive()
Exclusive.MEMORY = Exclusive(memory=True)
Exclusive.CPUS = Exclusive(cpus=True, memory=True)
MAX_DEMANDS = 64  # containers of a pod whose CPUs and memory are followed


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
    """All constraint keys of a pod; they hold together, over all its GPUs."""

    link: LinkKind | None = None  # the least kind that will do between two GPUs
    min_nvlinks: int | None = None
    pattern: Pattern = Pattern.PAIRWISE
    min_bandwidth: GBps | None = None
    min_gpu_memory: Bytes | None = None
    models: tuple[str, ...] = ()  # products, any of which will do, as `links.is_product` has it
    same_numa: bool = False
    nic: LinkKind | None = None  # the least kind that will do between a GPU and an RDMA NIC
    same_gpu: bool = False  # MIG instances or shares of one GPU
    spread_gpus: bool = False  # no two of one GPU
    gpu_memory: Bytes | None = None  # what the pod will use on each GPU that it gets
    exclusive_gpus: bool = False  # all shares of its GPUs

    def least_memory(self, replicas: int) -> Bytes:
        """The memory that a GPU needs if it is served as so many replicas.

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

    @cached_property
    def text(self) -> str:
        """The constraints as a person wrote them, in one fixed order.

        >>> Constraints(link=LinkKind.NVLINK, min_gpu_memory=Bytes(40 * 1024 * MIB)).text
        'link=nvlink min-gpu-memory=40Gi'
        """
        memory, uses, bandwidth = self.min_gpu_memory, self.gpu_memory, self.min_bandwidth
        every = {
            "link": None if self.link is None else self.link.name.lower(),
            "min-nvlinks": self.min_nvlinks,
            "shape": None if self.pattern is Pattern.PAIRWISE else self.pattern.value,
            "min-bandwidth": None if bandwidth is None else f"{bandwidth:g}",
            "min-gpu-memory": None if memory is None else memory_text(memory),
            "gpu-model": self.models_text or None,
            "same-numa": self.same_numa or None,
            "nic": None if self.nic is None else self.nic.name.lower(),
            "same-gpu": self.same_gpu or None,
            "spread-gpus": self.spread_gpus or None,
            "gpu-memory": None if uses is None else memory_text(uses),
            "sharing": "exclusive" if self.exclusive_gpus else None,
        }
        written = {key: value for key, value in every.items() if value is not None}
        return " ".join(key if v is True else f"{key}={v}" for key, v in written.items())

    @property
    def models_text(self) -> str:
        """The models as a reason names them."""
        return first_few(self.models)


MODELS_SHOWN = 3
MODEL_SHOWN = 64  # characters of each
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

    Two pods that ask the same are equal whatever their containers are called, so a request is the
    key under which verdicts are remembered.
    """

    resource: str
    containers: tuple[ContainerRequest, ...] = field(compare=False)
    constraints: Constraints = NO_CONSTRAINTS
    policy: Policy = Policy.REQUIRED
    only_gpu_plugin: bool = True  # it asks for no other device plugin's resources
    by_class: bool = False  # by the name of a DeviceClass, which no device plugin serves
    counts: Counts = ()
    exclusive: Exclusive = Exclusive.NOTHING  # what static managers would give to it
    peers: int = 0  # pods of its gang that ask the same and may come to a node before it
    others: tuple[tuple[GpuRequest, int], ...] = ()  # those that ask something else, with how many

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
        """Devices the kubelet must find, by Kubernetes' arithmetic (:func:`device_count`)."""
        return device_count(self.counts)

    @cached_property
    def has_init(self) -> bool:
        """Whether an ordinary init container is among them."""
        return any(role is Role.INIT for role, _ in self.counts)

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
        """The same request as if no other pod could come first."""
        return replace(self, peers=0, others=()) if self.in_company else self

    @cached_property
    def in_company(self) -> bool:
        """Whether pods of its gang may come before the pod."""
        return self.company > 0

    @property
    def company(self) -> int:
        """How many pods of its gang may come before the pod."""
        return self.peers + sum(count for _, count in self.others)

    @property
    def unit(self) -> str:
        """What it asks for, as far as the resource's name tells.

        >>> gpu_request(2, resource="nvidia.com/mig-1g.10gb").unit
        'MIG instance'
        >>> gpu_request(2, resource="nvidia.com/gpu.shared").unit
        'GPU share'
        """
        unit = "MIG instance" if "/mig-" in self.resource else "GPU"
        return f"{unit} share" if self.resource.endswith(".shared") else unit

    @property
    def text(self) -> str:
        """One line for people: ``2 GPUs link=nvlink (preferred)``."""
        _, _, profile = self.resource.partition("/mig-")
        plural = "s" if self.count != 1 else ""
        words = [f"{self.count} {self.unit}{plural}"]
        if not self.effective_count:
            words = [OF_CLAIMS]
        if profile:
            words.append(profile.removesuffix(".shared"))
        if not self.plain:
            words.append(self.constraints.text)
            if self.policy is Policy.PREFERRED:
                words.append("(preferred)")
        return " ".join(words)


OF_CLAIMS = "the GPUs of its claims"
"""What a pod asks for that asks for no number of devices."""


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
    """Models as a reason names them: the first few, because every node's reason repeats them.

    >>> first_few(("a100*", "a30", "h100*", "h200*", "v100*"))
    'a100*,a30,h100* and 2 more'
    """
    shown = ",".join(model[:MODEL_SHOWN] for model in models[:MODELS_SHOWN])
    more = len(models) - MODELS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


_BINARY = (("Ti", MIB * MIB), ("Gi", 1024 * MIB), ("Mi", MIB), ("Ki", 1024))
_DECIMAL = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 1000))


def memory_text(amount: int) -> str:
    """Bytes as a Kubernetes quantity, exact and in the smallest number; of two that are equal the
    binary unit."""
    units = ((amount // size, unit) for unit, size in (*_BINARY, *_DECIMAL) if amount % size == 0)
    number, unit = min(units, key=lambda each: len(str(each[0])), default=(amount, ""))
    return f"{number}{unit}"


def at_most(amount: int) -> str:
    """The largest whole Gi that is not more than so many bytes, or Mi below one: what a pod may
    write as ``min-gpu-memory`` of a GPU with this memory.

    >>> at_most(81559 << 20), at_most(512 << 20)
    ('79Gi', '512Mi')
    """
    return f"{amount >> 30}Gi" if amount >> 30 else f"{amount >> 20}Mi"


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
