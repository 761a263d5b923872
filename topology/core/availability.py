"""What is known of a node's devices at one moment: who holds some, who will, and what is free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from topology.core.admission import Kubelet
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

ALL_MEMORY = Bytes(1 << 62)
"""The memory of a pod that was promised its shared GPUs alone: all that a GPU has, and more."""


class Holder(NamedTuple):
    """A pod that holds devices."""

    shown: DeviceSet  # those that the report shows
    hidden: int = 0  # how many more it has
    memory: int = 0  # bytes that it uses on each of its GPUs, if it says so; else 0
    # devices of its that do not come free when it lets go, if `memory` says some
    kept: DeviceSet = 0

    def outcome_key(self) -> Holder:
        """The holder without its memory, on which no outcome depends."""
        return Holder(self.shown, self.hidden) if self.memory else self


NOBODY = Holder(0)  # a pod that holds nothing; it counts for nothing


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """A pod that is bound here and not yet wholly reported."""

    counts: Counts  # the containers that it still needs devices for
    promised: Constraints = NO_CONSTRAINTS  # what it was promised, if anything
    survives_endings: bool = False  # whether that was to hold even if running pods end
    only_gpu_plugin: bool = True  # as of the request
    exclusive: Exclusive = Exclusive.NOTHING  # likewise
    started: bool = False  # it is in the middle of its admission,
    shown: DeviceSet = 0  # and has these devices already
    # It may take any devices: its init containers may have theirs already, from what was free then,
    # and no report shows them.
    opaque: bool = False
    terminating: bool = False  # it may come and release its devices before the next pod is admitted
    # It ended before any report showed it: it is gone now, but may have been there when another pod
    # was admitted that is still unacknowledged.
    terminated: bool = False
    memory: int = 0  # bytes that it will use on each GPU that it gets, if it says so; else 0

    def outcome_key(self) -> Unacknowledged:
        """The pod without its promise and its memory."""
        if self.promised == NO_CONSTRAINTS and not self.memory:
            return self
        return replace(self, promised=NO_CONSTRAINTS, survives_endings=False, memory=0)

    @property
    def held(self) -> int:
        """Devices that it will take from the free ones."""
        return device_count(self.counts)


def coming(request: GpuRequest, replicas: int) -> Unacknowledged:
    """A pod with this request that is to be admitted and was promised nothing.

    A GPU has ``replicas`` devices. The pod is opaque if it has init containers: what they leave
    unused stays held, and no report will show which devices these are.
    """
    return Unacknowledged(
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
        opaque=request.has_init,
        memory=memory_of(request, replicas),
    )


def memory_of(request: GpuRequest, replicas: int) -> int:
    """The bytes that a pod says it uses on each of its GPUs; 0 if it says nothing, or shares them
    with nobody."""
    return (request.constraints.gpu_memory or 0) if replicas > 1 else 0


def unacknowledged_order(pods: Iterable[Unacknowledged]) -> tuple[Unacknowledged, ...]:
    """Unacknowledged pods in one fixed order, so that equal availabilities are equal keys."""
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
    """What is known of a node's devices at one moment: a value, so equal ones are equal keys.

    Pods are in a fixed order.
    """

    free: DeviceSet  # what nobody is seen to hold
    releasing: tuple[Holder, ...] = ()  # pods that are ending
    running: tuple[Holder, ...] = ()  # pods that are not
    unacknowledged: tuple[Unacknowledged, ...] = ()
    sick: Mask = 0  # GPUs that stay free for the kubelet, but break every promise
    width: int = 1  # bits per GPU in the pools
    # Devices that nobody is seen to hold and the kubelet hands out no more. What pods hide may be
    # among them.
    gone: int = 0
    # Devices that the kubelet does not hand out now (of a GPU that it takes for sick). It may do so
    # again any moment, and whoever holds one may have ended by then.
    withheld: DeviceSet = 0
    numa_free: FreeNumaResources | None = None
    # Positions whose GPU has devices of another resource that are held, as it may be with MIG
    # instances of several profiles: scores alone depend on it.
    beside: Mask = 0
    # The victims of a reservation. They let go in any order, all of them before the pod comes that
    # is asked about; other pods may come at any time. Those that are unacknowledged are
    # `terminated`.
    victims: tuple[Holder, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes with its keys; facts of nodes and memories share it."""
        holders = len(self.releasing) + len(self.running) + len(self.victims)
        pods = holders + 4 * len(self.unacknowledged)
        return 1000 + 300 * pods + (500 if self.numa_free is not None else 0)

    @cached_property
    def hidden(self) -> int:
        """Devices that seem free and are not."""
        holders = (*self.running, *self.releasing, *self.victims)
        return sum(holder.hidden for holder in holders)

    @cached_property
    def declares(self) -> bool:
        """Whether some pod says how much memory it uses on a GPU."""
        holders = (*self.running, *self.releasing)
        return any(h.memory for h in holders) or any(pod.memory for pod in self.unacknowledged)

    @cached_property
    def devices_left(self) -> int:
        """Devices that are surely left after every unacknowledged pod is admitted.

        Departing pods are gone by then. It may be negative.
        """
        free = total(self.after_victims.free, self.width)
        hidden = sum(holder.hidden for holder in (*self.running, *self.releasing))
        return free - hidden - sum(pod.held for pod in self.unacknowledged if not pod.terminated)

    @cached_property
    def after_victims(self) -> Availability:
        """The same after every victims pod is gone."""
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
        """Devices of pods that are ending, which come free by themselves."""
        shown = sum(total(holder.shown, self.width) + holder.hidden for holder in self.releasing)
        return shown + sum(
            pod.held for pod in self.unacknowledged if pod.terminating and not pod.terminated
        )

    def outcome_key(
        self, *, endings: bool, exclusive: Exclusive = Exclusive.NOTHING
    ) -> Availability:
        """Only what possible states and outcomes depend on: many availabilities have this in
        common.

        Promises and health are for judging; of running pods counts only what they hide, unless
        they may end. Then withheld devices may come back, too. Room matters to pods that have
        exclusive CPUs or memory, such as one that asks for ``exclusive``.
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
        """The key with these running pods, room included; None if it equals this value."""
        releasing = self.releasing
        if self.declares:
            running = tuple(holder.outcome_key() for holder in running)
            releasing = tuple(sorted(holder.outcome_key() for holder in releasing))
        key = Availability(
            self.free,
            releasing,
            tuple(sorted(h for h in running if h != NOBODY)),
            unacknowledged_order(pod.outcome_key() for pod in self.unacknowledged),
            width=self.width,
            gone=self.gone if self.hidden else 0,
            withheld=withheld,
            numa_free=self.numa_free,
            victims=tuple(sorted(holder.outcome_key() for holder in self.victims)),
        )
        return None if key == self else key

    def without_needless_numa_free(self, exclusive: Exclusive) -> Availability:
        """The same for a pod that asks for ``exclusive``: without room if nobody needs any."""
        if self.numa_free is None or exclusive or any(pod.exclusive for pod in self.unacknowledged):
            return self
        return replace(self, numa_free=None)

    def numa_free_for(
        self, kubelet: Kubelet, *, endings: bool, but: Unacknowledged | None = None
    ) -> FreeNumaResources | None:
        """The room that a pod meets. All unacknowledged pods may come before it, except ``but``.

        With ``endings`` pods may come and end, with GPUs or without.
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
        """What is free at most: no pod is admitted first, and every ending pod has released.

        With ``endings`` every running pod has ended too, and withheld devices are back.
        """
        back = self.withheld if endings else 0
        ended = (*self.releasing, *self.victims, *(self.running if endings else ()))
        started = sum(pod.shown for pod in self.unacknowledged)
        return self.free + back + sum(holder.shown for holder in ended) + started
