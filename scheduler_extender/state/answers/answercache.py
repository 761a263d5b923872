"""The cached answers, by request and by the equivalence class of a node (:mod:`.classes`).

An answer from an earlier generation stays cached as long as it is still true. It is forgotten with
its equivalence class.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_extender.state.answers.classes import ClassId, EquivalenceClasses
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.arrivals import Arrivals
from topology.core.devices import MIB
from topology.core.guaranteedcapacity import RequestClass
from topology.core.memo import Memo
from topology.core.mig import MIG_RESOURCE
from topology.core.requests import GpuRequest
from topology.core.scoring import (
    PRIOR,
    PlacementCost,
    RequestClasses,
    RequestMix,
    Score,
    classes_of,
)

CACHED_REQUESTS = 128
REQUESTS_BYTES = 8 * MIB  # of the cached requests themselves
# Answers of one class to one request, over all requests. Each takes about 100 bytes, so 40 MB in
# all. The requests that were asked longest ago are forgotten first.
CACHED_ANSWERS = 400_000

MEMORY = 200.0  # in pods; the weight of a pod fades to 1/e over so many later pods
# The prior weighs as much as this many pods at the start. It fades like pods do, but only to a
# tenth.
PRIOR_PODS = 20.0
# The weights of scores change only after so many pods, so that scores stay cached in between.
REFRESH = 32
MAX_KINDS = 8


@dataclass(slots=True)
class Table:
    """The cached answers to one request, by class."""

    decisions: dict[ClassId, Decision] = field(default_factory=dict)
    # the cost of a placement
    placement_costs: dict[ClassId, PlacementCost] = field(default_factory=dict)
    classes: RequestClasses = ()  # the request classes that the placement costs are about
    # the placement costs weighed by ``mix``
    node_scores: dict[ClassId, Score] = field(default_factory=dict)
    mix: RequestMix = ()

    def weighed(self, class_ids: Iterable[ClassId], mix: RequestMix) -> dict[ClassId, Score]:
        """Return the scores of some classes under ``mix``, as far as they have been computed."""
        if self.mix is not mix:
            self.mix = mix
            self.node_scores.clear()
        found = {class_id: self.node_scores.get(class_id) for class_id in class_ids}
        foreseen = self.placement_costs if self.classes == classes_of(mix) else {}
        for class_id in [s for s, score in found.items() if score is None and s in foreseen]:
            found[class_id] = self.node_scores[class_id] = foreseen[class_id].weighed(mix)
        return {class_id: score for class_id, score in found.items() if score is not None}

    def put_placement_costs(
        self, placement_costs: Mapping[ClassId, PlacementCost], classes: RequestClasses
    ) -> None:
        """Cache the cost of a placement in each of these equivalence classes of nodes.

        ``classes`` are the request classes that these costs are about.
        """
        if self.classes != classes:
            self.classes = classes
            self.placement_costs.clear()
            self.node_scores.clear()
        self.placement_costs |= placement_costs

    def forget(self, class_id: ClassId) -> bool:
        """Forget an equivalence class of nodes, and return whether there was an answer for it."""
        self.placement_costs.pop(class_id, None)
        self.node_scores.pop(class_id, None)
        return self.decisions.pop(class_id, None) is not None


@dataclass(frozen=True, slots=True)
class CapacityQuery:
    """A query for capacity: how many pods of this request a node takes beside its reservations.

    ``most`` bounds the answer. ``reserved`` are the pods with reservations on the node.
    ``cordoned`` says that cordoned nodes of a domain count, too.
    """

    request: GpuRequest
    most: int
    reserved: tuple[Arrivals, ...] = ()
    cordoned: bool = False

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes."""
        return self.request.shared_bytes + sum(each.request.shared_bytes for each in self.reserved)


@dataclass(frozen=True, slots=True)
class Size:
    """The number of cached values."""

    classes: int  # equivalence classes of nodes
    requests: int
    answers: int  # to these requests


