"""Asks many nodes about one request: what is remembered is taken, the rest is worked out.

Working out happens on the frozen facts of a look, with no lock held but the event loop's. What is
done by the deadline stays remembered, so that whoever asks again goes on from there; the rest is
answered as *undecided*.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler_extender.deadline import NO_DEADLINE, Deadline, NotAtOnceError, OutOfTimeError
from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.state.answers.decision import (
    MAY_REFUSE,
    Decision,
    Refusals,
    Settings,
    decide,
    out_of_date,
    prospect,
    undecided,
)
from scheduler_extender.state.answers.lookup import Look
from scheduler_extender.state.answers.remembered import State
from scheduler_extender.state.cluster.board import ClusterFacts
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.node.facts import NodeFacts
from topology.core import scoring
from topology.core.remembering import interruptible
from topology.core.requests import GpuRequest
from topology.core.scoring import Merit, Prospect, RequestClasses, classes_of

T = TypeVar("T")
RACK_LEVELS = 3
"""Levels of racks that scores tell apart, the fullest first."""
ROUNDS = 8
"""How often nodes that change meanwhile are asked again, in one call."""


@dataclass(slots=True)
class Answered:
    """The answers of some nodes to one request.

    ``states`` has each node's state in the order asked. It is None for a node that nobody told us
    of, and for one whose state could not be found: the latter is among the ``undecided``.
    ``distinct`` are the same without repetition.
    ``decisions`` and ``merits`` are by state. ``undecided`` are the answers of nodes about which
    deciding failed or for which there was no time; the latter are ``late``.
    """

    names: Sequence[str]
    states: list[State | None]
    distinct: set[State | None]
    decisions: dict[State, Decision]
    merits: dict[State, Merit]
    undecided: dict[str, Decision] = field(default_factory=dict)
    late: frozenset[str] = frozenset()

    def each(self) -> Iterator[tuple[str, Decision | None]]:
        """Every node with its answer, in the order asked; None for a node that is unknown."""
        for name, state in zip(self.names, self.states, strict=True):
            found = self.decisions.get(state) if state is not None else None
            yield name, found or self.undecided.get(name)


def enquire(
    cluster: Cluster,
    request: GpuRequest,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
    *,
    scores: bool = False,
) -> Answered:
    """The answers, worked out where they are not remembered, while there is time.

    The event loop holds the cluster's lock (:meth:`.Board.locked_if_free`), and gets them where
    nearly all are remembered: a millisecond for thousands of nodes. For it at most
    :data:`.AT_ONCE_STATES` states are worked out, and :class:`.NotAtOnceError` is raised where
    there are more, or the time is up.
    """
    work = _Work(cluster, request, deadline, scores=scores)
    look = cluster.look(request, names, scores=scores, deadline=deadline)
    deadline.need_quick(look.left <= AT_ONCE_STATES)
    for _ in range(ROUNDS):
        if not work.left(look):
            break
        in_time = work.through(look)
        deadline.need_quick(in_time)
        if in_time and not look.unfound and cluster.holds(look):
            break
        look = cluster.look(request, names, scores=scores, deadline=deadline)
        if not in_time:
            break
    left = _left(names, look)
    return Answered(
        names,
        look.states,
        look.distinct,
        avoiding(cluster.settings, request, look.decisions),
        look.merits,
        cluster.undecided([*left, *look.faulted, *look.unfound], request),
        frozenset(n for n, state in left.items() if state not in work.failed) | set(look.unfound),
    )


def _left(names: Sequence[str], look: Look) -> dict[str, State]:
    """The nodes whose state is known and has no decision."""
    if look.distinct <= {*look.decisions, None}:
        return {}
    pairs = zip(names, look.states, strict=True)
    return {n: state for n, state in pairs if state is not None and state not in look.decisions}


def enquire_at(
    cluster: Cluster,
    seen: ClusterFacts,
    request: GpuRequest,
    *,
    scores: bool = False,
    deadline: Deadline = NO_DEADLINE,
) -> Answered:
    """The answers of every node at one moment, worked out on the facts of that moment alone.

    The states in the answer are numbers of its own. ``cluster`` counts what fails, and remembers
    nothing. Nodes for which there is no time are undecided, and among the :attr:`Answered.late`.
    Raises :class:`OutOfTimeError` where only a deadline around this one has passed.
    """
    work = _Work(cluster, request, NO_DEADLINE, scores=scores)
    states = _states_at(cluster, seen, request.resource, deadline)
    answered = Answered([facts.name for facts in seen.nodes], states, set(states), {}, {})
    with deadline.ends(), deadline.enforced():
        for facts, state in zip(seen.nodes, states, strict=True):
            if state is None or state in answered.decisions or state in work.failed:
                continue
            interruptible()
            unseen = out_of_date(facts, request) if seen.blind else None
            if unseen is not None:
                answered.decisions[state] = Decision(unseen)
                continue
            decision = work.decision(state, facts)
            if decision is not None:
                answered.decisions[state] = decision
            blind = seen.blind and not request.plain  # then prioritize does not compare nodes
            if scores and not blind and decision is not None and decision.rejection is None:
                found = work.prospect(state, facts, decision, classes_of(seen.mix))
                if found is not None:
                    answered.merits[state] = found.weighed(seen.mix)
    left = [
        facts
        for facts, state in zip(seen.nodes, states, strict=True)
        if state is None or state not in answered.decisions
    ]
    answered.undecided = {facts.name: undecided(facts, request) for facts in left}
    if deadline.passed():
        answered.late = frozenset(answered.undecided)
    answered.decisions = avoiding(cluster.settings, request, answered.decisions)
    return answered


def avoiding(
    settings: Settings, request: GpuRequest, decisions: dict[State, Decision]
) -> dict[State, Decision]:
    """The decisions under ``--refusals possible``: where some nodes surely take the pod, those
    whose kubelet may refuse it do not pass. Else the same decisions.

    Required pods pass no such node anyway.
    """
    if settings.refusals is not Refusals.POSSIBLE or request.required:
        return decisions
    passing = {s: d for s, d in decisions.items() if d.rejection is None}
    risky = {s for s, d in passing.items() if d.assessment and d.assessment.hazards}
    if len(risky) == len(passing):
        return decisions
    return {
        state: Decision(MAY_REFUSE, decision.assessment) if state in risky else decision
        for state, decision in decisions.items()
    }


def _states_at(
    cluster: Cluster, seen: ClusterFacts, resource: str, deadline: Deadline
) -> list[State | None]:
    """A number for each node, equal for nodes that answer alike; None where finding it fails, or it
    is too late."""
    numbers: dict[Hashable, State] = {}
    found: list[State | None] = []
    for facts in seen.nodes:
        if deadline.passed():
            found += [None] * (len(seen.nodes) - len(found))
            break
        try:
            found.append(numbers.setdefault(facts.key(resource), len(numbers)))
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            cluster.faults.note(facts.name, error)
            found.append(None)
    return found


def scores(
    request: GpuRequest, answered: Answered, rooms: Sequence[int] | None = None
) -> list[int]:
    """The score of each node beside the others, 0 to 10, in the order asked; a refused one has 0.

    A node of which nothing is known, or not yet, is scored as such. ``rooms`` are what is left of
    the nodes' racks (:meth:`.GroupBoard.rack_rooms`).
    """
    keys: Sequence[State | _InRack | None] = answered.states
    standing: dict[State | _InRack | None, _InRack] = {s: (s, 0) for s in answered.distinct}
    if rooms is not None:
        in_racks = list(zip(answered.states, _levels(answered, rooms), strict=True))
        keys, standing = in_racks, {at: at for at in set(in_racks)}
    merits = {key: _merit_at(answered, at) for key, at in standing.items()}
    by_merit = scoring.scores(request, {*merits.values(), scoring.UNKNOWN})
    of = {
        key: 0 if _refused(answered, at) else by_merit[merits[key]] for key, at in standing.items()
    }
    found = list(map(of.__getitem__, keys))
    if answered.undecided:
        for i, name in enumerate(answered.names):
            if name in answered.undecided and answered.undecided[name].rejection:
                found[i] = 0
    return found


_InRack = tuple[State | None, int]
"""A node's state, and the level of its rack."""


