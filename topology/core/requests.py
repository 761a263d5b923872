"""A pod's GPU request: counts by container, constraints over all its GPUs, and a policy."""

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
    """The kind of a container, on which it depends how long it holds its devices."""

    APP = "app"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always, which runs beside the apps
    # An ordinary init container. Later containers use its devices again, and no report shows them.
    INIT = "init"

    __hash__ = object.__hash__  # faster than Enum's, which hashes the name


Amounts = tuple[tuple[str, int], ...]  # bytes by type of memory, in the order of the types


class Demand(NamedTuple):
    """The devices, CPUs and memory that one container of a pod of the class Guaranteed requests."""

    role: Role
    devices: int
    # Exclusive CPUs, from a static CPU Manager; 0 if the container requests a fraction of a CPU.
    cpus: int = 0
    memory: Amounts = ()  # types such as `hugepages-1Gi`, `memory`


@hashed_once
@dataclass(frozen=True)
class Exclusive:
    """The CPUs and memory that static CPU and Memory Managers have to give to a pod.

    They give these only to pods of the class Guaranteed. The Memory Manager gives each of their
    containers memory of certain NUMA nodes. The CPU Manager gives whole CPUs to each container that
    requests a whole number of them.
    """

    cpus: bool = False
    memory: bool = False
    # All containers of the pod in the kubelet's order, including those without devices. Empty if it
    # is not known what the managers would give them.
    demands: tuple[Demand, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the pod gets anything exclusively."""
        return self.cpus or self.memory or bool(self.demands)

    NOTHING: ClassVar[Exclusive]  # the pod is not of the class Guaranteed
    MEMORY: ClassVar[Exclusive]  # an unknown amount of memory
    CPUS: ClassVar[Exclusive]  # an unknown number of CPUs, and an unknown amount of memory

    @property
    def most_cpus(self) -> int:
        """The most CPUs that the pod may hold in the end.

        Later containers may use the CPUs of ordinary init containers again, but not always. The CPU
        Manager takes a container's CPUs from all that are free, and CPUs that are not used again
        stay taken.
        """
        return sum(demand.cpus for demand in self.demands)

    @property
    def text(self) -> str:
        """The pod's exclusive resources in a few words for people; empty if there are none.

        >>> Exclusive(True, True, (Demand(Role.APP, 1, 8),)).text, Exclusive.MEMORY.text
        ('8 exclusive CPUs', 'exclusive memory')
        """
        if self.cpus:
            some = device_count(tuple((d.role, d.cpus) for d in self.demands))
            return f"{some} exclusive CPU{'s' if some != 1 else ''}" if some else "exclusive CPUs"
        return "exclusive memory" if self.memory else ""

    @property
    def most_memory(self) -> Amounts:
        """The most memory that all containers of the pod may hold together."""
        return added(*(demand.memory for demand in self.demands))


def added(*amounts: Amounts) -> Amounts:
    """Return the sum of several amounts, by type."""
    sums: defaultdict[str, int] = defaultdict(int)
    for kind, amount in chain.from_iterable(amounts):
        sums[kind] += amount
    return tuple(sorted(sums.items()))


Exclusive.NOTHING = Exclusive()
Exclusive.MEMORY = Exclusive(memory=True)
Exclusive.CPUS = Exclusive(cpus=True, memory=True)
MAX_DEMANDS = 64  # containers of a pod whose CPUs and memory are followed


class Policy(Enum):
    """The policy for a node that cannot keep the constraints: reject it, or only score it lower."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Pattern(Enum):
    """The pairs of the set that must meet ``link`` and ``min-nvlinks``."""

    PAIRWISE = "pairwise"
    RING = "ring"
    CONNECTED = "connected"


@hashed_once
@dataclass(frozen=True)
class Constraints:
    """All constraints of a pod. All of them must hold at once, over all its GPUs."""

    link: LinkKind | None = None  # the weakest kind allowed between two GPUs
    min_nvlinks: int | None = None
    pattern: Pattern = Pattern.PAIRWISE
    min_bandwidth: GBps | None = None
    min_gpu_memory: Bytes | None = None
    models: tuple[str, ...] = ()  # allowed products, as `links.is_product` matches them
    same_numa: bool = False
    nic: LinkKind | None = None  # the weakest kind allowed between a GPU and an RDMA NIC
    same_gpu: bool = False  # all MIG instances or shares are of one GPU
    spread_gpus: bool = False  # no two MIG instances or shares are of one GPU
    gpu_memory: Bytes | None = None  # memory that the pod will use on each GPU that it gets
    exclusive_gpus: bool = False  # the pod gets all shares of its GPUs

    def least_memory(self, replicas: int) -> Bytes:
        """Return the memory that a GPU needs if it is served as ``replicas`` replicas.

        Each replica's part of the memory has to be at least ``min_gpu_memory``. But if the pod has
        its GPUs alone or declares the memory that it uses, this is the minimum for the whole GPU.
        The GPU also needs at least ``gpu_memory``.
        """
        parts = 1 if self.exclusive_gpus or self.gpu_memory else replicas
        return Bytes(max((self.min_gpu_memory or 0) * parts, self.gpu_memory or 0))

    @property
    def over_links(self) -> bool:
        """Whether a constraint is about the link between two GPUs."""
        return (
            self.link is not None or self.min_nvlinks is not None or self.min_bandwidth is not None
        )

    @property
    def over_pairs(self) -> bool:
        """Whether a constraint is about pairs, so that two shares of one GPU cannot meet it."""
        return self.over_links or self.same_numa or self.spread_gpus

    @cached_property
    def text(self) -> str:
        """The constraints as a person writes them, in a fixed order.

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
            "gpu-model": first_few(self.models) or None,
            "same-numa": self.same_numa or None,
            "nic": None if self.nic is None else self.nic.name.lower(),
            "same-gpu": self.same_gpu or None,
            "spread-gpus": self.spread_gpus or None,
            "gpu-memory": None if uses is None else memory_text(uses),
            "sharing": "exclusive" if self.exclusive_gpus else None,
        }
        written = {key: value for key, value in every.items() if value is not None}
        return " ".join(key if v is True else f"{key}={v}" for key, v in written.items())


MODELS_SHOWN = 3
MODEL_SHOWN = 64  # characters of each
NO_CONSTRAINTS = Constraints()


# The devices that each container requests, in the kubelet's order: init containers and sidecars
# first.
Counts = tuple[tuple[Role, int], ...]


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The number of devices that one container requests."""

    name: str
    count: int
    role: Role = Role.APP


@hashed_once
@dataclass(frozen=True)
class GpuRequest:
    """A pod's request: devices of one extended resource, and constraints over all of them.

    Requests are equal even if their containers have different names. So a request is the key under
    which verdicts are cached.
    """

    resource: str
    containers: tuple[ContainerRequest, ...] = field(compare=False)
    constraints: Constraints = NO_CONSTRAINTS
    policy: Policy = Policy.REQUIRED
    only_gpu_plugin: bool = True  # whether it requests no other device plugin's resources
    # Whether it names a DeviceClass's implicit extended resource, which no device plugin serves.
    by_implicit_name: bool = False
    counts: Counts = ()
    exclusive: Exclusive = Exclusive.NOTHING  # what static managers would give to it
    peers: int = 0  # pods of its gang with the same request that may come to a node before it
    # Other requests of pods of its gang that may come before it, each with the number of pods.
    others: tuple[tuple[GpuRequest, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple((c.role, c.count) for c in self.containers))

    @property
    def shared_bytes(self) -> int:
        """The approximate bytes of the request, which memos share."""
        more = 300 * len(self.exclusive.demands)
        beside = sum(each.shared_bytes for each, _ in self.others)
        return 1000 + 300 * len(self.counts) + 100 * len(self.constraints.models) + more + beside

    @cached_property
    def count(self) -> int:
        """The devices of apps and sidecars, which the running pod holds.

        The constraints are about these devices.
        """
        return sum(n for role, n in self.counts if role is not Role.INIT)

    @cached_property
    def effective_count(self) -> int:
        """The devices that the kubelet must find, as Kubernetes counts (:func:`device_count`)."""
        return device_count(self.counts)

    @cached_property
    def has_init(self) -> bool:
        """Whether an ordinary init container is among the containers."""
        return any(role is Role.INIT for role, _ in self.counts)

    @cached_property
    def plain(self) -> bool:
        """Whether the pod requests devices without constraints."""
        return self.constraints == NO_CONSTRAINTS

    @cached_property
    def required(self) -> bool:
        """Whether a node must keep the constraints to pass filter."""
        return not self.plain and self.policy is Policy.REQUIRED

    @property
    def promised(self) -> Constraints:
        """What a bind promises the pod: its constraints, if a node must keep them."""
        return self.constraints if self.required else NO_CONSTRAINTS

    @property
    def without_peers(self) -> GpuRequest:
        """The same request, as if no other pod of its gang could come first."""
        return replace(self, peers=0, others=()) if self.pods_before else self

    @cached_property
    def pods_before(self) -> int:
        """The number of pods of its gang that may come before the pod."""
        return self.peers + sum(count for _, count in self.others)

    @property
    def unit(self) -> str:
        """The kind of device that it requests, as far as the resource's name says.

        >>> gpu_request(2, resource="nvidia.com/mig-1g.10gb").unit
        'MIG instance'
        >>> gpu_request(2, resource="nvidia.com/gpu.shared").unit
        'GPU share'
        """
        unit = "MIG instance" if "/mig-" in self.resource else "GPU"
        return f"{unit} share" if self.resource.endswith(".shared") else unit

    @property
    def text(self) -> str:
        """The request in one line for people, such as ``2 GPUs link=nvlink (preferred)``."""
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


# The text for the request of a pod that requests no number of devices.
OF_CLAIMS = "the GPUs of its claims"


def gpu_request(
    count: int,
    constraints: Constraints = NO_CONSTRAINTS,
    policy: Policy = Policy.REQUIRED,
    resource: str = "nvidia.com/gpu",
) -> GpuRequest:
    """Return the request of a pod with one container.

    >>> gpu_request(2, Constraints(link=LinkKind.NVLINK)).text
    '2 GPUs link=nvlink'
    """
    return GpuRequest(resource, (ContainerRequest("main", count),), constraints, policy)


def first_few(models: Sequence[str]) -> str:
    """Return the first few models for a reason, because the reason of every node repeats them.

    >>> first_few(("a100*", "a30", "h100*", "h200*", "v100*"))
    'a100*,a30,h100* and 2 more'
    """
    shown = ",".join(model[:MODEL_SHOWN] for model in models[:MODELS_SHOWN])
    more = len(models) - MODELS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


_BINARY = (("Ti", MIB * MIB), ("Gi", 1024 * MIB), ("Mi", MIB), ("Ki", 1024))
_DECIMAL = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 1000))


def memory_text(amount: int) -> str:
    """Return bytes as an exact Kubernetes quantity, in the unit that gives the shortest number.

    If two units give numbers of the same length, the binary unit is used.
    """
    units = ((amount // size, unit) for unit, size in (*_BINARY, *_DECIMAL) if amount % size == 0)
    number, unit = min(units, key=lambda each: len(str(each[0])), default=(amount, ""))
    return f"{number}{unit}"


def at_most(amount: int) -> str:
    """Return the largest whole number of Gi in ``amount`` bytes, or of Mi below 1 Gi.

    A pod may write this as ``min-gpu-memory`` for a GPU with this memory.

    >>> at_most(81559 << 20), at_most(512 << 20)
    ('79Gi', '512Mi')
    """
    return f"{amount >> 30}Gi" if amount >> 30 else f"{amount >> 20}Mi"


def device_count(counts: Counts) -> int:
    """Return the devices that a pod with these containers holds in the end, unused ones included.

    An init container runs beside the sidecars that started before it. Later containers use its
    devices again. So the result is the larger of two numbers: the peak of an init container with
    its earlier sidecars, and the devices of all apps and sidecars together.
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
