"""Asks nodes about one request: what is remembered is taken, the rest is worked out.

Working out happens on the facts of a :class:`.Snapshot`, with no lock held.
What is done by the deadline stays remembered, so that whoever asks again goes on from there; the
rest is answered as *undecided*.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count, repeat
from operator import is_
from typing import ParamSpec, TypeVar

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.decision import decide, prospect, undecided
from scheduler_extender.framework.rules.freshness import OUT_OF_DATE, unless_blind
from scheduler_extender.framework.rules.possible import unless_others_are_sure
from scheduler_extender.state.answers.classes import State
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from topology.core import scoring
from topology.core.devices import NodeName
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest
from topology.core.scoring import Merit, Prospect, classes_of

P = ParamSpec("P")
T = TypeVar("T")
RACK_LEVELS = 3
"""Levels of racks that scores tell apart, the fullest first."""


@dataclass(slots=True)
class Answers:
    """The answers of some nodes to one request."""

    request: GpuRequest
    names: Sequence[str]
    states: list[State | None]
    """Each node's state, in the order asked. None for a node that nobody told us of, and for one
    whose state could not be found: the latter is among the ``undecided``."""
    distinct: set[State | None]  # the same without repetition
    decisions: dict[State, Decision]
    merits: dict[State, Merit] = field(default_factory=dict)
    undecided: dict[str, Decision] = field(default_factory=dict)
    """What is answered for nodes about which deciding failed, or for which there was no time."""
    late: frozenset[str] = frozenset()  # the nodes for which there was no time

    def each(self) -> Iterator[tuple[str, Decision | None]]:
        """Every node with its answer, in the order asked; None for a node that is unknown."""
        for name, state in zip(self.names, self.states, strict=True):
            decision = self.decisions.get(state) if state is not None else None
            yield name, decision or self.undecided.get(name)

    def of_all(self, alike: Mapping[str, Sequence[str]]) -> Answers:
        """The same for all nodes that are ``alike``, by the name of the one that was asked."""
        asked = list(zip(self.names, self.states, strict=True))
        return replace(
            self,
            names=[name for first in self.names for name in alike[first]],
            states=[state for first, state in asked for _ in alike[first]],
            undecided={n: each for first, each in self.undecided.items() for n in alike[first]},
            late=frozenset(name for first in self.late for name in alike[first]),
        )


def answer(
    snapshot: Snapshot, facts: NodeFacts, request: GpuRequest, deadline: Deadline = NO_DEADLINE
) -> Decision:
    """The answer of one node of these facts, worked out now; undecided where deciding fails, or
    there is no time.

    Raises :class:`OutOfTimeError` where only a deadline around this one has passed.
    """
    decision = undecided(facts, request)
    with deadline.ends():
        interruptible()
        decision = tried(snapshot, facts, decide, facts, request, snapshot.settings) or decision
    return unless_blind(decision, facts, request) if snapshot.blind else decision


def ask(
    snapshot: Snapshot,
    request: GpuRequest,
    names: Sequence[str] | None = None,
    deadline: Deadline = NO_DEADLINE,
    *,
    scores: bool = False,
    counts: bool = True,
) -> Answers:
    """The answers of these nodes, or of all, and for ``scores`` their merits.

    What is worked out is remembered if the question ``counts``: a person's does not. Raises
    :class:`.OutOfTimeError` where only a deadline around this one has passed.
    """
    names = [facts.name for facts in snapshot.nodes] if names is None else names
    if snapshot.blind and request.required:  # whatever the nodes are like
        return Answers(request, names, [0] * len(names), {0}, {0: Decision(OUT_OF_DATE)})
    states, faulted = states_of(snapshot, request.resource, names, deadline)
    answers = Answers(request, names, states, set(states), {})
    failed = _work_out(snapshot, request, answers, deadline, scores=scores, counts=counts)
    if not answers.distinct <= answers.decisions.keys():
        left = [
            (name, state)
            for name, state in zip(names, states, strict=True)
            if state not in answers.decisions and name in snapshot.by_name
        ]
        facts = (snapshot.facts(NodeName(name)) for name, _ in left)
        answers.undecided = {each.name: undecided(each, request) for each in facts}
        late = {name for name, state in left if name not in faulted and state not in failed}
        answers.late = frozenset(late)
    return answers


def _work_out(
    snapshot: Snapshot,
    request: GpuRequest,
    answers: Answers,
    deadline: Deadline,
    *,
    scores: bool,
    counts: bool,
) -> set[State]:
    """Put in what is remembered, and what is not as far as there is time. The states about which
    deciding failed."""
    cache, settings, failed = snapshot.answers, snapshot.settings, set[State]()
    weighs = scores and not (snapshot.blind and not request.plain)  # then nodes are not compared
    known = [state for state in answers.distinct if state is not None]
    decisions, answers.merits = cache.known(
        request, known, snapshot.mix if weighs else None, counts=counts
    )
    passing = sum(decision.rejection is None for decision in decisions.values()) if weighs else 0
    left = len(known) - len(decisions) + passing - len(answers.merits)
    # In the order in which the nodes were asked about.
    one_of_each = (
        dict(zip(answers.states, answers.names, strict=True)) if left or snapshot.blind else {}
    )
    of_each = {s: snapshot.facts(NodeName(n)) for s, n in one_of_each.items() if s is not None}
    classes = classes_of(snapshot.mix)
    alike: dict[Hashable, Decision] = {}
    found, costs = dict[State, Decision](), dict[State, Prospect]()
    try:
        with deadline.ends():
            for state, facts in of_each.items():
                if state not in decisions:
                    interruptible()
                    decision = tried(snapshot, facts, _decided, facts, request, settings, alike)
                    if decision is None:
                        failed.add(state)
                    else:
                        decisions[state] = found[state] = decision
            for state, facts in of_each.items() if weighs else ():
                decision = decisions.get(state)
                passes = decision is not None and decision.rejection is None
                if decision is not None and passes and state not in answers.merits:
                    interruptible()
                    cost = tried(snapshot, facts, prospect, facts, request, decision, classes)
                    if cost is not None:
                        costs[state] = cost
                        answers.merits[state] = cost.weighed(snapshot.mix)
    finally:
        if counts and (found or costs):
            cache.remember(request, found, costs, classes)
    if snapshot.blind:
        decisions = {s: unless_blind(d, of_each[s], request) for s, d in decisions.items()}
    answers.decisions = unless_others_are_sure(settings, request, decisions)
    return failed


def _decided(
    facts: NodeFacts, request: GpuRequest, settings: Settings, alike: dict[Hashable, Decision]
) -> Decision:
    """What a node answers; those on which the pod gets the same devices are ``alike``."""
    choice = facts.choice(request)
    decision = None if choice is None else alike.get(choice)
    if decision is None:
        decision = decide(facts, request, settings)
        if choice is not None:
            alike[choice] = decision
    return decision


def tried(
    snapshot: Snapshot,
    facts: NodeFacts,
    answer: Callable[P, T],
    *args: P.args,
    **named: P.kwargs,
) -> T | None:
    """An answer about a node; None where working it out fails."""
    try:
        return answer(*args, **named)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        snapshot.faults.note(facts.name, error)
        return None


def states_of(
    snapshot: Snapshot, resource: str, names: Sequence[str], deadline: Deadline = NO_DEADLINE
) -> tuple[list[State | None], set[str]]:
    """The state of each node, and the nodes about which finding it fails.

    The state is None for these, for nodes that nobody told us of, and for those that are left over
    at the deadline. Nodes in one state answer alike.
    """
    faulted = set[str]()
    states = snapshot.classes.states(resource, names, snapshot.moment, snapshot.own)
    left: list[int] = []
    if None in states:
        unknown = compress(count(), map(is_, states, repeat(None)))
        left = [i for i in unknown if names[i] in snapshot.by_name]
    for i in left:
        if deadline.passed():
            break
        facts = snapshot.by_name[NodeName(names[i])]
        moment = None if facts.name in snapshot.own else snapshot.moment
        state = tried(snapshot, facts, _state_of, snapshot, facts, resource, moment)
        states[i] = state
        if state is None:
            faulted.add(facts.name)
    return states, faulted


def _state_of(snapshot: Snapshot, facts: NodeFacts, resource: str, moment: int | None) -> State:
    state, key = snapshot.classes.enter(facts, resource, moment), facts.key(resource)
    if state is None:  # of this snapshot only
        state = snapshot.numbers.get(key, -1 - len(snapshot.numbers))
    snapshot.numbers[key] = state
    return state


def scores(answers: Answers, rooms: Sequence[int] | None = None) -> list[int]:
    """The score of each node beside the others, 0 to 10, in the order asked; a refused one has 0.

    A node of which nothing is known, or not yet, is scored as such. ``rooms`` are what is left of
    the nodes' racks (:func:`.members.rack_rooms`).
    """
    unknown, closed = scoring.UNKNOWN, _closed(answers)
    keys: Sequence[State | _InRack | None] = answers.states
    merits: dict[State | _InRack | None, Merit] = {
        state: unknown if state is None else answers.merits.get(state, unknown)
        for state in answers.distinct
    }
    refused: set[State | _InRack | None] = {*closed}
    if rooms is not None:
        in_racks = list(zip(answers.states, _levels(answers, closed, rooms), strict=True))
        keys, refused = in_racks, {at for at in in_racks if at[0] in closed}
        merits = {at: replace(merits[at[0]], rack=at[1]) for at in {*in_racks}}
    by_merit = scoring.scores(answers.request, {*merits.values(), unknown})
    of = {key: 0 if key in refused else by_merit[merit] for key, merit in merits.items()}
    by_node = list(map(of.__getitem__, keys))
    if answers.undecided:
        for i, name in enumerate(answers.names):
            if name in answers.undecided and answers.undecided[name].rejection:
                by_node[i] = 0
    return by_node


_InRack = tuple[State | None, int]
"""A node's state, and the level of its rack."""


def _levels(answers: Answers, closed: set[State | None], rooms: Sequence[int]) -> list[int]:
    """The levels of the nodes' racks among those that a pod may go to: 0 for a node in no rack, 1
    for the fullest rack, and so on. The last level is that of all the others: scores are too few to
    tell hundreds of racks apart."""
    asked = zip(answers.states, rooms, strict=True)
    open_to = {room for state, room in asked if room and state not in closed}
    level = {room: min(i, RACK_LEVELS) for i, room in enumerate(sorted(open_to), 1)}
    return [level.get(room, 0) for room in rooms]


def _closed(answers: Answers) -> set[State | None]:
    """The states in which nodes refuse the pod."""
    return {state for state, each in answers.decisions.items() if each.rejection is not None}
