"""What an allocator is: the question put to a device plugin, and everything it may answer.

:class:`Allocator` is the protocol. A new plugin is one file here with a subclass, and its name in
the registry (:mod:`topology.core.allocators`). Verdicts, refusals, capacity and scores follow:
nothing outside this package knows a particular allocator (``test_protocol.py`` has an example). A
record may name the policy once the CRD's enumeration lists it.

An allocator never answers with one set but with every set that the plugin may choose, or with a
superset of them that says so: a superset is sound, a subset is a bug.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from topology.core.budget import most_sets
from topology.core.devices import GpuResource, Mask
from topology.core.devicesets import DeviceSet, choices, choices_count, total
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.memo import memoized
from topology.core.patterns import Flags, subset_masks
from topology.core.report import MissingGpu
from topology.core.shape import Shape

Ints = NDArray[np.int32]  # masks of nodes with few GPUs, many at once


_LAST = np.int32(2**31 - 1)  # above every mask


@dataclass(frozen=True, slots=True)
class Call:
    """One ``GetPreferredAllocation``: ``size`` available devices, the required ones included."""

    shape: Shape
    available: DeviceSet  # what the plugin may choose from, `required` included
    size: int
    required: DeviceSet = 0
    width: int = 1  # bits per GPU in both pools
    version: tuple[int, ...] | None = None  # the plugin's; None where it is unknown


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Everything that may be handed out."""

    # ascending; None: too many to list, any that the call allows
    sets: tuple[DeviceSet, ...] | None
    exact: bool = True  # false where some set in the list may be impossible
    hazards: tuple[str, ...] = ()  # refusals that may come although devices are free


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that may come of many pools of whole GPUs, all with as many GPUs."""

    pools: Ints
    sets: Ints  # a row for each pool: every set of the size asked for
    chosen: Flags  # which of the sets may come
    exact: bool  # false where some chosen set may be impossible
    hazard: str  # the refusal that may come of the pools in `refused`
    refused: Flags

    @property
    def hazards(self) -> tuple[str, ...]:
        """The refusals that may come of any of the pools."""
        return (self.hazard,) * bool(self.refused.any())

    def by_pool(self) -> Iterator[tuple[Mask, Outcomes]]:
        """Each pool with its outcomes."""
        rows = np.where(self.chosen, self.sets, _LAST)
        rows.sort(axis=1)  # what may come first
        counts = self.chosen.sum(axis=1).tolist()
        hazards = ((), (self.hazard,))
        for pool, row, count, refused in zip(
            self.pools.tolist(), rows.tolist(), counts, self.refused.tolist(), strict=True
        ):
            yield pool, Outcomes(tuple(row[:count]), self.exact, hazards[refused])


class Allocator(ABC):
    """One device plugin's way to choose: how it answers, and what is known of all its answers.

    A subclass has a ``name`` and :meth:`outcomes`. That suffices for a plugin that refuses nobody
    (first fit in a fixed order, say). The rest has defaults that are sound; override what applies:

    * it may refuse, though devices are free: :attr:`hazards` names each refusal and says it in
      words. Outcomes carry the names of those that may come of their call.
    * what it does depends on the node beyond its shape (the order in which devices are published,
      a GPU that does not answer): :meth:`on_node` returns the allocator of that node, a frozen
      dataclass, because it is part of the key under which answers are remembered.
    * refusals can be bounded better than "any, any time": :meth:`refusals`,
      :meth:`never_refuses`.
    * it is slow: :attr:`answers_up_to` and :meth:`answers`, for many pools at once.

    Allocators are compared and hashed; a plain class is by identity, so it has one instance.
    """

    name: str  # the policy's name in a node's record
    # Whether a larger pool never loses an outcome. Then the largest possible pool speaks for
    # all, and a pod that comes first can only narrow what a later one gets.
    monotone = False
    # Every refusal that may come of it, with the sentence that people read, weightiest first.
    hazards: Mapping[str, str] = MappingProxyType({})
    # Whether it refuses whoever asks until somebody mends the node: people are told that first.
    broken = False
    # Whether it has chosen when we are asked: the next free devices of an order, whatever they are.
    # Pods that end later come too late to change that.
    settled = False
    # Whether it serves ResourceClaims (DRA): these say who has which devices, and have them until
    # they are deallocated. Else the kubelet's PodResources say it.
    serves_claims = False
    # Whether kube-scheduler allocates a pod's devices before it binds the pod. Else the kubelet
    # allocates them when it admits the pod.
    allocates_before_bind = False
    # Whether each share comes from a GPU with the most shares left. Else any may be the next.
    spreads = False
    answers_up_to = 0  # on nodes of up to so many whole GPUs `answers` tells of many pools at once
    shared_bytes = 500  # about what it takes; memories share it

    def in_turn(self, available: Mask) -> list[Mask]:
        """The devices one by one, as they come; only of an allocator that is :attr:`settled`."""
        raise NotImplementedError

    @property
    def usual(self) -> Allocator:
        """Where the choice is settled: one of its kind that chooses alike if there is no choice."""
        return self

    @abstractmethod
    def outcomes(self, call: Call) -> Outcomes:
        """Every set that may come. The caller sees to it that enough devices are available."""

    def answers(self, shape: Shape, pools: Ints, size: int) -> Iterator[Answers]:
        """The same for many pools of whole GPUs, without required ones.

        In parts, each of pools with as many GPUs; pools of fewer than ``size`` are left out.
        """
        raise NotImplementedError(self.name)

    def refusals(self, shape: Shape, available: DeviceSet, size: int) -> tuple[str, ...]:
        """The refusals that may come of asking for ``size`` of any part of these devices."""
        return tuple(self.hazards)

    def never_refuses(self, shape: Shape, size: int, counts: frozenset[int] | None) -> bool:
        """Whether it surely finds ``size`` devices, none in particular, whichever are available.

        ``counts`` are how many may be available, those that suffice and others; None: any number.
        """
        return size == 1 and not self.hazards

    def on_node(
        self, topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """The allocator of one resource of a node while the ``missing`` GPUs do not answer."""
        return self

    def refuses_several(self, topology: NodeTopology, resource: GpuResource) -> bool | None:
        """Whether it refuses a container more than one device; None where that is not known."""
        return False

    def told(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """The allocator once it is known how the kubelet asks it; ``whole``: about whole GPUs.

        Where nobody knows which NUMA nodes the kubelet aligns by, it may be asked about any part of
        the devices, so any of them may come.
        """
        return Anything(self.hazards) if config.aligned_anyhow else self

    def words(self, hazards: Iterable[str]) -> str:
        """What people are told where these refusals may come; empty where none is the plugin's."""
        met = set(hazards)
        return next((words for hazard, words in self.hazards.items() if hazard in met), "")


