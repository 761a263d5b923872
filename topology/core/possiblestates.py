"""Possible free states: every pool that the kubelet may have free when it admits a pod.

What we see of a node is a second or two old. Pods that are bound but not yet reported may be
admitted before ours, in any order (the kubelet sorts by creation, so pods bound later too), or not
at all; pods that end may have released their devices or not, at any point in between; and what init
containers left unused is held though no report shows it. A verdict holds only if it holds in every
possible free state.

A pod that shows some of its containers' devices is in the middle of its admission. The kubelet
admits one pod at a time, so every other pod comes after it.

The search goes through every state that the node may reach from what we see::

    Availability ──beginnings──▶ {_State} ──any steps, in any order──▶ {_State}
                                                                          │ ones at rest
                                                                          ▼
                                                                    {FreeState}

A :class:`_State` says what is free, which pools may be released, and which pods are unacknowledged
still. There are three kinds of steps:

1. A pod *ends*: its pool is free, and may be released no more.
2. An unacknowledged pod is *admitted* in one of the ways of
   :func:`~topology.core.admission.admissions` (one that has started goes first): what it takes is
   free no more, and what others release between two of its containers is. If it may end before ours
   is admitted, what it holds may be released.
3. An admission that has started *fails*: what the pod had shown is free again.

A state is *at rest* where no pod is in the middle of its admission and no terminated pod (one that
ended before any report showed it) or victims one (a victim of a reservation) holds anything: only
then ours can be admitted.
"""

from __future__ import annotations

from typing import NamedTuple

from topology.core.admission import (
    Admission,
    Admissions,
    Kubelet,
    ProviderAnswers,
    admissions,
    opaque,
    provider_answers,
)
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.budget import state_search_steps
from topology.core.devicesets import DeviceSet, choices, choices_count, count, marked, members
from topology.core.memo import interruptible, memoized

MAX_STATES = 4096  # beyond this many the search is given up: then nothing is promised


class FreeState(NamedTuple):
    """What may be free when a pod is admitted, and what may come free while it is."""

    free: DeviceSet
    later: tuple[DeviceSet, ...] = ()


class PossibleStates(NamedTuple):
    """Every free state, ascending, or None where there are more than we follow; and the cost."""

    free_states: tuple[FreeState, ...] | None
    steps: int = 1


@memoized
def possible_states(
    kubelet: Kubelet, now: Availability, *, endings: bool = False, one_container: bool = True
) -> PossibleStates:
    """What may be free when a pod is admitted.

    With ``endings`` any running pod may have ended too, and withheld devices may be back, one by
    one. A monotone allocator needs only the widest pool: every outcome under a smaller one is an
    outcome under it. A pod with ``one_container`` does not ask what may come free while it is
    admitted.
    """
    if kubelet.monotone:
        return PossibleStates((FreeState(now.widest(endings=endings)),))
    holders = (*now.releasing, *(now.running if endings else ()), *_coming_back(now, endings))
    if not now.unacknowledged and not now.hidden:
        return _only_endings(now.after_victims.free, holders, one_container)
    future = _Future(kubelet, now, endings)
    first = future.beginnings(holders)
    if first is None or not future.follow(first):
        return PossibleStates(None, future.spent)
    return PossibleStates(tuple(future.at_rest(one_container)), future.spent)


def _coming_back(now: Availability, endings: bool) -> tuple[Holder, ...]:
    """Withheld devices, each as if held by a pod of its own that may end.

    Those of one shared GPU come back one by one, as the pods that hold them end.
    """
    if not endings:
        return ()
    pool, width = now.withheld, now.width
    return tuple(
        Holder(1 << p * width) for p in members(pool, width) for _ in range(count(pool, p, width))
    )


