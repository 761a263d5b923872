"""Better victims than kube-scheduler's, on a node that it has chosen.

Its dry run counts devices and knows no links. Where the pod would get no promise once its victims
are gone, others are looked for whose GPUs complete the set: as few as possible, of those the ones
of the lowest priority, and none that violates a budget if others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.membership import Group
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.budgets import Budgets, Violations
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import Amounts
from scheduler_extender.unblocking.victims import (
    Reckoning,
    candidates,
    frees_enough,
    importance,
)
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

MAX_SETS = 5_000
"""Sets of so many victims that are looked at on one node, the least important first; of 8 pods
there are 70 at most."""


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that asks for evictions.

    ``asks`` is what it asks for besides devices, ``particular`` that it minds other pods of the
    node (anti-affinity, host ports, spread): then all of kube-scheduler's victims have to go.
    ``group`` is its group, whose members are no victims: the group would lack them. ``gang`` is the
    same where it is a gang.
    """

    uid: PodUid
    request: GpuRequest
    priority: int
    asks: Amounts = ()
    particular: bool = False
    group: Group | None = None
    gang: Group | None = None

    def may_evict(self, pod: PodRecord) -> bool:
        """Whether a pod may be evicted for it."""
        return pod.standing.priority < self.priority and not self.shares_group(pod)

    def shares_group(self, pod: PodRecord) -> bool:
        """Whether a pod is in the same group."""
        theirs = pod.membership
        return self.group is not None and theirs is not None and theirs.group == self.group


def replaced(
    facts: NodeFacts,
    pod: Preemptor,
    chosen: Sequence[PodRecord],
    budgets: Budgets,
    passes: Callable[[tuple[PodRecord, ...]], bool],
    deadline: Deadline = NO_DEADLINE,
) -> tuple[PodRecord, ...] | None:
    """The victims to evict in place of those ``chosen``, the most important first; None where none
    would do. ``passes`` says whether the pod passes once some have let go.

    Raises :class:`.OutOfTimeError` after the deadline.
    """
    able = list(filter(pod.may_evict, candidates(facts, pod.request.resource)))
    needed = {each.uid for each in chosen} if pod.particular else set()
    if not needed <= {each.uid for each in able}:
        return None
    reckoning = Reckoning(facts, pod.request, pod.uid, able)
    if not reckoning.usable:
        return None
    forbidding = _forbidding(able, budgets, deadline)
    violations = Violations(_each_in_time(able, deadline), forbidding)

    def worth_trying(victims: tuple[PodRecord, ...], forbidden: bool) -> bool:
        deadline.check()
        return (
            needed <= {each.uid for each in victims}
            and (violations.count(victims) > 0) is forbidden
            and reckoning.worth_trying(victims)
            and frees_enough(victims, chosen, pod.asks)
        )

    for forbidden in (False, True) if forbidding else (False,):
        for size in range(1, len(able) + 1):
            sets = [found for found in _sets(able, size) if worth_trying(found, forbidden)]
            sets.sort(key=lambda found: _cost(found, violations))
            best = next((found for found in sets if passes(found)), None)
            if best is not None:
                return best
    return None


def _each_in_time(pods: Iterable[PodRecord], deadline: Deadline) -> Iterator[PodRecord]:
    for pod in pods:
        deadline.check()
        yield pod


def _forbidding(pods: Sequence[PodRecord], budgets: Budgets, deadline: Deadline) -> Budgets:
    """The budgets that some of the pods are in, of thousands maybe."""
    namespaces = {pod.namespace for pod in pods}
    found = []
    for budget in budgets:
        if budget.namespace in namespaces:
            deadline.check()
            if any(map(budget.selects, pods)):
                found.append(budget)
    return tuple(found)


def _sets(pods: Sequence[PodRecord], size: int) -> Iterator[tuple[PodRecord, ...]]:
    """Sets of so many pods, each by importance; the least important ones first."""
    upwards = list(reversed(pods))
    for found in islice(combinations(upwards, size), MAX_SETS):
        yield tuple(reversed(found))


def _cost(victims: tuple[PodRecord, ...], violations: Violations) -> tuple[object, ...]:
    """Sorts sets of one size: fewer violated budgets, a lower highest priority, a lower sum."""
    priorities = [pod.standing.priority for pod in victims]
    order = tuple(chain.from_iterable(importance(pod) for pod in victims))
    return (violations.count(victims), max(priorities), sum(priorities), _later_first(order))


def _later_first(order: tuple[object, ...]) -> tuple[object, ...]:
    """Who has run for the shortest time goes first: less work is lost."""
    return tuple(-part if isinstance(part, float) else part for part in order)
