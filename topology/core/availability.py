"""What is known of a node's devices at one moment: who holds some, who will, and what is free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from topology.core.admission import Kubelet
from topology.core.devices import Mask
from topology.core.pools import Pool, total
from topology.core.remembering import remembered
from topology.core.requests import NO_CONSTRAINTS, Constraints, Counts, Exclusive, device_count
from topology.core.room import Room, at_any_moment


class Holder(NamedTuple):
    """A pod that holds devices: those the report shows, and how many more it does not."""

    shown: Pool
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Unreported:
    """A pod that is bound here and not yet wholly reported.

    ``counts`` are the containers it still needs devices for. ``promised`` is what it was promised,
    if anything, and ``survives_endings`` whether the promise was to hold even if running pods end.
    ``only_gpu_plugin`` and ``exclusive`` are the request's. A pod in the middle of its admission
    has ``started`` and has already ``shown`` something. To others an ``opaque`` one may take any
    devices: its init containers may have theirs already, from what was free then, and no report
    shows them. One that is ``ending`` may be admitted and release its devices again before the next
    pod is admitted. A ``departed`` one ended before any report showed it: it is gone now, but may
    have been there when another pod was admitted that is still unreported.
    """

    counts: Counts
    promised: Constraints = NO_CONSTRAINTS
    survives_endings: bool = False
    only_gpu_plugin: bool = True
    exclusive: Exclusive = Exclusive.NOTHING
    started: bool = False
    shown: Pool = 0
    opaque: bool = False
    ending: bool = False
    departed: bool = False

    def outcome_key(self) -> Unreported:
        """The pod without its promise."""
        if self.promised == NO_CONSTRAINTS:
            return self
        return replace(self, promised=NO_CONSTRAINTS, survives_endings=False)

    @property
    def held(self) -> int:
        """Devices that it will take from the free ones."""
        return device_count(self.counts)


def unreported_order(pods: Iterable[Unreported]) -> tuple[Unreported, ...]:
    """Unreported pods in one fixed order, so that equal availabilities are equal keys."""
    return tuple(sorted(pods, key=_order))


@remembered
def _order(pod: Unreported) -> tuple[object, ...]:
    counts = tuple((role.value, n) for role, n in pod.counts)
    words = (
        repr(pod.promised),
        pod.survives_endings,
        pod.only_gpu_plugin,
        repr(pod.exclusive),
        pod.opaque,
        pod.ending,
        pod.departed,
    )
    return (not pod.started, counts, pod.shown, words)


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known of a node's devices at one moment: a value, so equal ones are equal keys.

    ``free`` is what nobody is seen to hold. ``releasing`` are pods that are ending, ``running``
    those that are not, ``unreported`` the unreported ones, each in a fixed order. GPUs that are
    ``sick`` stay free for the kubelet but break every promise. ``gone`` counts devices that nobody
    is seen to hold and the kubelet hands out no more: what pods hide may be among them.
    ``withheld`` are devices that the kubelet does not hand out now (of a GPU it takes for sick): it
    may do so again any moment, and whoever holds one may have ended by then. Pools have ``width``
    bits per GPU.
    """

    free: Pool
    releasing: tuple[Holder, ...] = ()
    running: tuple[Holder, ...] = ()
    unreported: tuple[Unreported, ...] = ()
    sick: Mask = 0
    width: int = 1
    gone: int = 0
    withheld: Pool = 0
    room: Room | None = None

    @property
    def hidden(self) -> int:
        """Devices that seem free and are not."""
        return sum(holder.hidden for holder in (*self.running, *self.releasing))

    @property
    def devices_left(self) -> int:
        """Devices that are surely left once every unreported pod is admitted; may be negative."""
        free = total(self.free, self.width)
        return free - self.hidden - sum(pod.held for pod in self.unreported if not pod.departed)

    def outcome_key(
        self, *, endings: bool, exclusive: Exclusive = Exclusive.NOTHING
    ) -> Availability:
        """Only what belief and outcomes depend on: many availabilities have this in common.

        Promises and health are for judging; of running pods counts only what they hide, unless
        they may end. Then withheld devices may come back, too. Room matters to pods that have
        exclusive CPUs or memory, such as one that asks for ``exclusive``.
        """
        running = self.running if endings else tuple(Holder(0, h.hidden) for h in self.running)
        return Availability(
            self.free,
            self.releasing,
            tuple(sorted(h for h in running if h != Holder(0))),
            unreported_order(pod.outcome_key() for pod in self.unreported),
            width=self.width,
            gone=self.gone if self.hidden else 0,
            withheld=self.withheld if endings else 0,
            room=self.room if self.room_matters(exclusive) else None,
        )

    def room_matters(self, exclusive: Exclusive) -> bool:
        """Whether a pod that asks for this, or one that is unreported, needs room."""
        return exclusive != Exclusive.NOTHING or any(
            pod.exclusive != Exclusive.NOTHING for pod in self.unreported
        )

    def without_needless_room(self, exclusive: Exclusive) -> Availability:
        """The same for a pod that asks for ``exclusive``: without room where none matters."""
        if self.room is None or self.room_matters(exclusive):
            return self
        return replace(self, room=None)

    def room_for(
        self, kubelet: Kubelet, *, endings: bool, but: Unreported | None = None
    ) -> Room | None:
        """The room that a pod finds: all unreported pods may come before it, ``but`` not this one.

        With ``endings`` pods may come and end, with GPUs or without.
        """
        numa = kubelet.facts.numa
        if self.room is None or numa is None:
            return None
        found, left = self.room, but
        for pod in self.unreported:
            if left is not None and pod == left:
                left = None
                continue
            found = found.beside(pod.exclusive)
        return at_any_moment(numa, found) if endings else found

    def widest(self, *, endings: bool = False) -> Pool:
        """What is free at most: no pod is admitted first, and every ending pod has released.

        With ``endings`` every running pod has ended too, and withheld devices are back.
        """
        back = self.withheld if endings else 0
        ended = (*self.releasing, *(self.running if endings else ()))
        started = sum(pod.shown for pod in self.unreported)
        return self.free + back + sum(holder.shown for holder in ended) + started