def _levels(answered: Answered, rooms: Sequence[int]) -> list[int]:
    """The levels of the nodes' racks among those that a pod may go to: 0 for a node in no rack, 1
    for the fullest rack, and so on. The last level is that of all the others: scores are too few to
    tell hundreds of racks apart."""
    asked = zip(answered.states, rooms, strict=True)
    open_to = {room for state, room in asked if room and not _refused(answered, (state, 0))}
    level = {room: min(i, RACK_LEVELS) for i, room in enumerate(sorted(open_to), 1)}
    return [level.get(room, 0) for room in rooms]


def _merit_at(answered: Answered, at: _InRack) -> Merit:
    state, rack = at
    found = answered.merits.get(state, scoring.UNKNOWN) if state is not None else scoring.UNKNOWN
    return replace(found, rack=rack) if rack else found


def _refused(answered: Answered, at: _InRack) -> bool:
    decision = answered.decisions.get(at[0]) if at[0] is not None else None
    return decision is not None and decision.rejection is not None


def answer_of(cluster: Cluster, facts: NodeFacts, request: GpuRequest) -> Decision:
    """The answer of one node of these facts, worked out now; undecided where deciding fails.

    Raises :class:`OutOfTimeError` under :meth:`.Deadline.enforced`.
    """
    unseen = out_of_date(facts, request) if cluster.blind() else None
    if unseen is not None:
        return Decision(unseen)
    try:
        return decide(facts, request, cluster.settings)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        cluster.faults.note(facts.name, error)
        return undecided(facts, request)


