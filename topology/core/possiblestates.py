"""Possible free states: every set of devices that may be free when the kubelet admits a pod.

Our view of a node is a second or two old. So three things are not known:

* which unacknowledged pods the kubelet admits before ours, and in which order. It sorts pods by
  creation, so it may admit even pods that are bound later before ours.
* which terminating pods have released their devices, and when.
* which devices are held by pods whose init containers left them unused. No report shows these.

A verdict holds only if it holds in every possible free state.

A pod that shows the devices of only some of its containers is in the middle of its admission. The
kubelet admits one pod at a time, so it admits every other pod after this one.

The search visits every state that the node may reach from the state that we see::

    Availability ──beginnings──▶ {_State} ──any steps, in any order──▶ {_State}
                                                                          │ ones at rest
                                                                          ▼
                                                                    {FreeState}

A :class:`_State` has the free devices, the device sets that pods may release, and the pods that are
still unacknowledged. There are three kinds of steps:

1. A pod *ends*. Its devices are free, and can no longer be released.
2. An unacknowledged pod is *admitted* in one of the ways of
   :func:`~topology.core.admission.admissions`. A pod whose admission has started goes first. The
   devices that it takes are no longer free. The devices that others release between two of its
   containers are free. If it may end before ours is admitted, its devices may be released later.
3. An admission that has started *fails*. The devices that the pod had shown are free again.

A state is *at rest* if no pod is in the middle of its admission, and if no victim of a reservation
and no terminated pod (one that ended before any report showed it) holds any devices. Our pod can be
admitted only in such a state.
"""

from __future__ import annotations

from typing import NamedTuple

from topology.core.admission import (
    Admission,
    Admissions,
    DeviceManager,
    ProviderAnswers,
    admissions,
    opaque,
    provider_answers,
)
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.budget import SMALL, STATE_SEARCH_STEPS, STATE_SEARCH_STEPS_OF_LARGER
from topology.core.devicesets import DeviceSet, choices, choices_count, count, marked, members
from topology.core.memo import interruptible, memoized

MAX_STATES = 4096  # the search stops beyond this many, and nothing is guaranteed then


class FreeState(NamedTuple):
    """The devices that may be free when a pod is admitted, and those that may come free meanwhile.

    ``later`` has a device set for each pod that may end during the admission.
    """

    free: DeviceSet
    later: tuple[DeviceSet, ...] = ()


class PossibleStates(NamedTuple):
    """Every possible free state, ascending, and the steps of the search.

    ``free_states`` is None if there are more than the search may follow.
    """

    free_states: tuple[FreeState, ...] | None
    steps: int = 1


@memoized
def possible_states(
    kubelet: DeviceManager,
    availability: Availability,
    *,
    endings: bool = False,
    one_container: bool = True,
) -> PossibleStates:
    """Return every free state in which a pod may be admitted.

    With ``endings`` any running pod may have ended too, and withheld devices may be back, one by
    one. A monotone allocator needs only the widest device set, because every outcome from a smaller
    set is an outcome from it. With ``one_container`` the states have no ``later``, because no
    devices can come free between two containers of the pod.
    """
    if kubelet.monotone:
        return PossibleStates((FreeState(availability.widest(endings=endings)),))
    holders = (
        *availability.releasing,
        *(availability.running if endings else ()),
        *_coming_back(availability, endings),
    )
    if not availability.unacknowledged and not availability.hidden:
        return _only_endings(availability.after_victims.free, holders, one_container)
    future = _Future(kubelet, availability, endings)
    first = future.beginnings(holders)
    if first is None or not future.follow(first):
        return PossibleStates(None, future.spent)
    return PossibleStates(tuple(future.at_rest(one_container)), future.spent)


def _coming_back(availability: Availability, endings: bool) -> tuple[Holder, ...]:
    """Return the withheld devices, each as if a pod of its own held it and might end.

    The devices of one shared GPU come back one by one, as the pods that hold them end. Without
    ``endings`` there are none.
    """
    if not endings:
        return ()
    pool, width = availability.withheld, availability.width
    return tuple(
        Holder(1 << p * width) for p in members(pool, width) for _ in range(count(pool, p, width))
    )


