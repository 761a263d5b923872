"""PodDisruptionBudget objects of Kubernetes ↔ :class:`.budgets.Budget`.

https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_extender.excess import MOST_VALUES
from scheduler_extender.state.pods.budgets import Budget
from scheduler_extender.state.pods.selecting import LabelSelector, label_selector
from scheduler_extender.wire import ObjectMeta

KIND = "PodDisruptionBudget"
_LONG_AGO = "2000-01-01T00:00:00Z"


class _Spec(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _Status(msgspec.Struct, rename="camel", frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class BudgetObject(msgspec.Struct, frozen=True):
    """What we read of a PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


def budget_of(found: BudgetObject) -> Budget:
    """The object as a value. A selector that is too large counts as one that selects every pod and
    allows no eviction."""
    selector = found.spec.selector
    sane = selector is None or selector.size <= MOST_VALUES
    return Budget(
        found.metadata.namespace,
        found.metadata.name,
        None if selector is None else selector.read() if sane else (),
        found.status.disruptions_allowed if sane else 0,
        frozenset(found.status.disrupted_pods or ()),
    )


def manifest_of(budget: Budget) -> dict[str, Any]:
    """An object that :func:`budget_of` reads as this value."""
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