def _passes(decision: Decision | None) -> bool:
    return decision is not None and decision.rejection is None


class _Work:
    """What one call works out; with ``scores`` merits, too.

    ``failed`` are states about which deciding failed, ``unmeasured`` those whose merit could not be
    worked out: each is tried once in a call, and again in the next. What fails on the
    event loop is left to a thread, which tries it again and tells of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        request: GpuRequest,
        deadline: Deadline,
        *,
        scores: bool,
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._deadline = deadline
        self._scores = scores
        self.failed: set[State] = set()
        self.unmeasured: set[State] = set()

    def left(self, look: Look) -> bool:
        """Whether there is something to work out."""
        return not (look.missing.keys() <= self.failed and look.unweighed.keys() <= self.unmeasured)

    def through(self, look: Look) -> bool:
        """Work out what is missing, for later calls and into the look; False where there was no
        time for all of it."""
        weigh = dict(look.unweighed)
        try:
            with self._deadline.enforced():
                for state, facts in look.missing.items():
                    if state not in self.failed:
                        self._decide(look, state, facts)
                        if self._scores and _passes(look.decisions.get(state)):
                            weigh[state] = facts
                for state, facts in weigh.items():
                    if state not in self.unmeasured:
                        self._weigh(look, state, facts)
        except OutOfTimeError:
            return False
        return True

    def decision(self, state: State, facts: NodeFacts) -> Decision | None:
        """The answer of a state; None where deciding fails."""
        settings = self._cluster.settings
        decision = self._worked_out(facts, lambda: decide(facts, self._request, settings))
        if decision is None:
            self.failed.add(state)
        return decision

    def prospect(
        self, state: State, facts: NodeFacts, decision: Decision, classes: RequestClasses
    ) -> Prospect | None:
        """What a placement in a state would cost; None where that cannot be worked out."""
        found = self._worked_out(facts, lambda: prospect(facts, self._request, decision, classes))
        if found is None:
            self.unmeasured.add(state)
        return found

    def _decide(self, look: Look, state: State, facts: NodeFacts) -> None:
        decision = self.decision(state, facts)
        if decision is not None:
            look.decisions[state] = decision
            self._cluster.remember(self._request, state, decision)

    def _weigh(self, look: Look, state: State, facts: NodeFacts) -> None:
        classes = classes_of(look.mix)
        found = self.prospect(state, facts, look.decisions[state], classes)
        if found is not None:
            look.merits[state] = found.weighed(look.mix)
            self._cluster.remember_prospect(self._request, state, found, classes)

    def _worked_out(self, facts: NodeFacts, answer: Callable[[], T]) -> T | None:
        """An answer; None where working it out fails. Raises :class:`OutOfTimeError`, and
        :class:`NotAtOnceError` in place of None."""
        self._deadline.check()
        try:
            return answer()
        except Exception as error:
            if self._deadline.at_once:
                raise NotAtOnceError from error
            self._cluster.faults.note(facts.name, error)
            return None
