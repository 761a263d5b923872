"""What is remembered about many nodes at once: the state of each, and the answers of these states.

The cluster's lock guards it. A look at thousands of nodes is a look-up for each; finding the state
of a node that has changed costs more, so that is done for some nodes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, filterfalse, repeat
from operator import is_

from scheduler_extender.deadline import Deadline
from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.answers.faults import Faults
from scheduler_extender.state.answers.mix import RequestMix
from scheduler_extender.state.answers.remembered import (
    Answers,
    PlaceCount,
    Places,
    State,
    States,
    Totals,
)
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest
from topology.core.scoring import Merit, Mix, Prospect, RequestClasses, classes_of

SLICE = 20
"""Nodes whose state is found while the lock is held, before others get it; a fraction of a
millisecond each, and a few on the largest nodes."""


MOST_RESOURCES = 48
"""Resources over which states are known: NVIDIA's names of MIG instances in one cluster."""


@dataclass(slots=True)
class Look:
    """What is remembered of one request over some nodes, at one moment.

    ``states`` has each node's state, in the order asked; None where nobody told us of the node, or
    where its state cannot be found: then it is among the ``faulted``. ``distinct`` are the same
    without repetition, ``decisions`` and ``merits`` are remembered. ``missing`` are states
    without an answer, ``unweighed`` states that pass and have no merit under ``mix``, each with
    the facts of one node that is in it. ``unfound`` are nodes that have changed just now, or whose
    state there was no time to find. ``moment`` is :attr:`Lookup.moment` at the time.
    """

    states: list[State | None]
    distinct: set[State | None]
    mix: Mix
    decisions: dict[State, Decision] = field(default_factory=dict)
    merits: dict[State, Merit] = field(default_factory=dict)
    missing: dict[State, NodeFacts] = field(default_factory=dict)
    unweighed: dict[State, NodeFacts] = field(default_factory=dict)
    faulted: list[str] = field(default_factory=list)
    unfound: list[str] = field(default_factory=list)
    moment: int = 0

    @property
    def left(self) -> int:
        """How many states have to be worked out."""
        return len(self.missing) + len(self.unweighed)


