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
ended before any report showed it) or departing one (a victim of a reservation) holds anything: only
then ours can be admitted.
"""

from __future__ import annotations

from typing import NamedTuple

from topology.core.admission import (
    Admission,
    Admissions,
    Kubelet,
    Others,
    admissions,
    opaque,
    others_on,
)
from topology.core.availability import Availability, Holder, Unreported
from topology.core.budget import belief_steps
from topology.core.memo import interruptible, memoized
from topology.core.pools import Pool, choices, choices_count, count, marked, members

MAX_STATES = 4096  # a belief of more states is given up: then nothing is promised


class FreeState(NamedTuple):
    """What may be free when a pod is admitted, and what may come free while it is."""

    free: Pool
    later: tuple[Pool, ...] = ()


class Belief(NamedTuple):
    """Every free state, ascending, or None where there are more than we follow; and the cost."""

    free_states: tuple[FreeState, ...] | None
    steps: int = 1


@memoized
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
        return _only_endings(now.once_departed.free, holders, one_container)
    future = _Future(kubelet, now, endings)
    first = future.beginnings(holders)
    if first is None or not future.follow(first):
        return Belief(None, future.spent)
    return Belief(tuple(future.at_rest(one_container)), future.spent)


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


def _only_endings(free: Pool, holders: tuple[Holder, ...], one_container: bool) -> Belief:
    """The belief where no pod is unreported: any of the holders may have released."""
    if 1 << len(holders) > MAX_STATES:
        return Belief(None)
    states = [FreeState(free)]
    for holder in holders:
        released = [FreeState(state.free + holder.shown, state.later) for state in states]
        if not one_container:
            states = [FreeState(state.free, (*state.later, holder.shown)) for state in states]
        states += released
    return Belief(tuple(sorted(set(states))), len(states) // 8)


class _State(NamedTuple):
    """One point of the node's near future: see the drawing at the top of this module."""

    free: Pool
    # Pools that may be released, one for each pod, ascending: of pods that may end. They were there
    # (what they hide included), or were admitted on the way.
    held: tuple[Pool, ...]
    # Likewise of departing pods, and of departed ones that were admitted on the way. These have to
    # be released before ours is admitted.
    departed: tuple[Pool, ...]
    # Numbers of the pods that are not yet admitted; equal pods share one.
    unreported: tuple[int, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Both groups; bit *n* of :attr:`Admission.released` stands for the pool in place *n*."""
        return self.held + self.departed

    def after_release(self, released: int) -> _State:
        """The state once the pools with these bits are released."""
        first = len(self.held)  # the place of the first departed pod's pool
        return _State(
            self.free + marked(self.pools, released),
            tuple(p for n, p in enumerate(self.held) if not released >> n & 1),
            tuple(p for n, p in enumerate(self.departed, first) if not released >> n & 1),
            self.unreported,
        )

    def after_endings(self) -> set[_State]:
        """The states after one of the pods that may end has ended."""
        free, held, departed, unreported = self
        return {
            _State(free + pool, held[:n] + held[n + 1 :], departed, unreported)
            for n, pool in enumerate(held)
        } | {
            _State(free + pool, held, departed[:n] + departed[n + 1 :], unreported)
            for n, pool in enumerate(departed)
        }


_Settled = tuple[Pool, tuple[Pool, ...]]
"""What is free and what is held in a state in which nobody is unreported or departed any more: most
states are such, and all that can follow there is that pods end."""


class _Newcomer:
    """One unreported pod, as the search follows it."""

    def __init__(self, kubelet: Kubelet, pod: Unreported, *, may_end: bool) -> None:
        self.pod = pod
        self.kubelet = opaque(kubelet) if pod.opaque else kubelet
        one = len(pod.counts) == 1 and not self.kubelet.aligns
        # Whether it matters what others release between two of its containers.
        self.asks_for_releases = not (one or pod.opaque)
        self.stays = not (pod.departed or self.asks_for_releases)
        self.may_end = may_end
        self.others: Others | None = None
        # How it may be admitted, by what is free and what may be released meanwhile.
        self.known: dict[tuple[Pool, tuple[Pool, ...]], Admissions] = {}


class _Future:
    """The steps that a node may take from one state to the next."""

    def __init__(self, kubelet: Kubelet, now: Availability, endings: bool) -> None:
        self._kubelet = kubelet
        self._now = now
        self._endings = endings
        first: dict[Unreported, int] = {}
        self._everybody = tuple(first.setdefault(pod, n) for n, pod in enumerate(now.unreported))
        self._pods = [
            _Newcomer(kubelet, pod, may_end=endings or pod.ending) for pod in now.unreported
        ]
        self._started = frozenset(n for n in self._everybody if now.unreported[n].started)
        self._seen: set[_State] = set()
        self._settled: set[_Settled] = set()
        self._most = belief_steps(kubelet.shape.size)
        self.spent = len(now.unreported) ** 2 // 16

    def beginnings(self, holders: tuple[Holder, ...]) -> set[_State] | None:
        """The states now: pods may hide any devices that seem free; None if there are too many.

        ``holders`` are the pods that may end.
        """
        now = self._now
        if choices_count(now.free, now.hidden, now.width, MAX_STATES) > MAX_STATES:
            return None
        known = (*holders, *now.departing)
        hidden_by_others = now.hidden - sum(holder.hidden for holder in known)
        states = {_State(now.free, (), (), self._everybody)}
        hiding: list[tuple[Pool | None, int]] = [(h.shown, h.hidden) for h in known]
        for n, (shown, hidden) in enumerate((*hiding, (None, hidden_by_others))):
            departs = len(holders) <= n < len(known)
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
                    s.held if shown is None or departs else _ascending(s.held, shown + more),
                    _ascending(s.departed, (shown or 0) + more) if departs else s.departed,
                    s.unreported,
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
            if not state.departed and self._started.isdisjoint(state.unreported)
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

        If nobody is unreported any more, departed pods can only go.
        """
        unseen = []
        for state in states:
            if not state.unreported:
                self._settle({(state.free + sum(state.departed), state.held)})
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
        unreported = state.unreported
        started = [n for n in unreported if n in self._started]
        for number in dict.fromkeys(started or unreported):
            newcomer = self._pods[number]
            at = unreported.index(number)
            rest = unreported[:at] + unreported[at + 1 :]
            if newcomer.pod.started:  # its admission may also fail
                free = state.free + newcomer.pod.shown
                reached.add(_State(free, state.held, state.departed, rest))
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
            others = newcomer.others or self._hear(newcomer)
            newcomer.known[asked] = admissions(
                newcomer.kubelet, state.free, newcomer.pod.counts, others, releasing=later
            )
        return newcomer.known[asked]

    def _hear(self, newcomer: _Newcomer) -> Others:
        """What the kubelet's other managers say to an unreported pod; counted once for each."""
        pod = newcomer.pod
        newcomer.others = others_on(
            self._kubelet,
            self._now.room_for(self._kubelet, endings=self._endings, but=pod),
            pod.counts,
            only_gpu_plugin=pod.only_gpu_plugin,
            exclusive=pod.exclusive,
        )
        self.spent += newcomer.others.steps
        return newcomer.others


def _after_the_last(
    state: _State, newcomer: _Newcomer, ways: tuple[Admission, ...]
) -> set[_Settled]:
    """As :func:`_after`, for the last pod, if nobody releases anything meanwhile. Then the departed
    pods go."""
    free, held, shown = state.free + sum(state.departed), state.held, newcomer.pod.shown
    if not newcomer.may_end:
        return {(free - way.taken, held) for way in ways}
    return {(free - way.taken, _ascending(held, way.taken + shown)) for way in ways}


def _after(state: _State, rest: tuple[int, ...], newcomer: _Newcomer, way: Admission) -> _State:
    """The state after a pod was admitted in one way; the ``rest`` is unreported still.

    1. What others released between two of its containers came free.
    2. What it took is free no more.
    3. If it may end before ours is admitted, that is a pool that may be released.
    """
    free, held, departed, _ = state.after_release(way.released) if way.released else state
    free -= way.taken
    if newcomer.pod.departed:
        departed = _ascending(departed, way.taken + newcomer.pod.shown)
    elif newcomer.may_end:
        held = _ascending(held, way.taken + newcomer.pod.shown)
    return _State(free, held, departed, rest)


def _ascending(pools: tuple[Pool, ...], more: Pool) -> tuple[Pool, ...]:
    """The pools with one more, ascending."""
    if not pools or pools[-1] <= more:
        return (*pools, more)
    return tuple(sorted((*pools, more)))
