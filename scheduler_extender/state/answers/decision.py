"""What an operator chooses, and what a node answers to a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scheduler_extender.annotations import MANAGED
from topology.core.placement import Assessment, Rejection, Verdict


class Refusals(Enum):
    """Which nodes are closed to a pod because their kubelets would refuse it."""

    CERTAIN = "certain"  # those whose kubelet surely refuses it
    POSSIBLE = "possible"  # also those whose kubelet may refuse it, while others are left
    IGNORE = "ignore"  # none; constraints count all the same


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses."""

    require: Verdict = Verdict.EXPECTED  # the weakest verdict on which a required pod passes
    stale_after: float | None = 180.0  # seconds since the last changed report; None for never
    managed: tuple[str, ...] = MANAGED
    all_pods_known: bool = True  # the source names every pod (see :func:`.ledger.ledger`)
    refusals: Refusals = Refusals.CERTAIN
    shadow: bool = False  # the verbs refuse nothing (:mod:`.verbs.shadowing`)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node answers to a request. Nodes in one state share one."""

    rejection: Rejection | None = None  # None if the pod passes
    assessment: Assessment | None = None  # None if nothing can be decided about the node
    also: tuple[Rejection, ...] = ()  # what refuses the pod, too

    @property
    def verdict(self) -> str:
        """The verdict's word; ``unknown`` where there is no usable record."""
        return self.assessment.verdict.value if self.assessment else "unknown"
