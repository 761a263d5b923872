"""The interface of an allocator: a call of a device plugin, and every possible answer to it.

:class:`Allocator` is the interface. A new plugin is one file here with a subclass, and its name in
the registry (:mod:`topology.core.allocators`). Verdicts, refusals, capacity and scores follow from
it. Nothing outside this package knows a particular allocator (``test_protocol.py`` has an example).
A record may name the policy once the CRD's enumeration lists it.

An allocator never answers with one set. It answers with every set that the plugin may choose, or
with a superset that is marked as one. A superset is sound, a subset is a bug.
"""

from __future__ import annotations

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
    """A ``GetPreferredAllocation`` call for ``size`` available devices, with the required ones."""

    shape: Shape
    available: DeviceSet  # the devices that the plugin may choose from, `required` included
    size: int
    required: DeviceSet = 0
    width: int = 1  # bits per GPU in both device sets
    version: tuple[int, ...] | None = None  # the plugin's version; None if it is unknown


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All sets of devices that may be handed out, and all refusals that may come."""

    # Ascending. None: too many to list, any set that the call allows may come.
    sets: tuple[DeviceSet, ...] | None
    exact: bool = True  # false if some set in the list may be impossible
    hazards: tuple[str, ...] = ()  # refusals that may come although devices are free


@dataclass(frozen=True, slots=True)
class Answers:
    """The outcomes of many sets of available GPUs (pools), all with the same number of GPUs."""

    pools: Ints
    sets: Ints  # a row for each pool: every subset of the size that was asked for
    chosen: Flags  # which of these sets may come
    exact: bool  # false if some chosen set may be impossible
    hazard: str  # the refusal that may come for the pools in `refused`
    refused: Flags

    @property
    def hazards(self) -> tuple[str, ...]:
        """The refusals that may come for any of the pools."""
        return (self.hazard,) * bool(self.refused.any())

    def by_pool(self) -> Iterator[tuple[Mask, Outcomes]]:
        """Yield each pool with its outcomes."""
        rows = np.where(self.chosen, self.sets, _LAST)
        rows.sort(axis=1)  # the sets that may come are now in front
        counts = self.chosen.sum(axis=1).tolist()
        hazards = ((), (self.hazard,))
        for pool, row, count, refused in zip(
            self.pools.tolist(), rows.tolist(), counts, self.refused.tolist(), strict=True
        ):
            yield pool, Outcomes(tuple(row[:count]), self.exact, hazards[refused])


class Allocator:
    """The model of one device plugin: its possible answers, and properties of all its answers.

    A subclass has a ``name`` and :meth:`outcomes`. That suffices for a plugin that never refuses
    (for example, first fit in a fixed order). All other members have sound defaults. Override those
    that apply:

    * The plugin may refuse although devices are free. Then :attr:`hazards` has the name and the
      text of each refusal. Outcomes have the names of the refusals that their call may cause.
    * The plugin's choice depends on more of the node than its shape (the order in which devices are
      published, a GPU that does not answer). Then :meth:`on_node` returns the allocator of that
      node. It is a frozen dataclass, because it is part of the key under which answers are cached.
    * Refusals can be bounded better than "any refusal at any time". Then override :meth:`refusals`
      and :meth:`never_refuses`.
    * The model is slow. Then :attr:`answers_up_to` and :meth:`answers` evaluate many pools (sets of
      available devices) at once.

    Allocators are compared and hashed. A class that is no dataclass is compared by identity, so it
    has one instance.
    """

    name: str  # the policy's name in a node's record
    # Whether a larger pool never loses an outcome. Then it is enough to evaluate the largest
    # possible pool, and a pod that comes first can only narrow what a later pod gets.
    monotone = False
    # Every refusal that may come, with the sentence that users read, the most important first.
    hazards: Mapping[str, str] = MappingProxyType({})
    # Whether the plugin refuses every pod until the node is repaired. Users read that first.
    broken = False
    # Whether the choice is already made at the time of the evaluation: the next free devices of an
    # order, whatever they are. Pods that end later do not change it.
    choice_known = False
    # Whether ResourceClaims (DRA) are served. Claims say which pod has which devices, and have the
    # devices until they are deallocated. If false, the kubelet's PodResources say which pod has
    # which devices.
    serves_claims = False
    # Whether kube-scheduler allocates a pod's devices before it binds the pod. If false, the
    # kubelet allocates them when it admits the pod.
    allocates_before_bind = False
    # Whether each share comes from a GPU with the most shares left. If false, any may be the next.
    spreads = False
    answers_up_to = 0  # `answers` evaluates many pools at once on nodes of up to so many whole GPUs
    shared_bytes = 500  # the approximate size in bytes; caches share it

    def in_turn(self, available: Mask) -> list[Mask]:
        """Return the devices one by one, in the order in which they come.

        Only an allocator that is :attr:`choice_known` has it.
        """
        raise NotImplementedError

    @property
    def usual(self) -> Allocator:
        """An allocator of the same kind that makes the same choice if there is only one.

        It differs from ``self`` only if the choice is :attr:`choice_known`.
        """
        return self

    def outcomes(self, call: Call) -> Outcomes:
        """Return every set that may come. The caller ensures that enough devices are available.

        Without a model of the choice, that is every set.
        """
        hazards = self.refusals(call.shape, call.available, call.size)
        return every_choice(call, exact=True, hazards=hazards)

    def answers(self, shape: Shape, pools: Ints, size: int) -> Iterator[Answers]:
        """Yield the outcomes for many pools of whole GPUs, without required GPUs.

        Each part has the pools with one number of GPUs. Pools with fewer than ``size`` GPUs are
        left out.
        """
        raise NotImplementedError(self.name)

    def refusals(self, shape: Shape, available: DeviceSet, size: int) -> tuple[str, ...]:
        """Return the refusals that may come of choosing ``size`` of any part of these devices."""
        return tuple(self.hazards)

    def never_refuses(self, shape: Shape, size: int, counts: frozenset[int] | None) -> bool:
        """Check whether the plugin surely finds ``size`` devices, whichever devices are available.

        No device is required. ``counts`` are the possible numbers of available devices, also those
        that do not suffice. None means any number.
        """
        return size == 1 and not self.hazards

    def on_node(
        self, topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """Return the allocator of one resource of a node.

        The ``missing`` GPUs of the node do not answer.
        """
        return self

    def refuses_several(self, topology: NodeTopology, resource: GpuResource) -> bool | None:
        """Check whether the plugin refuses a container more than one device; None if unknown."""
        return False

    def under(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """Return the allocator under a kubelet with this configuration.

        ``whole`` is true for whole GPUs. If the NUMA nodes by which the kubelet aligns are unknown,
        it may ask the plugin about any part of the devices. So any of them may come.
        """
        return Anything(self.hazards) if config.aligned_anyhow else self

    def words(self, hazards: Iterable[str]) -> str:
        """Return the text that users read if these refusals may come.

        It is empty if none of them is the plugin's.
        """
        met = set(hazards)
        return next((words for hazard, words in self.hazards.items() if hazard in met), "")


@dataclass(frozen=True, eq=False)
class Anything(Allocator):
    """A plugin that may hand out any devices, and may refuse in these ways at any time."""

    hazards: Mapping[str, str] = field(default_factory=dict)
    name = "any"
    monotone = True


ANYTHING = Anything()


@memoized
def of_every_pool(allocator: Allocator, shape: Shape, size: int) -> tuple[Outcomes | None, ...]:
    """Return the outcomes of every pool of a node with few GPUs, indexed by the pool's mask.

    The entry of a pool smaller than ``size`` is None. Evaluating all pools at once costs little
    more than evaluating one.
    """
    outcomes: list[Outcomes | None] = [None] * (1 << shape.size)
    for part in allocator.answers(shape, np.arange(1 << shape.size, dtype=np.int32), size):
        for pool, of_pool in part.by_pool():
            outcomes[pool] = of_pool
    return tuple(outcomes)


@memoized
def every_choice(call: Call, *, exact: bool, hazards: tuple[str, ...] = ()) -> Outcomes:
    """Return all sets that a call allows: its required devices, and any others up to the size."""
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
    """Return the required devices with every choice of so many (``missing``) others, ascending."""
    if width == 1:
        sets = subset_masks(rest, missing) | np.uint64(required)
        return tuple(np.sort(sets).tolist())
    return tuple(sorted(required + more for more in choices(rest, missing, width)))
