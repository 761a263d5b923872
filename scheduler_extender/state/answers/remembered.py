"""The answers that are remembered: by request, and by the state that a node is in.

A *state* is a number for all that a node's answers over one resource depend on
(:meth:`.NodeFacts.key`): nodes with one number answer every request alike, so that a request over
thousands of nodes costs one evaluation for each distinct state and a look-up for each node. A state
is forgotten, with its answers, when no node is in it any more.

Nothing here is safe for several threads: the cluster's lock guards it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.arrivals import Arrivals
from topology.core.devices import MIB
from topology.core.remembering import Memory
from topology.core.requests import GpuRequest
from topology.core.scoring import Merit, Mix, Prospect, RequestClasses, classes_of

State = int

REMEMBERED_REQUESTS = 128
REQUESTS_BYTES = 8 * MIB
"""The bytes of the requests themselves that are remembered."""
REMEMBERED_ANSWERS = 400_000
"""Answers of one state to one request, over all requests: about 100 bytes each, 40 MB in all. The
requests that were asked longest ago are forgotten first."""


@dataclass(slots=True)
class Table:
    """The remembered answers to one request, by state.

    ``prospects`` have what placing the request there would cost each of the ``classes`` of
    requests, and ``merits`` the same under the current weights of the classes.
    """

    decisions: dict[State, Decision] = field(default_factory=dict)
    prospects: dict[State, Prospect] = field(default_factory=dict)
    merits: dict[State, Merit] = field(default_factory=dict)
    classes: RequestClasses = ()

    def weigh(self, state: State, mix: Mix) -> Merit | None:
        """The merit of a state under ``mix``; None where it has not been worked out."""
        merit = self.merits.get(state)
        if merit is None and self.classes == classes_of(mix) and state in self.prospects:
            merit = self.merits[state] = self.prospects[state].weighed(mix)
        return merit

    def put_prospect(self, state: State, prospect: Prospect, classes: RequestClasses) -> None:
        """Remember what a placement in this state would cost each class."""
        if self.classes != classes:
            self.classes = classes
            self.prospects.clear()
            self.merits.clear()
        self.prospects[state] = prospect

    def forget(self, state: State) -> bool:
        """Forget a state; whether there was an answer."""
        self.prospects.pop(state, None)
        self.merits.pop(state, None)
        return self.decisions.pop(state, None) is not None


@dataclass(frozen=True, slots=True)
class PlaceCount:
    """A question about places: how many pods of this request, at most ``most``, a node takes with
    those that are ``kept`` a place there."""

    request: GpuRequest
    most: int
    kept: tuple[Arrivals, ...] = ()


class Places:
    """The places that are remembered, by state and question.

    Numbers of states are given once, so what is no longer asked does no harm.
    """

    def __init__(self) -> None:
        self._known = Memory[tuple[State, GpuRequest, int, frozenset[Arrivals]], int]()

    def get(self, state: State, question: PlaceCount) -> int | None:
        """The places in a state, None where they are not remembered."""
        return self._known.get((state, question.request, question.most, frozenset(question.kept)))

    def put(self, state: State, question: PlaceCount, places: int) -> None:
        """Remember the places in a state."""
        key = (state, question.request, question.most, frozenset(question.kept))
        self._known.put(key, places)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


class Totals:
    """The places in whole domains that are remembered, by question and kind of domain."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[PlaceCount, str], dict[str, int]] = OrderedDict()
        self._bytes = 0
        self.kinds: frozenset[str] = frozenset()

    def to(self, question: PlaceCount, kind: str) -> dict[str, int]:
        """The table of a question and a kind, which counts as asked now."""
        if (question, kind) not in self._tables:
            self._tables[question, kind] = {}
            self._bytes += _bytes_of_question(question)
            while len(self._tables) > 1 and (
                len(self._tables) > REMEMBERED_REQUESTS or self._bytes > REQUESTS_BYTES
            ):
                (oldest, _), _ = self._tables.popitem(last=False)
                self._bytes -= _bytes_of_question(oldest)
            self.kinds = frozenset(kind for _, kind in self._tables)
        self._tables.move_to_end((question, kind))
        return self._tables[question, kind]

    def forget(self, kind: str, domain: str) -> None:
        """A domain has changed."""
        for (_, other), table in self._tables.items():
            if other == kind:
                table.pop(domain, None)


def _bytes_of_question(question: PlaceCount) -> int:
    kept = sum(each.request.shared_bytes for each in question.kept)
    return question.request.shared_bytes + kept


class Answers:
    """The tables of the requests that were asked lately, within three bounds."""

    def __init__(self) -> None:
        self._tables: OrderedDict[GpuRequest, Table] = OrderedDict()
        self._count = self._bytes = 0

    def to(self, request: GpuRequest) -> Table:
        """The table of a request, which counts as asked now."""
        table = self._tables.get(request)
        if table is None:
            table = self._tables[request] = Table()
            self._bytes += request.shared_bytes
            self._forget_oldest()
        else:
            self._tables.move_to_end(request)
        return table

    def put(self, request: GpuRequest, state: State, decision: Decision) -> None:
        """Remember an answer."""
        table = self.to(request)
        self._count += state not in table.decisions
        table.decisions[state] = decision
        self._forget_oldest()

    def forget_state(self, state: State) -> None:
        """Forget a state that no node is in any more."""
        for table in self._tables.values():
            self._count -= table.forget(state)

    def weights_changed(self) -> None:
        """Forget what was weighed; what it was weighed from stays."""
        for table in self._tables.values():
            table.merits.clear()

    def clear(self) -> None:
        """Forget every answer."""
        self._tables.clear()
        self._count = self._bytes = 0

    def size(self) -> tuple[int, int]:
        """How many requests are remembered, and how many answers to them."""
        return len(self._tables), self._count

    def _forget_oldest(self) -> None:
        """Forget the requests asked longest ago where there is too much; one stays."""
        while len(self._tables) > 1 and (
            len(self._tables) > REMEMBERED_REQUESTS
            or self._count > REMEMBERED_ANSWERS
            or self._bytes > REQUESTS_BYTES
        ):
            request, oldest = self._tables.popitem(last=False)
            self._count -= len(oldest.decisions)
            self._bytes -= request.shared_bytes


class States:
    """Gives the states their numbers, and counts the nodes that are in each."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, State] = {}
        self._keys: dict[State, Hashable] = {}
        self._nodes_in: Counter[State] = Counter()
        self._last = 0

    def enter(self, key: Hashable) -> State:
        """The number of a state that one more node is in."""
        state = self._numbers.get(key)
        if state is None:
            self._last += 1
            state = self._numbers[key] = self._last
            self._keys[state] = key
        self._nodes_in[state] += 1
        return state

    def leave(self, state: State) -> bool:
        """One node less is in this state; whether it was the last, and the state is forgotten."""
        self._nodes_in[state] -= 1
        if self._nodes_in[state]:
            return False
        del self._nodes_in[state], self._numbers[self._keys.pop(state)]
        return True

    def __len__(self) -> int:
        return len(self._keys)

    def lives(self, state: State) -> bool:
        """Whether some node is in this state."""
        return state in self._keys