def _only_endings(
    free: DeviceSet, holders: tuple[Holder, ...], one_container: bool
) -> PossibleStates:
    """Return the possible free states if no pod is unacknowledged: any holder may have ended."""
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
    """A state that the node may reach (see the drawing in the docstring of this module)."""

    free: DeviceSet
    # The devices of each pod that may end, ascending. The pod held them from the beginning, hidden
    # ones included, or was admitted during the search.
    held: tuple[DeviceSet, ...]
    # The devices of each victim, and of each terminated pod that was admitted during the search,
    # ascending. They have to be released before ours is admitted.
    terminated: tuple[DeviceSet, ...]
    # Numbers of the pods that are not yet admitted. Equal pods share one number.
    unacknowledged: tuple[int, ...]

    @property
    def pools(self) -> tuple[DeviceSet, ...]:
        """All device sets that may be released.

        Bit *n* of :attr:`Admission.released` stands for number *n* of them.
        """
        return self.held + self.terminated

    def after_release(self, released: int) -> _State:
        """Return the state after the device sets with these bits are released."""
        first = len(self.held)  # the number of the first device set in `terminated`
        return _State(
            self.free + marked(self.pools, released),
            tuple(p for n, p in enumerate(self.held) if not released >> n & 1),
            tuple(p for n, p in enumerate(self.terminated, first) if not released >> n & 1),
            self.unacknowledged,
        )

    def after_endings(self) -> set[_State]:
        """Return the states after one of the pods that may end has ended."""
        free, held, terminated, unacknowledged = self
        return {
            _State(free + pool, held[:n] + held[n + 1 :], terminated, unacknowledged)
            for n, pool in enumerate(held)
        } | {
            _State(free + pool, held, terminated[:n] + terminated[n + 1 :], unacknowledged)
            for n, pool in enumerate(terminated)
        }


# The free and the held devices of a state in which no pod is unacknowledged or terminated any more.
# Most states are of this kind. The only steps from such a state are pods that end.
_Settled = tuple[DeviceSet, tuple[DeviceSet, ...]]


class _Newcomer:
    """An unacknowledged pod, with everything that the search knows of its admission."""

    def __init__(self, kubelet: DeviceManager, pod: Unacknowledged, *, may_end: bool) -> None:
        self.pod = pod
        self.kubelet = opaque(kubelet) if pod.opaque else kubelet
        one = len(pod.counts) == 1 and not self.kubelet.aligns
        # Whether the devices that others release between two of its containers matter.
        self.asks_for_releases = not (one or pod.opaque)
        self.stays = not (pod.terminated or self.asks_for_releases)
        self.may_end = may_end
        self.answers: ProviderAnswers | None = None
        # How it may be admitted, by the free devices and those that may be released meanwhile.
        self.known: dict[tuple[DeviceSet, tuple[DeviceSet, ...]], Admissions] = {}