@dataclass(frozen=True, eq=False)
class Anything(Allocator):
    """A plugin that may hand out any devices, and may refuse in these ways at any time."""

    hazards: Mapping[str, str] = field(default_factory=dict)
    name = "any"
    monotone = True

    def outcomes(self, call: Call) -> Outcomes:
        """Every choice."""
        return every_choice(call, exact=True, hazards=tuple(self.hazards))


ANYTHING = Anything()


@memoized
def of_every_pool(allocator: Allocator, shape: Shape, size: int) -> tuple[Outcomes | None, ...]:
    """By mask: the outcomes of every pool of a node of few GPUs; None for one below ``size``.

    All pools at once cost little more than one.
    """
    outcomes: list[Outcomes | None] = [None] * (1 << shape.size)
    for part in allocator.answers(shape, np.arange(1 << shape.size, dtype=np.int32), size):
        for pool, of_pool in part.by_pool():
            outcomes[pool] = of_pool
    return tuple(outcomes)


@memoized
def every_choice(call: Call, *, exact: bool, hazards: tuple[str, ...] = ()) -> Outcomes:
    """Everything that a call allows: its required devices, and any others to make up the size."""
    rest = call.available - call.required
    missing = call.size - total(call.required, call.width)
    most = most_sets(call.shape.size, call.width)
    if choices_count(rest, missing, call.width, most) > most:
        return Outcomes(None, exact=exact, hazards=hazards)
    return Outcomes(
        every_set(call.required, rest, missing, call.width), exact=exact, hazards=hazards
    )


def every_set(
    required: DeviceSet, rest: DeviceSet, missing: int, width: int
) -> tuple[DeviceSet, ...]:
    """The required devices with every choice of so many others, ascending."""
    if width == 1:
        sets = subset_masks(rest, missing) | np.uint64(required)
        return tuple(np.sort(sets).tolist())
    return tuple(sorted(required + more for more in choices(rest, missing, width)))
