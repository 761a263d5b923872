"""A node's devices at one time: the free ones, their holders, and the pods that will hold some."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from topology.core.admission import DeviceManager
from topology.core.devices import Bytes, Mask
from topology.core.devicesets import DeviceSet, total
from topology.core.memo import hashed_once, memoized
from topology.core.numaresources import FreeNumaResources, at_any_moment
from topology.core.requests import (
    NO_CONSTRAINTS,
    Constraints,
    Counts,
    Exclusive,
    GpuRequest,
    device_count,
)

# The memory of a pod with a guarantee of exclusive use of its shared GPUs: more than any GPU has.
ALL_MEMORY = Bytes(1 << 62)


class Holder(NamedTuple):
    """A pod that holds devices."""

    shown: DeviceSet  # devices that the report shows
    hidden: int = 0  # how many more devices it has
    memory: int = 0  # bytes that it declares to use on each of its GPUs; 0 if it declares none
    # Devices of the pod that do not become free when the pod ends. Empty without `memory`.
    kept: DeviceSet = 0

    def outcome_key(self) -> Holder:
        """Return the holder without its memory, because no outcome depends on that."""
        return Holder(self.shown, self.hidden) if self.memory else self


NO_HOLDER = Holder(0)  # a pod that holds nothing, which keys leave out


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """A pod that is assumed or bound here, and that no report shows completely yet."""

    counts: Counts  # the containers that still need devices
    promised: Constraints = NO_CONSTRAINTS  # the constraints that it was guaranteed
    survives_endings: bool = False  # whether the guarantee has to hold even if running pods end
    only_gpu_plugin: bool = True  # as in the request
    exclusive: Exclusive = Exclusive.NOTHING  # as in the request
    started: bool = False  # whether it is in the middle of its admission
    shown: DeviceSet = 0  # the devices that it has already, if its admission has started
    # Whether it may take any devices. Its init containers may already have some of those that were
    # free before, and no report shows which.
    opaque: bool = False
    # Whether it may be admitted and release its devices before the next pod is admitted.
    terminating: bool = False
    # Whether it ended before any report showed it. It holds nothing now. But it may have held
    # devices when another pod was admitted that is still unacknowledged.
    terminated: bool = False
    memory: int = 0  # bytes that it declares to use on each GPU that it gets; 0 if it declares none

    def outcome_key(self) -> Unacknowledged:
        """Return the pod without its guarantee and its memory."""
        if self.promised == NO_CONSTRAINTS and not self.memory:
            return self
        return replace(self, promised=NO_CONSTRAINTS, survives_endings=False, memory=0)

    @property
    def held(self) -> int:
        """The number of devices that it will take from the free ones."""
        return device_count(self.counts)


def coming(request: GpuRequest, replicas: int) -> Unacknowledged:
    """Return a pod with this request that is still to be admitted and has no guarantee.

    Each GPU has ``replicas`` devices. The pod is opaque if it has init containers. The devices that
    they leave unused stay held, and no report will show which ones these are.
    """
    return Unacknowledged(
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
        opaque=request.has_init,
        memory=memory_of(request, replicas),
    )


def memory_of(request: GpuRequest, replicas: int) -> int:
    """Return the bytes that a pod declares to use on each of its GPUs.

    This is 0 if the pod declares none, or if its GPUs are not shared (``replicas`` is 1).
    """
    return (request.constraints.gpu_memory or 0) if replicas > 1 else 0


def unacknowledged_order(pods: Iterable[Unacknowledged]) -> tuple[Unacknowledged, ...]:
    """Return unacknowledged pods in a fixed order, so that equal availabilities are equal keys."""
    listed = tuple(pods)
    return listed if len(listed) < 2 else tuple(sorted(listed, key=_order))


@memoized
def _order(pod: Unacknowledged) -> tuple[object, ...]:
    counts = tuple((role.value, n) for role, n in pod.counts)
    words = (
        repr(pod.promised),
        pod.survives_endings,
        pod.only_gpu_plugin,
        repr(pod.exclusive),
        pod.opaque,
        pod.terminating,
        pod.terminated,
        pod.memory,
    )
    return (not pod.started, counts, pod.shown, words)


@hashed_once
@dataclass(frozen=True)
class Availability:
    """A node's devices at one time, and the pods that hold or will hold them.

    It is an immutable value, so equal availabilities are equal keys. Its pods are in a fixed order.
    """

    free: DeviceSet  # devices that no pod is seen to hold
    releasing: tuple[Holder, ...] = ()  # pods that are terminating
    running: tuple[Holder, ...] = ()  # pods that are not terminating
    unacknowledged: tuple[Unacknowledged, ...] = ()
    sick: Mask = 0  # GPUs that the kubelet still counts as free, but that break every guarantee
    width: int = 1  # bits per GPU in the device sets
    # How many devices no pod is seen to hold and the kubelet hands out no longer. Devices that pods
    # hold without showing them may be among these.
    gone: int = 0
    # Devices that the kubelet does not hand out now, because it counts their GPU as sick. It may
    # hand them out again at any time, and the pod that holds one may have ended by then.
    withheld: DeviceSet = 0
    numa_free: FreeNumaResources | None = None
    # Positions on GPUs of which pods hold devices of another resource. This happens with MIG
    # instances of several profiles. Only scores depend on it.
    beside: Mask = 0
    # The victims of a reservation. They release their devices in any order, but all of them before
    # the pod of the request is admitted. Other pods may be admitted at any time. Unacknowledged
    # victims are not here: they are `terminated` in `unacknowledged`.
    victims: tuple[Holder, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """The approximate bytes of this value and its keys, which nodes and memos share."""
        holders = len(self.releasing) + len(self.running) + len(self.victims)
        pods = holders + 4 * len(self.unacknowledged)
        return 1000 + 300 * pods + (500 if self.numa_free is not None else 0)

    @cached_property
    def hidden(self) -> int:
        """The number of devices that seem free and are held."""
        return sum(each.hidden for each in (*self.running, *self.releasing, *self.victims))

    @property
    def settled(self) -> bool:
        """Whether no pod comes or goes, and the devices that seem free are free."""
        return not (self.unacknowledged or self.releasing or self.victims or self.hidden)

    @cached_property
    def declares(self) -> bool:
        """Whether some pod declares how much memory it uses on a GPU."""
        holders = (*self.running, *self.releasing)
        return any(h.memory for h in holders) or any(pod.memory for pod in self.unacknowledged)

    @cached_property
    def devices_left(self) -> int:
        """The number of devices that are surely left after every unacknowledged pod is admitted.

        The victims have released their devices by then. The number may be negative.
        """
        free = total(self.after_victims.free, self.width)
        hidden = sum(holder.hidden for holder in (*self.running, *self.releasing))
        return free - hidden - sum(pod.held for pod in self.unacknowledged if not pod.terminated)

    @cached_property
    def after_victims(self) -> Availability:
        """The availability after every victim has released its devices."""
        started = sum(pod.shown for pod in self.unacknowledged if pod.terminated)
        if not self.victims and not started:
            return self
        free = self.free + started + sum(holder.shown for holder in self.victims)
        unacknowledged = tuple(
            pod for pod in self.unacknowledged if not (pod.terminated and pod.shown)
        )
        return replace(self, free=free, victims=(), unacknowledged=unacknowledged)

    @property
    def devices_terminating(self) -> int:
        """The number of devices of terminating pods, which come free by themselves."""
        shown = sum(total(holder.shown, self.width) + holder.hidden for holder in self.releasing)
        return shown + sum(
            pod.held for pod in self.unacknowledged if pod.terminating and not pod.terminated
        )

    def outcome_key(
        self, *, endings: bool, exclusive: Exclusive = Exclusive.NOTHING
    ) -> Availability:
        """Return only the parts on which possible states and outcomes depend.

        Many availabilities have this key in common. Guarantees and health are left out, because
        only the verdict depends on them. Of running pods only the hidden devices count, unless the
        pods may end (``endings``); then withheld devices may come back, too. The free NUMA
        resources matter only to pods with exclusive CPUs or memory, such as a pod that requests
        ``exclusive``.
        """
        other = self._key_with_endings if endings else self._key_without_endings
        return (other or self).without_needless_numa_free(exclusive)

    @cached_property
    def _key_with_endings(self) -> Availability | None:
        return self._key(self.running, self.withheld)

    @cached_property
    def _key_without_endings(self) -> Availability | None:
        return self._key(tuple(Holder(0, h.hidden) for h in self.running if h.hidden), 0)

    def _key(self, running: tuple[Holder, ...], withheld: DeviceSet) -> Availability | None:
        """Return the key with these running pods and the free NUMA resources.

        None means that the key equals this value.
        """
        releasing = self.releasing
        if self.declares:
            running = tuple(holder.outcome_key() for holder in running)
            releasing = tuple(sorted(holder.outcome_key() for holder in releasing))
        key = Availability(
            self.free,
            releasing,
            tuple(sorted(h for h in running if h != NO_HOLDER)),
            unacknowledged_order(pod.outcome_key() for pod in self.unacknowledged),
            width=self.width,
            gone=self.gone if self.hidden else 0,
            withheld=withheld,
            numa_free=self.numa_free,
            victims=tuple(sorted(holder.outcome_key() for holder in self.victims)),
        )
        return None if key == self else key

    def without_needless_numa_free(self, exclusive: Exclusive) -> Availability:
        """Return the availability for a pod that requests ``exclusive``.

        It has no free NUMA resources if neither this pod nor an unacknowledged one needs any.
        """
        if self.numa_free is None or exclusive or any(pod.exclusive for pod in self.unacknowledged):
            return self
        return replace(self, numa_free=None)

    def numa_free_for(
        self, kubelet: DeviceManager, *, endings: bool, but: Unacknowledged | None = None
    ) -> FreeNumaResources | None:
        """Return the NUMA resources that are free for a pod; None if they are not known.

        All unacknowledged pods except ``but`` may be admitted before it. With ``endings`` any pods,
        with GPUs or without, may also be admitted and end before it.
        """
        numa = kubelet.config.numa
        if self.numa_free is None or numa is None:
            return None
        numa_free, left = self.numa_free, but
        for pod in self.unacknowledged:
            if left is not None and pod == left:
                left = None
                continue
            numa_free = numa_free.beside(pod.exclusive)
        return at_any_moment(numa, numa_free) if endings else numa_free

    def widest(self, *, endings: bool = False) -> DeviceSet:
        """Return the largest set of devices that may be free.

        No other pod is admitted first, and all terminating pods and victims have released their
        devices. With ``endings`` every running pod has ended too, and withheld devices are back.
        """
        back = self.withheld if endings else 0
        ended = (*self.releasing, *self.victims, *(self.running if endings else ()))
        started = sum(pod.shown for pod in self.unacknowledged)
        return self.free + back + sum(holder.shown for holder in ended) + started
