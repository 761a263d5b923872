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

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from topology.core.admission import (
    UNKNOWN_FACTS,
    Admission,
    Kubelet,
    Others,
    admissions,
    others_on,
)
from topology.core.availability import Availability, Holder, Unreported
from topology.core.budget import BELIEF_STEPS
from topology.core.pools import Pool, choices, choices_count, count, marked, members
from topology.core.remembering import remembered

MAX_STATES = 4096
"""A belief of more states is given up: then nothing is promised."""


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
        self._heard: dict[Unreported, Others] = {}

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
        """What the kubelet's other managers say to an unreported pod; counted once for each."""
        heard = self._heard.get(pod)
        if heard is None:
            heard = self._heard[pod] = self._hear(pod)
            self.spent += heard.steps
        return heard

    def _hear(self, pod: Unreported) -> Others:
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