class _Future:
    """The search through all states that a node may reach, step by step."""

    def __init__(self, kubelet: DeviceManager, availability: Availability, endings: bool) -> None:
        self._kubelet = kubelet
        self._availability = availability
        self._endings = endings
        first: dict[Unacknowledged, int] = {}
        self._all_pods = tuple(
            first.setdefault(pod, n) for n, pod in enumerate(availability.unacknowledged)
        )
        self._pods = [
            _Newcomer(kubelet, pod, may_end=endings or pod.terminating)
            for pod in availability.unacknowledged
        ]
        self._started = frozenset(
            n for n in self._all_pods if availability.unacknowledged[n].started
        )
        self._seen: set[_State] = set()
        self._settled: set[_Settled] = set()
        small = kubelet.shape.size <= SMALL
        self._most = STATE_SEARCH_STEPS if small else STATE_SEARCH_STEPS_OF_LARGER
        self.spent = len(availability.unacknowledged) ** 2 // 16

    def beginnings(self, holders: tuple[Holder, ...]) -> set[_State] | None:
        """Return the states in which the node may be now; None if they are too many.

        There are several, because pods may hold any of the devices that seem free. ``holders`` are
        the pods that may end.
        """
        availability = self._availability
        if (
            choices_count(availability.free, availability.hidden, availability.width, MAX_STATES)
            > MAX_STATES
        ):
            return None
        known = (*holders, *availability.victims)
        hidden_by_others = availability.hidden - sum(holder.hidden for holder in known)
        states = {_State(availability.free, (), (), self._all_pods)}
        hiding: list[tuple[DeviceSet | None, int]] = [(h.shown, h.hidden) for h in known]
        for n, (shown, hidden) in enumerate((*hiding, (None, hidden_by_others))):
            terminates = len(holders) <= n < len(known)
            sizes = range(max(0, hidden - availability.gone), hidden + 1)
            ways = sum(
                choices_count(s.free, n, availability.width, MAX_STATES)
                for s in states
                for n in sizes
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
                for more in choices(s.free, n, availability.width)
            }
        # No state is left if more devices are hidden than exist. Then our view contradicts itself.
        return states or None

    def follow(self, states: set[_State]) -> bool:
        """Visit all states that may follow, and return whether they were few enough."""
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
        """Return the states in which another pod can be admitted, ascending."""
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
        return len(self._seen) + len(self._settled) > MAX_STATES or self.spent > self._most

    def _new(self, states: set[_State]) -> list[_State]:
        """Return the states that were not visited yet, and visit the settled ones at once.

        If no pod is unacknowledged any more, the devices of terminated pods are free.
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
        """Visit these states and all that follow from them by pods that end.

        The search stops when there are too many states.
        """
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
        """Return every next state; None if there are too many."""
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
        """Return every way in which a pod may be admitted in a state."""
        later = state.pools if newcomer.asks_for_releases else ()
        asked = (state.free, later)
        if asked not in newcomer.known:
            pod = newcomer.pod
            if newcomer.answers is None:  # the steps for them count once for each pod
                newcomer.answers = provider_answers(
                    self._kubelet,
                    self._availability.numa_free_for(self._kubelet, endings=self._endings, but=pod),
                    pod.counts,
                    only_gpu_plugin=pod.only_gpu_plugin,
                    exclusive=pod.exclusive,
                )
                self.spent += newcomer.answers.steps
            newcomer.known[asked] = admissions(
                newcomer.kubelet, state.free, pod.counts, newcomer.answers, releasing=later
            )
        return newcomer.known[asked]


def _after_the_last(
    state: _State, newcomer: _Newcomer, ways: tuple[Admission, ...]
) -> set[_Settled]:
    """Return the states after the last unacknowledged pod was admitted, one for each way.

    No pod releases devices during this admission. After it the terminated pods release theirs.
    """
    free, held, shown = state.free + sum(state.terminated), state.held, newcomer.pod.shown
    if not newcomer.may_end:
        return {(free - way.taken, held) for way in ways}
    return {(free - way.taken, _ascending(held, way.taken + shown)) for way in ways}


def _after(state: _State, rest: tuple[int, ...], newcomer: _Newcomer, way: Admission) -> _State:
    """Return the state after a pod was admitted in one way; ``rest`` is still unacknowledged.

    1. The devices that others released between two of its containers came free.
    2. The devices that it took are no longer free.
    3. If it may end before ours is admitted, its devices may be released.
    """
    free, held, terminated, _ = state.after_release(way.released) if way.released else state
    free -= way.taken
    if newcomer.pod.terminated:
        terminated = _ascending(terminated, way.taken + newcomer.pod.shown)
    elif newcomer.may_end:
        held = _ascending(held, way.taken + newcomer.pod.shown)
    return _State(free, held, terminated, rest)


def _ascending(pools: tuple[DeviceSet, ...], more: DeviceSet) -> tuple[DeviceSet, ...]:
    """Return the device sets with ``more`` added, ascending."""
    if not pools or pools[-1] <= more:
        return (*pools, more)
    return tuple(sorted((*pools, more)))
