"""What is remembered about many nodes at once: the state of each, and the answers of these states.

The cluster's lock guards it. A look at thousands of nodes is a look-up for each; finding the state
of a node that has changed costs more, so that is done for some nodes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.state.answers import Answers, State, States
from scheduler_extender.state.decision import Decision
from scheduler_extender.state.faults import Faults
from scheduler_extender.state.mix import RequestMix
from scheduler_extender.state.node import NodeFacts
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest
from topology.core.scoring import Merit, Mix, Prospect, RequestClasses, classes_of

SLICE = 20
"""Nodes whose state is found while the lock is held, before others get it; a fraction of a
millisecond each, and a few on the largest nodes."""


class NotRememberedError(Exception):
    """An answer has to be worked out, or the cluster's lock is held by somebody else."""


@dataclass(slots=True)
class Look:
    """What is remembered of one request over some nodes, at one moment.

    ``states`` has each node's state, in the order asked; None where nobody told us of the node, or
    where its state cannot be found: then it is among the ``faulted``. ``missing`` are states
    without an answer, ``unweighed`` states that pass and have no merit under ``mix``, each with
    the facts of one node that is in it. ``unfound`` are nodes that have changed just now, or whose
    state there was no time to find.
    """

    states: list[State | None]
    mix: Mix
    decisions: dict[State, Decision] = field(default_factory=dict)
    merits: dict[State, Merit] = field(default_factory=dict)
    missing: dict[State, NodeFacts] = field(default_factory=dict)
    unweighed: dict[State, NodeFacts] = field(default_factory=dict)
    faulted: list[str] = field(default_factory=list)
    unfound: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing has to be worked out."""
        return not (self.missing or self.unweighed or self.faulted or self.unfound)


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
        self._mix = RequestMix()

    def unknown(
        self, resource: str, names: Sequence[str], nodes: Mapping[NodeName, NodeFacts]
    ) -> list[str]:
        """The nodes among ``names`` whose state has to be found."""
        known = self._states.setdefault(resource, {})
        return [name for name in names if name not in known and name in nodes]

    def find(
        self,
        resource: str,
        names: Sequence[str],
        nodes: Mapping[NodeName, NodeFacts],
        faulted: set[str],
    ) -> None:
        """Find the states of some nodes. Those for which that fails are added to ``faulted``."""
        for name in names:
            facts = nodes.get(NodeName(name))
            if facts is not None and name not in faulted:
                try:
                    self.state(facts, resource)
                except Exception as error:  # noqa: BLE001 (a listener logs it)
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
        at_once: bool,
    ) -> Look:
        """A look at ``names``. The states of a few nodes are found, if they have to be."""
        resource = request.resource
        known = self._states.setdefault(resource, {})
        states = list(map(known.get, names))
        unfound: list[str] = []
        if None in states:
            new = [name for name in self.unknown(resource, names, nodes) if name not in faulted]
            if at_once and len(new) > AT_ONCE_STATES:
                raise NotRememberedError
            self.find(resource, new[:SLICE], nodes, faulted)
            states, unfound = list(map(known.get, names)), new[SLICE:]
        look = self._look(request, names, nodes, states, scores=scores)
        look.faulted, look.unfound = sorted(faulted), unfound
        return look

    def state(self, facts: NodeFacts, resource: str) -> State:
        """The state that a node is in, found now if it has to be."""
        states = self._states.setdefault(resource, {})
        if facts.name not in states:
            states[facts.name] = self._numbers.enter(facts.key(resource))
        return states[facts.name]

    def leave(self, name: NodeName) -> None:
        """A node has changed, or is gone; a state that no node is in any more is forgotten."""
        for states in self._states.values():
            state = states.pop(name, None)
            if state is not None and self._numbers.leave(state):
                self._answers.forget_state(state)

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

    @property
    def mix(self) -> Mix:
        """The mix of requests that scores weigh the future by now."""
        return self._mix.current

    def observe(self, request: GpuRequest) -> None:
        """Count a request that is seen for the first time into the mix."""
        if self._mix.observe(request):
            self._answers.weights_changed()

    def size(self) -> Size:
        """How much is remembered."""
        return Size(len(self._numbers), *self._answers.size())

    def clear(self) -> None:
        """Forget every answer."""
        self._answers.clear()

    def _look(
        self,
        request: GpuRequest,
        names: Sequence[str],
        nodes: Mapping[NodeName, NodeFacts],
        states: list[State | None],
        *,
        scores: bool,
    ) -> Look:
        table, look = self._answers.to(request), Look(states, self._mix.current)
        distinct = {state for state in set(states) if state is not None}
        look.decisions = {s: table.decisions[s] for s in distinct if s in table.decisions}
        todo = distinct - look.decisions.keys()
        if scores:
            passing = {s for s, decision in look.decisions.items() if decision.rejection is None}
            for state in passing:
                merit = table.weigh(state, look.mix)
                if merit is not None:
                    look.merits[state] = merit
            todo |= passing - look.merits.keys()
        for name, at in zip(names, states, strict=True) if todo else ():
            if at is not None and at in todo:
                wanted = look.unweighed if at in look.decisions else look.missing
                wanted[at] = nodes[NodeName(name)]
        return look
