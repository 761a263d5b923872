"""Belief: every pool the kubelet may have free when it admits a pod.

What we see of a node is a moment old. Pods that are bound but not yet reported may be admitted
before ours, in any order (the kubelet sorts by creation, so pods bound later too), and not at all;
pods that end may have released their devices or not, at any point in between; and what init
containers left unused is held though no report shows it. A verdict holds only if it holds in every
moment of the belief.

A pod that shows some of its containers' devices is in the middle of its admission. The kubelet
admits one pod at a time, so every other pod comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from topology.core.admission import UNKNOWN_FACTS, Admission, Kubelet, admissions
from topology.core.budget import BELIEF_STEPS
from topology.core.devices import Mask
from topology.core.pools import Pool, choices, choices_count, total
from topology.core.remembering import remembered
from topology.core.requests import NO_CONSTRAINTS, Constraints, Counts, device_count

MAX_STATES = 4096
"""A belief that would grow larger is given up: then nothing is promised."""


class Holder(NamedTuple):
    """A pod that holds devices: those the report shows, and how many more it does not."""

    shown: Pool
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod that is bound here and not yet wholly reported.

    ``counts`` are the containers it still needs devices for. ``promised`` is what it was promised,
    if anything, and ``survives_endings`` whether the promise was to hold even if running pods end.
    ``only_gpu_plugin`` is the request's. A pod in the middle of its admission has ``started`` and
    has already ``shown`` something. To others an ``opaque`` one may take any devices: its init
    containers may have theirs already, from what was free then, and no report shows them. One that
    is ``ending`` may be admitted and let go again before the next. A ``departed`` one has ended,
    and no report has shown it: it is no more, but may have been there when a pod was admitted that
    is unreported still.
    """

    counts: Counts
    promised: Constraints = NO_CONSTRAINTS
    survives_endings: bool = False
    only_gpu_plugin: bool = True
    started: bool = False
    shown: Pool = 0
    opaque: bool = False
    ending: bool = False
    departed: bool = False

    def outcome_key(self) -> Pending:
        """The pod without its promise."""
        if self.promised == NO_CONSTRAINTS:
            return self
        return replace(self, promised=NO_CONSTRAINTS, survives_endings=False)

    @property
    def held(self) -> int:
        """Devices that it will take from the free ones."""
        return device_count(self.counts)