def _only_endings(
    free: DeviceSet, holders: tuple[Holder, ...], one_container: bool
) -> PossibleStates:
    """The belief where no pod is unacknowledged: any of the holders may have released."""
    if 1 << len(holders) > MAX_STATES:
        return PossibleStates(None)
    states = [FreeState(free)]
    for holder in holders:
        released = [FreeState(state.free + holder.shown, state.later) for state in states]
        if not one_container:
            states = [FreeState(state.free, (*state.later, holder.shown)) for state in states]
        states += released
    return PossibleStates(tuple(sorted(set(states))), len(states) // 8)


class _State(NamedTuple):
    """One point of the node's near future: see the drawing at the top of this module."""

    free: DeviceSet
    # Pools that may be released, one for each pod, ascending: of pods that may end. They were there
    # (what they hide included), or were admitted on the way.
    held: tuple[DeviceSet, ...]
    # Likewise of victims pods, and of terminated ones that were admitted on the way. These have to
    # be released before ours is admitted.
    terminated: tuple[DeviceSet, ...]
    # Numbers of the pods that are not yet admitted; equal pods share one.
    unacknowledged: tuple[int, ...]

    @property
    def pools(self) -> tuple[DeviceSet, ...]:
        """Both groups; bit *n* of :attr:`Admission.released` stands for the pool in place *n*."""
        return self.held + self.terminated

    def after_release(self, released: int) -> _State:
        """The state once the pools with these bits are released."""
        first = len(self.held)  # the place of the first terminated pod's pool
        return _State(
            self.free + marked(self.pools, released),
            tuple(p for n, p in enumerate(self.held) if not released >> n & 1),
            tuple(p for n, p in enumerate(self.terminated, first) if not released >> n & 1),
            self.unacknowledged,
        )

    def after_endings(self) -> set[_State]:
        """The states after one of the pods that may end has ended."""
        free, held, terminated, unacknowledged = self
        return {
            _State(free + pool, held[:n] + held[n + 1 :], terminated, unacknowledged)
            for n, pool in enumerate(held)
        } | {
            _State(free + pool, held, terminated[:n] + terminated[n + 1 :], unacknowledged)
            for n, pool in enumerate(terminated)
        }


_Settled = tuple[DeviceSet, tuple[DeviceSet, ...]]
"""What is free and what is held in a state in which nobody is unacknowledged or terminated any
more: most states are such, and all that can follow there is that pods end."""


class _Newcomer:
    """One unacknowledged pod, as the search follows it."""

    def __init__(self, kubelet: Kubelet, pod: Unacknowledged, *, may_end: bool) -> None:
        self.pod = pod
        self.kubelet = opaque(kubelet) if pod.opaque else kubelet
        one = len(pod.counts) == 1 and not self.kubelet.aligns
        # Whether it matters what others release between two of its containers.
        self.asks_for_releases = not (one or pod.opaque)
        self.stays = not (pod.terminated or self.asks_for_releases)
        self.may_end = may_end
        self.answers: ProviderAnswers | None = None
        # How it may be admitted, by what is free and what may be released meanwhile.
        self.known: dict[tuple[DeviceSet, tuple[DeviceSet, ...]], Admissions] = {}


class _Future:
    """The steps that a node may take from one state to the next."""

    def __init__(self, kubelet: Kubelet, now: Availability, endings: bool) -> None:
        self._kubelet = kubelet
        self._now = now
        self._endings = endings
        first: dict[Unacknowledged, int] = {}
        self._everybody = tuple(
            first.setdefault(pod, n) for n, pod in enumerate(now.unacknowledged)
        )
        self._pods = [
            _Newcomer(kubelet, pod, may_end=endings or pod.terminating)
            for pod in now.unacknowledged
        ]
        self._started = frozenset(n for n in self._everybody if now.unacknowledged[n].started)
        self._seen: set[_State] = set()
        self._settled: set[_Settled] = set()
        self._most = state_search_steps(kubelet.shape.size)
        self.spent = len(now.unacknowledged) ** 2 // 16

    def beginnings(self, holders: tuple[Holder, ...]) -> set[_State] | None:
        """The states now: pods may hide any devices that seem free; None if there are too many.

        ``holders`` are the pods that may end.
        """
        now = self._now
        if choices_count(now.free, now.hidden, now.width, MAX_STATES) > MAX_STATES:
            return None
        known = (*holders, *now.victims)
        hidden_by_others = now.hidden - sum(holder.hidden for holder in known)
        states = {_State(now.free, (), (), self._everybody)}
        hiding: list[tuple[DeviceSet | None, int]] = [(h.shown, h.hidden) for h in known]
        for n, (shown, hidden) in enumerate((*hiding, (None, hidden_by_others))):
            terminates = len(holders) <= n < len(known)
            sizes = range(max(0, hidden - now.gone), hidden + 1)
            ways = sum(
                choices_count(s.free, n, now.width, MAX_STATES) for s in states for n in sizes
            )
            self.spent += ways
            if ways > MAX_STATES or self.spent > self._most:
                return None
            states = {
                _State(
                    s.free - more,
                    s.held if shown is None or terminates else _ascending(s.held, shown + more),
                    _ascending(s.terminated, (shown or 0) + more) if terminates else s.terminated,
                    s.unacknowledged,
                )
                for s in states
                for n in sizes
                for more in choices(s.free, n, now.width)
            }
        return states or None  # more is hidden than there is: what we see contradicts itself

    def follow(self, states: set[_State]) -> bool:
        """Visit all states that may follow; False if there are too many."""
        frontier = self._new(states)
        while frontier:
            reached = self._steps(frontier.pop())
            if reached is None:
                return False
            frontier += self._new(reached)
            if self._too_much:
                return False
        return not self._too_much

    def at_rest(self, one_container: bool) -> list[FreeState]:
        """The states in which another pod can be admitted, ascending."""
        resting = [
            state
            for state in self._seen
            if not state.terminated and self._started.isdisjoint(state.unacknowledged)
        ]
        if one_container:
            masks = {state.free for state in resting}
            masks.update(free for free, _ in self._settled)
            return [FreeState(free) for free in sorted(masks)]
        pairs = {(state.free, state.held) for state in resting}
        return [FreeState(free, held) for free, held in sorted(pairs | self._settled)]

    @property
    def _too_much(self) -> bool:
        many = len(self._seen) + len(self._settled) > MAX_STATES
        return many or self.spent > self._most

    def _new(self, states: set[_State]) -> list[_State]:
        """The states that were not visited yet. Settled ones are visited here.

        If nobody is unacknowledged any more, terminated pods can only go.
        """
        unseen = []
        for state in states:
            if not state.unacknowledged:
                self._settle({(state.free + sum(state.terminated), state.held)})
            elif state not in self._seen:
                self._seen.add(state)
                unseen.append(state)
        return unseen

    def _settle(self, new: set[_Settled]) -> None:
        """Visit the states that follow where pods can only end, until there are too many."""
        settled = self._settled
        new -= settled
        settled |= new
        frontier = list(new)
        most = MAX_STATES - len(self._seen)
        while frontier and self.spent <= self._most and len(settled) <= most:
            interruptible()
            free, held = frontier.pop()
            ended = {(free + pool, held[:n] + held[n + 1 :]) for n, pool in enumerate(held)}
            self.spent += 4 + 2 * len(ended)
            ended -= settled
            settled |= ended
            frontier += ended

    def _steps(self, state: _State) -> set[_State] | None:
        """Every next state; None where there are too many."""
        interruptible()
        reached = state.after_endings()
        self.spent += 4 + 2 * len(reached)
        if self.spent > self._most:
            return None
        unacknowledged = state.unacknowledged
        started = [n for n in unacknowledged if n in self._started]
        for number in dict.fromkeys(started or unacknowledged):
            newcomer = self._pods[number]
            at = unacknowledged.index(number)
            rest = unacknowledged[:at] + unacknowledged[at + 1 :]
            if newcomer.pod.started:  # its admission may also fail
                free = state.free + newcomer.pod.shown
                reached.add(_State(free, state.held, state.terminated, rest))
            admitted = self._admissions(state, newcomer)
            if admitted.ways is None:
                return None
            self.spent += admitted.steps + 2 * len(admitted.ways)
            if self.spent > self._most:
                return None
            if not rest and newcomer.stays:
                settled = _after_the_last(state, newcomer, admitted.ways)
                if len(reached) + len(settled) > MAX_STATES:
                    return None
                self._settle(settled)
                continue
            after = {_after(state, rest, newcomer, way) for way in admitted.ways}
            if len(reached) + len(after) > MAX_STATES:
                return None
            reached |= after
        return reached

    def _admissions(self, state: _State, newcomer: _Newcomer) -> Admissions:
        """How a pod may be admitted in a state."""
        later = state.pools if newcomer.asks_for_releases else ()
        asked = (state.free, later)
        if asked not in newcomer.known:
            answers = newcomer.answers or self._ask_providers(newcomer)
            newcomer.known[asked] = admissions(
                newcomer.kubelet, state.free, newcomer.pod.counts, answers, releasing=later
            )
        return newcomer.known[asked]

    def _ask_providers(self, newcomer: _Newcomer) -> ProviderAnswers:
        """What the kubelet's other managers say to an unacknowledged pod; counted once for each."""
        pod = newcomer.pod
        newcomer.answers = provider_answers(
            self._kubelet,
            self._now.numa_free_for(self._kubelet, endings=self._endings, but=pod),
            pod.counts,
            only_gpu_plugin=pod.only_gpu_plugin,
            exclusive=pod.exclusive,
        )
        self.spent += newcomer.answers.steps
        return newcomer.answers


def _after_the_last(
    state: _State, newcomer: _Newcomer, ways: tuple[Admission, ...]
) -> set[_Settled]:
    """As :func:`_after`, for the last pod, if nobody releases anything meanwhile. Then the
    terminated pods go."""
    free, held, shown = state.free + sum(state.terminated), state.held, newcomer.pod.shown
    if not newcomer.may_end:
        return {(free - way.taken, held) for way in ways}
    return {(free - way.taken, _ascending(held, way.taken + shown)) for way in ways}


def _after(state: _State, rest: tuple[int, ...], newcomer: _Newcomer, way: Admission) -> _State:
    """The state after a pod was admitted in one way; the ``rest`` is unacknowledged still.

    1. What others released between two of its containers came free.
    2. What it took is free no more.
    3. If it may end before ours is admitted, that is a pool that may be released.
    """
    free, held, terminated, _ = state.after_release(way.released) if way.released else state
    free -= way.taken
    if newcomer.pod.terminated:
        terminated = _ascending(terminated, way.taken + newcomer.pod.shown)
    elif newcomer.may_end:
        held = _ascending(held, way.taken + newcomer.pod.shown)
    return _State(free, held, terminated, rest)


def _ascending(pools: tuple[DeviceSet, ...], more: DeviceSet) -> tuple[DeviceSet, ...]:
    """The pools with one more, ascending."""
    if not pools or pools[-1] <= more:
        return (*pools, more)
    return tuple(sorted((*pools, more)))
