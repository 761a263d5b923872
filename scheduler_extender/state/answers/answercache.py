"""The answers that are remembered: by request, and by the state that a node is in
(:mod:`.classes`).

An answer about a former moment is remembered as long as it is still true, and forgotten with its
state.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_extender.state.answers.classes import EquivalenceClasses, State
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.arrivals import Arrivals
from topology.core.devices import MIB
from topology.core.memo import Memo
from topology.core.mig import MIG_RESOURCE
from topology.core.requests import GpuRequest
from topology.core.scoring import (
    PRIOR,
    Merit,
    Mix,
    Prospect,
    RequestClass,
    RequestClasses,
    classes_of,
)

REMEMBERED_REQUESTS = 128
REQUESTS_BYTES = 8 * MIB  # of the requests themselves that are remembered
REMEMBERED_ANSWERS = 400_000
"""Answers of one state to one request, over all requests: about 100 bytes each, 40 MB in all. The
requests that were asked longest ago are forgotten first."""

MEMORY = 200.0  # pods; the weight of a pod fades to 1/e over so many later ones
# How many pods the prior is worth at the start; it fades like everything else, down to a tenth.
PRIOR_PODS = 20.0
# Scores are weighed anew after so many pods, not after each: they stay remembered in between.
REFRESH = 32
MAX_KINDS = 8


@dataclass(slots=True)
class Table:
    """The remembered answers to one request, by state."""

    decisions: dict[State, Decision] = field(default_factory=dict)
    prospects: dict[State, Prospect] = field(default_factory=dict)  # what a placement would cost
    classes: RequestClasses = ()  # the kinds of requests that the prospects are about
    merits: dict[State, Merit] = field(default_factory=dict)  # the same, weighed by the mix
    mix: Mix = ()

    def weighed(self, states: Iterable[State], mix: Mix) -> dict[State, Merit]:
        """The merits of some states under ``mix``, as far as they have been worked out."""
        if self.mix is not mix:
            self.mix = mix
            self.merits.clear()
        found = {state: self.merits.get(state) for state in states}
        foreseen = self.prospects if self.classes == classes_of(mix) else {}
        for state in [s for s, merit in found.items() if merit is None and s in foreseen]:
            found[state] = self.merits[state] = foreseen[state].weighed(mix)
        return {state: merit for state, merit in found.items() if merit is not None}

    def put_prospects(self, prospects: Mapping[State, Prospect], classes: RequestClasses) -> None:
        """Remember what a placement in these states would cost each class."""
        if self.classes != classes:
            self.classes = classes
            self.prospects.clear()
            self.merits.clear()
        self.prospects |= prospects

    def forget(self, state: State) -> bool:
        """Forget a state; whether there was an answer."""
        self.prospects.pop(state, None)
        self.merits.pop(state, None)
        return self.decisions.pop(state, None) is not None


@dataclass(frozen=True, slots=True)
class PlaceCount:
    """A question about places: how many pods of this request, at most ``most``, a node takes beside
    the pods for which a place is ``kept`` there."""

    request: GpuRequest
    most: int
    kept: tuple[Arrivals, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes."""
        return self.request.shared_bytes + sum(each.request.shared_bytes for each in self.kept)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is remembered."""

    states: int  # that nodes are in
    requests: int
    answers: int  # to them


class RequestMix:
    """The mix of requests that the cluster has been seeing: what scores weigh the future by. It
    counts them by kind, the latest weighing most.

    >>> mix = RequestMix()
    >>> mix.current == PRIOR
    True
    """

    def __init__(self) -> None:
        self._weights: dict[RequestClass, float] = {}
        self._prior = PRIOR_PODS
        self._seen = 0
        self.current: Mix = PRIOR

    def observe(self, request: GpuRequest) -> None:
        """Count the request of a pod that is seen for the first time.

        Pods that ask for MIG instances by profile say nothing about pods that want GPUs.
        """
        if MIG_RESOURCE in request.resource:
            return
        fade = 1 - 1 / MEMORY
        for kind in self._weights:
            self._weights[kind] *= fade
        self._prior = max(self._prior * fade, PRIOR_PODS / 10)
        kind = RequestClass(request.count, request.constraints)
        self._weights[kind] = self._weights.get(kind, 0.0) + 1
        self._seen += 1
        if self._seen % REFRESH == 0:
            self.current = self._mix()

    def _mix(self) -> Mix:
        weights = {kind: self._prior * share for kind, share in PRIOR}
        for kind, weight in self._weights.items():
            weights[kind] = weights.get(kind, 0.0) + weight
        top = sorted(weights.items(), key=lambda item: (-item[1], repr(item[0])))[:MAX_KINDS]
        whole = sum(weight for _, weight in top)
        self._weights = {k: w for k, w in self._weights.items() if w > 0.01}
        # In an order of their own: what is remembered of kinds outlives a change of weights.
        return tuple(
            (kind, round(weight / whole, 2))
            for kind, weight in sorted(top, key=lambda item: repr(item[0]))
        )


Sums = dict[str, int]
"""What the nodes of whole domains have together, by domain."""


class AnswerCache:
    """All that is remembered of answers. Safe for many threads: ``lock`` is held for moments."""

    def __init__(self, lock: threading.RLock, classes: EquivalenceClasses) -> None:
        self._lock = lock
        self._classes = classes
        classes.on_empty.append(self._forget)
        self._tables = OrderedDict[GpuRequest, Table]()
        self._answers = self._bytes = 0  # in the tables, and of their requests
        self._places = Memo[tuple[State, GpuRequest, int, frozenset[Arrivals]], int]()
        self._sums = OrderedDict[tuple[PlaceCount | str, str], Sums]()
        self._sums_bytes = 0
        self.mix = RequestMix()  # of requests, as the cluster has been seeing them

    def _forget(self, state: State) -> None:
        for table in self._tables.values():
            self._answers -= table.forget(state)

    # The answers by state.

    def known(
        self, request: GpuRequest, states: Iterable[State], mix: Mix | None, *, counts: bool
    ) -> tuple[dict[State, Decision], dict[State, Merit]]:
        """The remembered decisions of some states, and the merits of those that pass, under a mix
        of requests; None leaves the merits out. The request ``counts`` as asked now."""
        with self._lock:
            table = self._table(request) if counts else self._tables.get(request, Table())
            known = table.decisions
            decisions = {state: known[state] for state in states if state in known}
            passing = (state for state, each in decisions.items() if each.rejection is None)
            merits = {} if mix is None else table.weighed(passing, mix)
        return decisions, merits

    def remember(
        self,
        request: GpuRequest,
        decisions: Mapping[State, Decision],
        prospects: Mapping[State, Prospect],
        classes: RequestClasses,
    ) -> None:
        """Remember answers, each as long as some node is in that state; and prospects, if the
        classes are those asked now."""
        with self._lock:
            table, states = self._table(request), self._classes
            known = len(table.decisions)
            table.decisions |= {s: each for s, each in decisions.items() if s in states}
            self._answers += len(table.decisions) - known
            if prospects and classes == classes_of(self.mix.current):
                table.put_prospects({s: p for s, p in prospects.items() if s in states}, classes)
            self._forget_oldest()

    def _table(self, request: GpuRequest) -> Table:
        """The table of a request, which counts as asked now."""
        table = self._tables.get(request)
        if table is None:
            table = self._tables[request] = Table()
            self._bytes += request.shared_bytes
            self._forget_oldest()
        else:
            self._tables.move_to_end(request)
        return table

    def _forget_oldest(self) -> None:
        """Forget the requests asked longest ago where there is too much; one stays."""
        while len(self._tables) > 1 and (
            len(self._tables) > REMEMBERED_REQUESTS
            or self._answers > REMEMBERED_ANSWERS
            or self._bytes > REQUESTS_BYTES
        ):
            request, oldest = self._tables.popitem(last=False)
            self._answers -= len(oldest.decisions)
            self._bytes -= request.shared_bytes

    # Places, by state and in whole domains.

    def places(self, question: PlaceCount, state: State) -> int | None:
        """The places in a state, None where they are not remembered.

        Numbers of states are given once, so what is no longer asked does no harm.
        """
        return self._places.get((state, question.request, question.most, frozenset(question.kept)))

    def remember_places(self, question: PlaceCount, state: State, places: int) -> None:
        """Remember it while some node is in that state."""
        with self._lock:
            if state in self._classes:
                key = (state, question.request, question.most, frozenset(question.kept))
                self._places.put(key, places)

    def changed(self, domains: Callable[[str], Iterable[str | None]]) -> None:
        """A node has changed. ``domains`` gives those of a kind that it is in, or was."""
        for (_, kind), sums in self._sums.items():
            for domain in domains(kind):
                sums.pop(domain or "", None)

    def sums(
        self,
        question: PlaceCount | str,
        kind: str,
        domains: Iterable[str],
        of: Mapping[str, str],
        moment: int,
    ) -> Sums:
        """What is remembered of the nodes of these domains together, as they were at a moment.
        ``of`` is the domain of each node then."""
        with self._lock:
            since = self._classes.counted_otherwise_since(moment)
            if since is None:
                return {}
            known, changed = self._sums_of(question, kind), {of.get(name) for name in since}
            return {each: known[each] for each in domains if each in known and each not in changed}

    def remember_sums(
        self,
        question: PlaceCount | str,
        kind: str,
        sums: Sums,
        nodes: Mapping[str, Collection[str]],
        moment: int,
    ) -> None:
        """Remember what was summed up at a moment, until a node of the domain changes.

        Nothing is remembered if a node has begun to count in other sums since then: it may be one
        that was not among these ``nodes``, and is now.
        """
        with self._lock:
            known = self._sums_of(question, kind)
            since = self._classes.counted_otherwise_since(moment)
            for domain, total in sums.items() if since is not None else ():
                if not since or since.isdisjoint(nodes[domain]):
                    known[domain] = total

    def _sums_of(self, question: PlaceCount | str, kind: str) -> Sums:
        """The sums for a question and a kind of domain, which count as asked now."""
        known = self._sums.get((question, kind))
        if known is None:
            known = self._sums[question, kind] = {}
            self._sums_bytes += _bytes_of(question)
            while len(self._sums) > 1 and (
                len(self._sums) > REMEMBERED_REQUESTS or self._sums_bytes > REQUESTS_BYTES
            ):
                (oldest, _), _ = self._sums.popitem(last=False)
                self._sums_bytes -= _bytes_of(oldest)
        self._sums.move_to_end((question, kind))
        return known

    def size(self) -> Size:
        """How much is remembered."""
        with self._lock:
            return Size(len(self._classes), len(self._tables), self._answers)

    def clear(self) -> None:
        """Forget every answer; the next ones are worked out anew."""
        with self._lock:
            self._tables.clear()
            self._sums.clear()
            self._places.clear()
            self._answers = self._bytes = self._sums_bytes = 0


def _bytes_of(question: PlaceCount | str) -> int:
    return question.shared_bytes if isinstance(question, PlaceCount) else len(question)