def pending_order(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """Pending pods in one fixed order, so that equal moments are equal keys."""
    return tuple(sorted(pending, key=_order))


@remembered
def _order(pod: Pending) -> tuple[object, ...]:
    counts = tuple((role.value, n) for role, n in pod.counts)
    words = (
        repr(pod.promised),
        pod.survives_endings,
        pod.only_gpu_plugin,
        pod.opaque,
        pod.ending,
        pod.departed,
    )
    return (not pod.started, counts, pod.shown, words)


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known of a node's devices at one moment; equal moments are equal keys.

    ``free`` is what nobody is seen to hold. ``releasing`` are pods that are ending, ``running``
    those that are not, ``pending`` the unreported ones, each in a fixed order. GPUs that are
    ``sick`` stay free for the kubelet but break every promise. ``gone`` counts devices that nobody
    is seen to hold and the kubelet hands out no more: what pods hide may be among them. Pools have
    ``width`` bits per GPU.
    """

    free: Pool
    releasing: tuple[Holder, ...] = ()
    running: tuple[Holder, ...] = ()
    pending: tuple[Pending, ...] = ()
    sick: Mask = 0
    width: int = 1
    gone: int = 0

    @property
    def hidden(self) -> int:
        """Devices that seem free and are not."""
        return sum(holder.hidden for holder in (*self.running, *self.releasing))

    @property
    def devices_left(self) -> int:
        """Devices that are surely left once every pending pod is admitted; may be negative."""
        free = total(self.free, self.width)
        return free - self.hidden - sum(pod.held for pod in self.pending if not pod.departed)

    def outcome_key(self, *, endings: bool) -> Availability:
        """Only what belief and outcomes depend on: many moments have this in common.

        Promises and health are for judging; of running pods counts only what they hide, unless
        they may end.
        """
        running = self.running if endings else tuple(Holder(0, h.hidden) for h in self.running)
        return Availability(
            self.free,
            self.releasing,
            tuple(sorted(h for h in running if h != Holder(0))),
            pending_order(pod.outcome_key() for pod in self.pending),
            width=self.width,
            gone=self.gone if self.hidden else 0,
        )

    def widest(self, *, endings: bool = False) -> Pool:
        """What is free at most: nobody comes first, and every ending pod has released.

        With ``endings`` every running pod has ended too.
        """
        gone = (*self.releasing, *(self.running if endings else ()))
        started = sum(pod.shown for pod in self.pending)
        return self.free + sum(holder.shown for holder in gone) + started


class FreeState(NamedTuple):
    """What may be free when a pod is admitted, and what may come free while it is."""

    free: Pool
    later: tuple[Pool, ...] = ()


class Belief(NamedTuple):
    """Every moment, ascending, or None where there are more than we follow; and what that cost."""

    free_states: tuple[FreeState, ...] | None
    steps: int = 1


def free_states(
    kubelet: Kubelet, now: Availability, *, endings: bool = False, one_container: bool = True
) -> tuple[FreeState, ...] | None:
    """Every moment of :func:`belief`."""
    return belief(kubelet, now, endings=endings, one_container=one_container).free_states


@remembered
def belief(
    kubelet: Kubelet, now: Availability, *, endings: bool = False, one_container: bool = True
) -> Belief:
    """What may be free when a pod is admitted.

    With ``endings`` any running pod may have ended too. A monotone allocator needs only the widest
    pool: every outcome under a smaller one is an outcome under it. A pod with ``one_container``
    does not ask what may come free while it is admitted.
    """
    if kubelet.monotone:
        return Belief((FreeState(now.widest(endings=endings)),))
    holders = (*now.releasing, *(now.running if endings else ()))
    if not now.pending and not now.hidden:
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
    settled = (s for s in seen if not s.ghosts and not future.any_started(s))
    found = {FreeState(s.free, () if one_container else future.later(s)) for s in settled}
    return Belief(tuple(sorted(found)), future.spent)


def _only_endings(free: Pool, holders: tuple[Holder, ...], one_container: bool) -> Belief:
    """The belief where nobody waits to be admitted: any of the holders may have let go."""
    if 1 << len(holders) > MAX_STATES:
        return Belief(None)
    found = [FreeState(free)]
    for holder in holders:
        gone = [FreeState(m.free + holder.shown, m.later) for m in found]
        if not one_container:
            found = [FreeState(m.free, (*m.later, holder.shown)) for m in found]
        found += gone
    return Belief(tuple(sorted(set(found))), len(found) // 8)


class _State(NamedTuple):
    """One point of the node's near future.

    ``held`` is what each pod holds that may let go, ascending: those that were there, with what
    they hide, and those that were admitted on the way. ``waiting`` numbers pods (equal ones alike),
    ``ghosts`` are pods admitted on the way that have to let go before now.
    """

    free: Pool
    held: tuple[Pool, ...]
    waiting: tuple[int, ...]
    ghosts: tuple[Pool, ...] = ()


class _Future:
    """The steps that a node may take from one state to the next."""

    def __init__(self, kubelet: Kubelet, now: Availability, endings: bool) -> None:
        self._kubelet = kubelet
        self._now = now
        self._endings = endings
        self._pods = now.pending
        self.spent = len(now.pending) ** 2 // 16

    def beginnings(self, holders: tuple[Holder, ...]) -> set[_State] | None:
        """The states now: what pods hide may be any devices that seem free; None if too many.

        ``holders`` are the pods that may let go.
        """
        now = self._now
        if choices_count(now.free, now.hidden, now.width, MAX_STATES) > MAX_STATES:
            return None
        first: dict[Pending, int] = {}
        everybody = tuple(first.setdefault(pod, n) for n, pod in enumerate(self._pods))
        steady = now.hidden - sum(holder.hidden for holder in holders)
        found = {_State(now.free, (), everybody)}
        for shown, hidden in (*holders, (None, steady)):
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
                    s.held if shown is None else _with(s.held, shown + more),
                    s.waiting,
                )
                for s in found
                for n in sizes
                for more in choices(s.free, n, now.width)
            }
        return found or None  # more is hidden than there is: what we see contradicts itself

    def any_started(self, state: _State) -> bool:
        """Whether a pod is in the middle of its admission."""
        return any(self._pods[number].started for number in state.waiting)

    def steps(self, state: _State) -> set[_State] | None:
        """Every next state; None where there are too many."""
        found = self._endings_of(state)
        self.spent += 4 + 2 * len(found)
        if self.spent > BELIEF_STEPS:
            return None
        started = [n for n in state.waiting if self._pods[n].started]
        for number in dict.fromkeys(started or state.waiting):
            pod = self._pods[number]
            at = state.waiting.index(number)
            rest = state._replace(waiting=state.waiting[:at] + state.waiting[at + 1 :])
            if pod.started:
                # Its admission may also fail, and then it gives back what it had.
                found.add(rest._replace(free=state.free + pod.shown))
            admitted = self._admit(rest, pod)
            if admitted is None or len(found) + len(admitted) > MAX_STATES:
                return None
            if self.spent > BELIEF_STEPS:
                return None
            found |= admitted
        return found

    def later(self, state: _State) -> tuple[Pool, ...]:
        """What may still come free in a state, pod by pod."""
        return (*state.held, *state.ghosts)

    def _endings_of(self, state: _State) -> set[_State]:
        found = set()
        for i, pool in enumerate(state.held):
            others = state.held[:i] + state.held[i + 1 :]
            found.add(state._replace(free=state.free + pool, held=others))
        for i, pool in enumerate(state.ghosts):
            others = state.ghosts[:i] + state.ghosts[i + 1 :]
            found.add(state._replace(free=state.free + pool, ghosts=others))
        return found

    def _admit(self, state: _State, pod: Pending) -> set[_State] | None:
        """The states after a pod that no longer waits was admitted."""
        kubelet = opaque(self._kubelet) if pod.opaque else self._kubelet
        later = self.later(state) if len(pod.counts) > 1 and not pod.opaque else ()
        found = admissions(
            kubelet, state.free, pod.counts, only_gpu_plugin=pod.only_gpu_plugin, releasing=later
        )
        self.spent += found.steps
        if found.sets is None or self.spent + 2 * len(found.sets) > BELIEF_STEPS:
            return None
        ways = found.ways or ()
        self.spent += 2 * len(ways)
        return {self._after(state, pod, way) for way in ways}

    def _after(self, state: _State, pod: Pending, way: Admission) -> _State:
        free, held, ghosts = state.free - way.taken, state.held, state.ghosts
        if way.released:
            free += sum(p for n, p in enumerate(self.later(state)) if way.released >> n & 1)
            haunting = way.released >> len(held)
            held = tuple(p for n, p in enumerate(held) if not way.released >> n & 1)
            ghosts = tuple(p for n, p in enumerate(ghosts) if not haunting >> n & 1)
        if pod.departed:
            ghosts = _with(ghosts, way.taken)
        elif self._endings or pod.ending:
            held = _with(held, way.taken + pod.shown)
        return _State(free, held, state.waiting, ghosts)


def _with(pools: tuple[Pool, ...], more: Pool) -> tuple[Pool, ...]:
    """Both, ascending."""
    return tuple(sorted((*pools, more)))


@remembered
def opaque(kubelet: Kubelet) -> Kubelet:
    """The same node with nothing known of how it chooses."""
    return replace(kubelet, facts=UNKNOWN_FACTS)