@dataclass(slots=True)
class PlaceLook:
    """What is remembered of the places on some nodes, at one moment.

    ``states`` has each node's state, None where it is unknown; ``known`` the places by state, and
    ``missing`` the states that have to be worked out, each with the facts of one node.
    """

    states: dict[NodeName, State | None]
    known: dict[State, int]
    missing: dict[State, NodeFacts]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is remembered: states that nodes are in, and answers to how many requests."""

    states: int
    requests: int
    answers: int


class Lookup:
    """The states of the nodes, and the answers by state."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._states: dict[str, dict[str, State]] = {}
        self._numbers = States()
        self._answers = Answers()
        self._places = Places()
        self._totals = Totals()
        self._mix = RequestMix()
        self.moment = 0
        """Counts what may change an answer: a node's facts, and the weights of scores."""

    def unknown(
        self, resource: str, names: Sequence[str], nodes: Mapping[NodeName, NodeFacts]
    ) -> list[str]:
        """The nodes among ``names`` whose state has to be found."""
        known = self._states_over(resource)
        return [name for name in filterfalse(known.__contains__, names) if name in nodes]

    def find(
        self,
        resource: str,
        names: Sequence[str],
        nodes: Mapping[NodeName, NodeFacts],
        faulted: set[str],
        *,
        tell: bool = True,
    ) -> None:
        """Find the states of some nodes. Those for which that fails are added to ``faulted``, and
        whoever listens hears of them if we ``tell``."""
        for name in names:
            facts = nodes.get(NodeName(name))
            if facts is not None and name not in faulted:
                try:
                    self.state(facts, resource)
                except Exception as error:  # noqa: BLE001 (a listener logs it)
                    if tell:
                        self._faults.note(facts.name, error)
                    faulted.add(name)

    def look(
        self,
        request: GpuRequest,
        names: Sequence[str],
        nodes: Mapping[NodeName, NodeFacts],
        faulted: set[str],
        *,
        scores: bool,
        deadline: Deadline,
    ) -> Look:
        """A look at ``names``. The states of a few nodes are found, if they have to be."""
        many = min(len(names), len(self._numbers)) > AT_ONCE_STATES
        # Nobody has asked this before, if nothing is remembered of it.
        deadline.need_quick(not many or bool(self._answers.to(request).decisions))
        resource = request.resource
        known = self._states_over(resource)
        # What is done for each of thousands of nodes is done inside of map and its like.
        states = list(map(known.get, names))
        distinct, unfound = set(states), []
        if None in distinct:
            without = list(compress(count(), map(is_, states, repeat(None))))
            new = [i for i in without if names[i] in nodes and names[i] not in faulted]
            deadline.need_quick(len(new) <= AT_ONCE_STATES)
            some = [names[i] for i in new[:SLICE]]
            self.find(resource, some, nodes, faulted, tell=not deadline.at_once)
            for i in without:
                states[i] = known.get(names[i])
            distinct, unfound = set(states), [names[i] for i in new[SLICE:]]
        look = self._look(request, names, nodes, Look(states, distinct, self._mix.current), scores)
        look.faulted, look.unfound, look.moment = sorted(faulted), unfound, self.moment
        return look

    def state(self, facts: NodeFacts, resource: str) -> State:
        """The state that a node is in, found now if it has to be."""
        states = self._states_over(resource)
        if facts.name not in states:
            states[facts.name] = self._numbers.enter(facts.key(resource))
        return states[facts.name]

    def _states_over(self, resource: str) -> dict[str, State]:
        """The states of nodes over one resource; of too many the one asked about longest ago goes.

        Names of MIG instances are anybody's to choose.
        """
        known = self._states.pop(resource, None)
        if known is None:
            known = {}
            while len(self._states) >= MOST_RESOURCES:
                gone = self._states.pop(next(iter(self._states)))
                for state in gone.values():
                    self._forget_once(state)
        self._states[resource] = known
        return known

    def _forget_once(self, state: State) -> None:
        if self._numbers.leave(state):
            self._answers.forget_state(state)

    def leave(self, name: NodeName) -> None:
        """A node has changed, or is gone; a state that no node is in any more is forgotten."""
        self.moment += 1
        for states in self._states.values():
            state = states.pop(name, None)
            if state is not None:
                self._forget_once(state)

    def remember(self, request: GpuRequest, state: State, decision: Decision) -> None:
        """Remember an answer, as long as some node is in that state."""
        if self._numbers.lives(state):
            self._answers.put(request, state, decision)

    def remember_prospect(
        self, request: GpuRequest, state: State, prospect: Prospect, classes: RequestClasses
    ) -> None:
        """Remember it while some node is in that state and the classes are those asked now."""
        if self._numbers.lives(state) and classes == classes_of(self._mix.current):
            self._answers.to(request).put_prospect(state, prospect, classes)

    def look_at_places(
        self, question: PlaceCount, names: Sequence[NodeName], nodes: Mapping[NodeName, NodeFacts]
    ) -> PlaceLook:
        """What is remembered of the places on ``names``, as far as their states are found."""
        states = self._states.setdefault(question.request.resource, {})
        look = PlaceLook({name: states.get(name) for name in names}, {}, {})
        for name, state in look.states.items():
            if state is None or state in look.known or state in look.missing:
                continue
            found = self.places(question, state)
            if found is not None:
                look.known[state] = found
            else:
                look.missing[state] = nodes[name]
        return look

    def places(self, question: PlaceCount, state: State) -> int | None:
        """The places in a state, None where they are not remembered."""
        return self._places.get(state, question)

    def remember_places(self, question: PlaceCount, state: State, places: int) -> None:
        """Remember it while some node is in that state."""
        if self._numbers.lives(state):
            self._places.put(state, question, places)

    def known_states(self, resource: str) -> dict[str, State]:
        """A copy of the states that are found, by node."""
        return dict(self._states.get(resource, {}))

    def totals(self, question: PlaceCount, kind: str) -> Mapping[str, int]:
        """The places in each domain of a kind, as far as they are remembered."""
        return self._totals.to(question, kind)

    def remember_total(self, question: PlaceCount, kind: str, domain: str, places: int) -> None:
        """Remember the places in a domain, until one of its nodes changes."""
        self._totals.to(question, kind)[domain] = places

    @property
    def totalled(self) -> frozenset[str]:
        """The kinds of domains whose places are remembered."""
        return self._totals.kinds

    def forget_total(self, kind: str, domain: str) -> None:
        """A node of the domain has changed, or is in it no more."""
        self._totals.forget(kind, domain)

    @property
    def mix(self) -> Mix:
        """The mix of requests that scores weigh the future by now."""
        return self._mix.current

    def observe(self, request: GpuRequest) -> None:
        """Count a request that is seen for the first time into the mix."""
        if self._mix.observe(request):
            self.moment += 1
            self._answers.weights_changed()

    def size(self) -> Size:
        """How much is remembered."""
        return Size(len(self._numbers), *self._answers.size())

    def clear(self) -> None:
        """Forget every answer."""
        self._answers.clear()
        self._places.clear()
        self._totals = Totals()

    def _look(
        self,
        request: GpuRequest,
        names: Sequence[str],
        nodes: Mapping[NodeName, NodeFacts],
        look: Look,
        scores: bool,
    ) -> Look:
        table, states = self._answers.to(request), look.states
        distinct = {state for state in look.distinct if state is not None}
        look.decisions = {s: table.decisions[s] for s in distinct if s in table.decisions}
        todo = distinct - look.decisions.keys()
        if scores:
            passing = {s for s, decision in look.decisions.items() if decision.rejection is None}
            for state in passing:
                merit = table.weigh(state, look.mix)
                if merit is not None:
                    look.merits[state] = merit
            todo |= passing - look.merits.keys()
        some = dict(zip(states, names, strict=True)) if todo else {}
        for at, name in some.items():  # in the order in which the nodes were asked about
            if at in todo and at is not None:
                wanted = look.unweighed if at in look.decisions else look.missing
                wanted[at] = nodes[NodeName(name)]
        return look
