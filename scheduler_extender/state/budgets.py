"""PodDisruptionBudgets: how many of some pods may be evicted now.

Two count by them, each in its own way. kube-scheduler may violate a budget and counts how often
(``filterPodsWithPDBViolation`` of its preemption); the Eviction API refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.selecting import Selector


@dataclass(frozen=True, slots=True)
class Budget:
    """One PodDisruptionBudget. ``selector`` is None where it selects nobody; empty, it selects all
    pods of the namespace.

    ``allowed`` is how many more of its pods may be evicted now, by its controller's word;
    ``disrupted`` are pods whose eviction it counts already, by name.
    """

    namespace: str
    name: str
    selector: Selector | None
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()

    def selects(self, pod: PodRecord) -> bool:
        """Whether the pod is one of its pods."""
        if self.selector is None or pod.namespace != self.namespace:
            return False
        labels = dict(pod.standing.labels)
        return all(wanted.matches(labels) for wanted in self.selector)


Budgets = tuple[Budget, ...]


def violations(victims: Sequence[PodRecord], budgets: Budgets) -> int:
    """How many of the evictions violate a budget, as kube-scheduler counts.

    The order of the victims is its own: the most important first. To it a budget with an empty
    selector selects nobody, nor is a pod without labels in any.
    """
    left = [budget.allowed for budget in budgets]
    found = 0
    for pod in victims:
        violated = False
        for i, budget in enumerate(budgets):
            if not budget.selector or not pod.standing.labels or not budget.selects(pod):
                continue
            if pod.name not in budget.disrupted:
                left[i] -= 1
                violated = violated or left[i] < 0
        found += violated
    return found


def refused(victims: Iterable[PodRecord], budgets: Budgets) -> PodRecord | None:
    """A victim that the Eviction API would refuse to evict beside the others; None where none is.

    It refuses a pod that is in two budgets, too. A pod that has not been started is in none.
    """
    left = [budget.allowed for budget in budgets]
    for pod in victims:
        if pod.phase != "Running":
            continue
        over = [i for i, budget in enumerate(budgets) if budget.selects(pod)]
        if len(over) > 1:
            return pod
        for i in over:
            if pod.name not in budgets[i].disrupted:
                left[i] -= 1
            if left[i] < 0:
                return pod
    return None
