"""PodDisruptionBudgets from the API server into the cluster.

Nobody waits for them: as long as their list has not come, nothing is planned that evicts pods.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.budgetobjects import BudgetObject, budget_of
from scheduler_extender.state.pods.budgets import Budget

log = structlog.get_logger(__name__)

BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"


_decode = msgspec.json.Decoder(BudgetObject).decode


class BudgetSink:
    """PodDisruptionBudgets into the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], Budget] = {}

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list. Where one of it cannot be read none is known."""
        try:
            self._known = dict(_read(raw) for raw in objects)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("a PodDisruptionBudget cannot be read", problem=str(error))
            self._cluster.budgets = None
        else:
            self._tell()

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a budget that is new or changed."""
        where, found = _read(obj)
        self._known[where] = found
        self._tell()

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        gone = _decode(obj).metadata
        self._known.pop((gone.namespace, gone.name), None)
        self._tell()

    def _tell(self) -> None:
        self._cluster.budgets = tuple(self._known[where] for where in sorted(self._known))


def _read(obj: msgspec.Raw) -> tuple[tuple[str, str], Budget]:
    """A budget by its namespace and name."""
    found = budget_of(_decode(obj))
    return (found.namespace, found.name), found
