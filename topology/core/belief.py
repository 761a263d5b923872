"""Belief: every pool the kubelet may have free when it admits a pod.

What we see of a node is a second or two old. Pods that are bound but not yet reported may be
admitted before ours, in any order (the kubelet sorts by creation, so pods bound later too), or not
at all; pods that end may have released their devices or not, at any point in between; and what init
containers left unused is held though no report shows it. A verdict holds only if it holds in every
free state of the belief.

A pod that shows some of its containers' devices is in the middle of its admission. The kubelet
admits one pod at a time, so every other pod comes after it.

The search goes through every state that the node may reach from what we see::

    Availability ──beginnings──▶ {_State} ──any steps, in any order──▶ {_State}
                                                                          │ ones at rest
                                                                          ▼
                                                                    {FreeState}

A :class:`_State` says what is free, which pools may be released, and which pods are unreported
still. There are three kinds of steps:

1. A pod *ends*: its pool is free, and may be released no more.
2. An unreported pod is *admitted* in one of the ways of :func:`~topology.core.admission.admissions`
   (one that has started goes first): what it takes is free no more, and what others release between
   two of its containers is. If it may end before ours is admitted, what it holds may be released.
3. An admission that has started *fails*: what the pod had shown is free again.

A state is *at rest* where no pod is in the middle of its admission and no departed pod (one that
ended before any report showed it) holds anything: only then ours can be admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from topology.core.admission import (
    UNKNOWN_FACTS,
    Admission,
    Kubelet,
    Others,
    admissions,
    others_on,
)
from topology.core.budget import BELIEF_STEPS
from topology.core.devices import Mask
from topology.core.pools import Pool, choices, choices_count, count, marked, members, total
from topology.core.remembering import remembered
from topology.core.requests import NO_CONSTRAINTS, Constraints, Counts, Exclusive, device_count
from topology.core.room import Room, at_any_moment

MAX_STATES = 4096
"""A belief of more states is given up: then nothing is promised."""


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


class FreeState(NamedTuple):
    """What may be free when a pod is admitted, and what may come free while it is."""

    free: Pool
    later: tuple[Pool, ...] = ()


class Belief(NamedTuple):
    """Every free state, ascending, or None where there are more than we follow; and the cost."""

    free_states: tuple[FreeState, ...] | None
    steps: int = 1


def free_states(
    kubelet: Kubelet, now: Availability, *, endings: bool = False, one_container: bool = True
) -> tuple[FreeState, ...] | None:
    """Every free state of :func:`belief`."""
    return belief(kubelet, now, endings=endings, one_container=one_container).free_states


@remembered
def belief(
    kubelet: Kubelet, now: Availability, *, endings: bool = False, one_container: bool = True
) -> Belief:
    """What may be free when a pod is admitted.

    With ``endings`` any running pod may have ended too, and withheld devices may be back, one by
    one. A monotone allocator needs only the widest pool: every outcome under a smaller one is an
    outcome under it. A pod with ``one_container`` does not ask what may come free while it is
    admitted.
    """
    if kubelet.monotone:
        return Belief((FreeState(now.widest(endings=endings)),))
    holders = (*now.releasing, *(now.running if endings else ()), *_coming_back(now, endings))
    if not now.unreported and not now.hidden:
        return _only_endings(now.free, holders, one_container)
    future = _Future(kubelet, now, endings)
    seen = future.beginnings(holders)
    if seen is None:
        return Belief(None, future.spent)
    frontier = list(seen)
    while frontier:
        reached = future.steps(frontier.pop())
        if reached is None or len(seen) + len(reached - seen) > MAX_STATES:
            return Belief(None, future.spent)
        frontier += reached - seen
        seen |= reached
    at_rest = (state for state in seen if future.at_rest(state))
    found = {FreeState(s.free, () if one_container else s.releasable.held) for s in at_rest}
    return Belief(tuple(sorted(found)), future.spent)


def _coming_back(now: Availability, endings: bool) -> tuple[Holder, ...]:
    """Withheld devices as if each were held by a pod of its own that may end.

    Those of one shared GPU come back one by one, as the pods that hold them end.
    """
    if not endings:
        return ()
    pool, width = now.withheld, now.width
    return tuple(
        Holder(1 << p * width) for p in members(pool, width) for _ in range(count(pool, p, width))
    )


def _only_endings(free: Pool, holders: tuple[Holder, ...], one_container: bool) -> Belief:
    """The belief where no pod is unreported: any of the holders may have released."""
    if 1 << len(holders) > MAX_STATES:
        return Belief(None)
    found = [FreeState(free)]
    for holder in holders:
        released = [FreeState(state.free + holder.shown, state.later) for state in found]
        if not one_container:
            found = [FreeState(state.free, (*state.later, holder.shown)) for state in found]
        found += released
    return Belief(tuple(sorted(set(found))), len(found) // 8)


class _Releasable(NamedTuple):
    """The pools that may be released, one for each pod, in two groups that ascend.

    ``held`` are those of pods that may end: pods that were there, with what they hide, and pods
    that were admitted on the way. ``departed`` are those of departed pods that were admitted on the
    way: they have to be released before ours is admitted.
    """

    held: tuple[Pool, ...] = ()
    departed: tuple[Pool, ...] = ()

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Both groups; bit *n* of :attr:`Admission.released` stands for the pool in place *n*."""
        return self.held + self.departed

    def without(self, released: int) -> _Releasable:
        """What is left of both groups once the pools with these bits are released."""
        first = len(self.held)  # the place of the first departed pod's pool
        return _Releasable(
            tuple(p for n, p in enumerate(self.held) if not released >> n & 1),
            tuple(p for n, p in enumerate(self.departed, first) if not released >> n & 1),
        )

    def each(self) -> Iterator[tuple[Pool, _Releasable]]:
        """Each pool, and what is left once it alone is released."""
        held, departed = self
        for n, pool in enumerate(held):
            yield pool, _Releasable(held[:n] + held[n + 1 :], departed)
        for n, pool in enumerate(departed):
            yield pool, _Releasable(held, departed[:n] + departed[n + 1 :])

    def with_held(self, pool: Pool) -> _Releasable:
        """One more pod that may end."""
        return _Releasable(_ascending(self.held, pool), self.departed)

    def with_departed(self, pool: Pool) -> _Releasable:
        """One more pod that has to end."""
        return _Releasable(self.held, _ascending(self.departed, pool))