class RequestMixTracker:
    """The mix of requests that the cluster has seen, which scores use to weigh the future.

    It counts requests by kind, and the latest count most.

    >>> mix = RequestMixTracker()
    >>> mix.current == PRIOR
    True
    """

    def __init__(self) -> None:
        self._weights: dict[RequestClass, float] = {}
        self._prior = PRIOR_PODS
        self._seen = 0
        self.current: RequestMix = PRIOR

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

    def _mix(self) -> RequestMix:
        weights = {kind: self._prior * share for kind, share in PRIOR}
        for kind, weight in self._weights.items():
            weights[kind] = weights.get(kind, 0.0) + weight
        top = sorted(weights.items(), key=lambda item: (-item[1], repr(item[0])))[:MAX_KINDS]
        whole = sum(weight for _, weight in top)
        self._weights = {k: w for k, w in self._weights.items() if w > 0.01}
        # Sort them independently of their weights, because values cached for these kinds outlive a
        # change of the weights.
        return tuple(
            (kind, round(weight / whole, 2))
            for kind, weight in sorted(top, key=lambda item: repr(item[0]))
        )


Sums = dict[str, int]  # the sum over the nodes of a domain, by domain


class AnswerCache:
    """The cache of all answers. Safe for many threads: ``lock`` is held only briefly."""

    def __init__(self, lock: threading.RLock, classes: EquivalenceClasses) -> None:
        self._lock = lock
        self._classes = classes
        classes.on_empty.append(self._forget)
        self._tables = OrderedDict[GpuRequest, Table]()
        # the number of answers in the tables, and the bytes of their requests
        self._answers = self._bytes = 0
        self._pod_capacities = Memo[tuple[ClassId, GpuRequest, int, frozenset[Arrivals]], int]()
        # whether domains hold pods with different requests (:mod:`.framework.groupquestion`)
        self.packed = Memo[Hashable, bool]()
        self._sums = OrderedDict[tuple[CapacityQuery | str, str], Sums]()
        self._sums_bytes = 0
        self.mix = RequestMixTracker()  # of the requests that the cluster has seen

    def _forget(self, class_id: ClassId) -> None:
        for table in self._tables.values():
            self._answers -= table.forget(class_id)

    # The answers by class.

    def known(
        self,
        request: GpuRequest,
        class_ids: Iterable[ClassId],
        mix: RequestMix | None,
        *,
        stores: bool,
    ) -> tuple[dict[ClassId, Decision], dict[ClassId, Score]]:
        """Return the cached decisions of some classes, and the scores of those that pass.

        Scores are those under ``mix``; None leaves them out. With ``stores`` the request counts as
        asked now, so its table stays cached longer.
        """
        with self._lock:
            table = self._table(request) if stores else self._tables.get(request, Table())
            known = table.decisions
            decisions = {class_id: known[class_id] for class_id in class_ids if class_id in known}
            passing = (class_id for class_id, each in decisions.items() if each.rejection is None)
            node_scores = {} if mix is None else table.weighed(passing, mix)
        return decisions, node_scores

    def put(
        self,
        request: GpuRequest,
        decisions: Mapping[ClassId, Decision],
        placement_costs: Mapping[ClassId, PlacementCost],
        classes: RequestClasses,
    ) -> None:
        """Cache answers, each as long as a node is in its class.

        Cache the placement costs only if ``classes`` are the request classes of the current mix.
        """
        with self._lock:
            table, class_ids = self._table(request), self._classes
            known = len(table.decisions)
            table.decisions |= {s: each for s, each in decisions.items() if s in class_ids}
            self._answers += len(table.decisions) - known
            if placement_costs and classes == classes_of(self.mix.current):
                table.put_placement_costs(
                    {s: p for s, p in placement_costs.items() if s in class_ids}, classes
                )
            self._forget_oldest()

    def _table(self, request: GpuRequest) -> Table:
        """Return the table of a request, which counts as asked now."""
        table = self._tables.get(request)
        if table is None:
            table = self._tables[request] = Table()
            self._bytes += request.shared_bytes
            self._forget_oldest()
        else:
            self._tables.move_to_end(request)
        return table

    def _forget_oldest(self) -> None:
        """Forget the oldest requests until the limits are met; one request stays."""
        while len(self._tables) > 1 and (
            len(self._tables) > CACHED_REQUESTS
            or self._answers > CACHED_ANSWERS
            or self._bytes > REQUESTS_BYTES
        ):
            request, oldest = self._tables.popitem(last=False)
            self._answers -= len(oldest.decisions)
            self._bytes -= request.shared_bytes

    # Capacity, by class and in whole domains.

    def pod_capacity(self, question: CapacityQuery, class_id: ClassId) -> int | None:
        """Return the cached capacity of the nodes of a class; None if it is not cached.

        A class id is never used again, so entries of former classes do no harm.
        """
        return self._pod_capacities.get(
            (class_id, question.request, question.most, frozenset(question.reserved))
        )

    def put_pod_capacity(self, question: CapacityQuery, class_id: ClassId, capacity: int) -> None:
        """Cache the capacity of a class if a node is in it."""
        with self._lock:
            if class_id in self._classes:
                key = (class_id, question.request, question.most, frozenset(question.reserved))
                self._pod_capacities.put(key, capacity)

    def changed(self, domains: Callable[[str], Iterable[str | None]]) -> None:
        """Forget the sums of the domains of a changed node.

        ``domains`` returns the domains of a kind that the node is in, or was in.
        """
        for (_, kind), sums in self._sums.items():
            for domain in domains(kind):
                sums.pop(domain or "", None)

    def sums(
        self,
        question: CapacityQuery | str,
        kind: str,
        domains: Iterable[str],
        of: Mapping[str, str],
        generation: int,
    ) -> Sums:
        """Return the cached sums over these domains at a generation.

        ``of`` is the domain of each node at that generation.
        """
        with self._lock:
            since = self._classes.counted_otherwise_since(generation)
            if since is None:
                return {}
            known, changed = self._sums_of(question, kind), {of.get(name) for name in since}
            return {each: known[each] for each in domains if each in known and each not in changed}

    def put_sums(
        self,
        question: CapacityQuery | str,
        kind: str,
        sums: Sums,
        nodes: Mapping[str, Collection[str]],
        generation: int,
    ) -> None:
        """Cache the sums of a generation until a node of the domain changes.

        Nothing is cached if a node has begun to count in other sums since then. It may be a node
        that was not among these ``nodes``, and is now.
        """
        with self._lock:
            known = self._sums_of(question, kind)
            since = self._classes.counted_otherwise_since(generation)
            for domain, total in sums.items() if since is not None else ():
                if not since or since.isdisjoint(nodes[domain]):
                    known[domain] = total

    def _sums_of(self, question: CapacityQuery | str, kind: str) -> Sums:
        """Return the sums for a query and a kind of domain, which count as asked now."""
        known = self._sums.get((question, kind))
        if known is None:
            known = self._sums[question, kind] = {}
            self._sums_bytes += _bytes_of(question)
            while len(self._sums) > 1 and (
                len(self._sums) > CACHED_REQUESTS or self._sums_bytes > REQUESTS_BYTES
            ):
                (oldest, _), _ = self._sums.popitem(last=False)
                self._sums_bytes -= _bytes_of(oldest)
        self._sums.move_to_end((question, kind))
        return known

    def size(self) -> Size:
        """Return how much is cached."""
        with self._lock:
            return Size(len(self._classes), len(self._tables), self._answers)

    def clear(self) -> None:
        """Forget every answer, so that the next requests are evaluated again."""
        with self._lock:
            self._tables.clear()
            self._sums.clear()
            self._pod_capacities.clear()
            self.packed.clear()
            self._answers = self._bytes = self._sums_bytes = 0


def _bytes_of(question: CapacityQuery | str) -> int:
    return question.shared_bytes if isinstance(question, CapacityQuery) else len(question)
