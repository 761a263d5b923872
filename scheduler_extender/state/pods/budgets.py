"""PodDisruptionBudgets: how many of some pods may be evicted now.

Two components count by them in different ways. kube-scheduler may violate a budget, and counts how
often (``filterPodsWithPDBViolation`` of its preemption). The Eviction API refuses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler_extender.podlimits import MOST_VALUES
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.selecting import LabelSelector, Selector, label_selector
from scheduler_extender.wire import ObjectMeta


@dataclass(frozen=True, slots=True)
class Budget:
    """One PodDisruptionBudget."""

    namespace: str
    name: str
    selector: Selector | None  # None selects no pod; empty selects every pod of the namespace
    allowed: int = 0  # how many more pods may be evicted now, as its controller says
    disrupted: frozenset[str] = frozenset()  # the pods, by name, whose eviction it already counts

    def selects(self, pod: PodRecord) -> bool:
        """Check whether the budget covers a pod."""
        if self.selector is None or pod.namespace != self.namespace:
            return False
        labels = dict(pod.attributes.labels)
        return all(wanted.matches(labels) for wanted in self.selector)


Budgets = tuple[Budget, ...]


class Violations:
    """Counts how many of some evictions violate a budget, as kube-scheduler does.

    For kube-scheduler a budget with an empty selector selects no pod, and no budget selects a pod
    without labels. The budgets of each of ``pods`` are looked up once.
    """

    def __init__(self, pods: Iterable[PodRecord], budgets: Budgets) -> None:
        self._allowed = [budget.allowed for budget in budgets]
        self._counts_in = {
            pod.uid: [
                i
                for i, budget in enumerate(budgets)
                if budget.selector
                and pod.attributes.labels
                and pod.name not in budget.disrupted
                and budget.selects(pod)
            ]
            for pod in pods
        }

    def count(self, victims: Sequence[PodRecord]) -> int:
        """Return how many of the evictions violate a budget.

        The victims are in kube-scheduler's order: the most important first.
        """
        taken: dict[int, int] = {}
        violations = 0
        for pod in victims:
            violated = False
            for i in self._counts_in[pod.uid]:
                taken[i] = taken.get(i, 0) + 1
                violated = violated or taken[i] > self._allowed[i]
            violations += violated
        return violations


def violations(victims: Sequence[PodRecord], budgets: Budgets) -> int:
    """Return how many of the evictions violate a budget; see :class:`Violations`."""
    return Violations(victims, budgets).count(victims)


def refused(victims: Iterable[PodRecord], budgets: Budgets) -> PodRecord | None:
    """Return the first victim that the Eviction API would refuse to evict; None if there is none.

    It counts the victims before it as evicted. The API also refuses a pod that is in two budgets. A
    pod that has not been started is in none.
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


KIND = "PodDisruptionBudget"
_LONG_AGO = "2000-01-01T00:00:00Z"


class _Spec(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _Status(msgspec.Struct, rename="camel", frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class BudgetObject(msgspec.Struct, frozen=True):
    """What is read of a PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


def budget_of(written: BudgetObject) -> Budget:
    """Return the object as a value.

    A selector that is too large counts as one that selects every pod and allows no eviction.
    """
    selector = written.spec.selector
    sane = selector is None or selector.size <= MOST_VALUES
    return Budget(
        written.metadata.namespace,
        written.metadata.name,
        None if selector is None else selector.read() if sane else (),
        written.status.disruptions_allowed if sane else 0,
        frozenset(written.status.disrupted_pods or ()),
    )


def budget_manifest(budget: Budget) -> dict[str, Any]:
    """Return an object that :func:`budget_of` reads as this value."""
    spec = {} if budget.selector is None else {"selector": label_selector(budget.selector)}
    return {
        "apiVersion": "policy/v1",
        "kind": KIND,
        "metadata": {"name": budget.name, "namespace": budget.namespace},
        "spec": spec,
        "status": {
            "disruptionsAllowed": budget.allowed,
            "disruptedPods": dict.fromkeys(sorted(budget.disrupted), _LONG_AGO),
        },
    }