class _State(NamedTuple):
    """One point of the node's near future: see the drawing at the top of this module.

    ``unreported`` numbers the pods that are not yet admitted; equal pods have one number.
    """

    free: Pool
    releasable: _Releasable
    unreported: tuple[int, ...]


class _Future:
    """The steps that a node may take from one state to the next."""

    def __init__(self, kubelet: Kubelet, now: Availability, endings: bool) -> None:
        self._kubelet = kubelet
        self._now = now
        self._endings = endings
        self._pods = now.unreported
        self.spent = len(now.unreported) ** 2 // 16

    def beginnings(self, holders: tuple[Holder, ...]) -> set[_State] | None:
        """The states now: what pods hide may be any devices that seem free; None if too many.

        ``holders`` are the pods that may end.
        """
        now = self._now
        if choices_count(now.free, now.hidden, now.width, MAX_STATES) > MAX_STATES:
            return None
        first: dict[Unreported, int] = {}
        everybody = tuple(first.setdefault(pod, n) for n, pod in enumerate(self._pods))
        hidden_by_others = now.hidden - sum(holder.hidden for holder in holders)
        found = {_State(now.free, _Releasable(), everybody)}
        for shown, hidden in (*holders, (None, hidden_by_others)):
            sizes = range(max(0, hidden - now.gone), hidden + 1)
            ways = sum(
                choices_count(s.free, n, now.width, MAX_STATES) for s in found for n in sizes
            )
            self.spent += ways
            if ways > MAX_STATES or self.spent > BELIEF_STEPS:
                return None
            found = {
                _State(
                    s.free - more,
                    s.releasable if shown is None else s.releasable.with_held(shown + more),
                    s.unreported,
                )
                for s in found
                for n in sizes
                for more in choices(s.free, n, now.width)
            }
        return found or None  # more is hidden than there is: what we see contradicts itself

    def at_rest(self, state: _State) -> bool:
        """Whether another pod can be admitted in this state."""
        started = any(self._pods[number].started for number in state.unreported)
        return not state.releasable.departed and not started

    def steps(self, state: _State) -> set[_State] | None:
        """Every next state; None where there are too many."""
        found = self._after_endings(state)
        self.spent += 4 + 2 * len(found)
        if self.spent > BELIEF_STEPS:
            return None
        started = [n for n in state.unreported if self._pods[n].started]
        for number in dict.fromkeys(started or state.unreported):
            pod = self._pods[number]
            at = state.unreported.index(number)
            rest = state._replace(unreported=state.unreported[:at] + state.unreported[at + 1 :])
            if pod.started:  # its admission may also fail
                found.add(rest._replace(free=state.free + pod.shown))
            admitted = self._after_admissions(rest, pod)
            if admitted is None or len(found) + len(admitted) > MAX_STATES:
                return None
            if self.spent > BELIEF_STEPS:
                return None
            found |= admitted
        return found

    def _after_endings(self, state: _State) -> set[_State]:
        """The states after one of the pods that may end has ended."""
        return {
            _State(state.free + pool, left, state.unreported)
            for pool, left in state.releasable.each()
        }

    def _after_admissions(self, state: _State, pod: Unreported) -> set[_State] | None:
        """The states after a pod was admitted that is unreported no more; None if too many."""
        kubelet = opaque(self._kubelet) if pod.opaque else self._kubelet
        one = len(pod.counts) == 1 and not kubelet.aligns
        later = () if one or pod.opaque else state.releasable.pools
        found = admissions(
            kubelet,
            state.free,
            pod.counts,
            self._others(pod),
            releasing=later,
        )
        self.spent += found.steps
        if found.sets is None or self.spent + 2 * len(found.sets) > BELIEF_STEPS:
            return None
        ways = found.ways or ()
        self.spent += 2 * len(ways)
        return {self._after(state, pod, way) for way in ways}

    def _others(self, pod: Unreported) -> Others:
        """What the kubelet's other managers say to an unreported pod."""
        room = self._now.room_for(self._kubelet, endings=self._endings, but=pod)
        return others_on(
            self._kubelet,
            room,
            pod.counts,
            only_gpu_plugin=pod.only_gpu_plugin,
            exclusive=pod.exclusive,
        )

    def _after(self, state: _State, pod: Unreported, way: Admission) -> _State:
        """The state after a pod was admitted in one way.

        1. What others released between two of its containers came free.
        2. What it took is free no more.
        3. If it may end before ours is admitted, that is a pool that may be released.
        """
        free, left = state.free, state.releasable
        if way.released:
            free += marked(left.pools, way.released)
            left = left.without(way.released)
        free -= way.taken
        if pod.departed:
            left = left.with_departed(way.taken)
        elif self._endings or pod.ending:
            left = left.with_held(way.taken + pod.shown)
        return _State(free, left, state.unreported)


def _ascending(pools: tuple[Pool, ...], more: Pool) -> tuple[Pool, ...]:
    """The pools with one more, ascending."""
    return tuple(sorted((*pools, more)))


@remembered
def opaque(kubelet: Kubelet) -> Kubelet:
    """The same node with nothing known of how it chooses."""
    return replace(kubelet, facts=UNKNOWN_FACTS)
