"""The settings that an operator chooses, and what a node answers to a request."""

from dataclasses import dataclass
from enum import Enum

from scheduler_extender.annotations import MANAGED
from topology.core.placement import Assessment, Rejection, Verdict


class Refusals(Enum):
    """Which nodes are closed to a pod because their kubelets would refuse it."""

    CERTAIN = "certain"  # nodes whose kubelet surely refuses it
    POSSIBLE = "possible"  # also nodes whose kubelet may refuse it, while other nodes are left
    IGNORE = "ignore"  # no nodes; constraints count nevertheless


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that an operator chooses."""

    require: Verdict = Verdict.EXPECTED  # the weakest verdict on which a required pod passes
    stale_after: float | None = 180.0  # seconds since the last changed report; None for never
    managed: tuple[str, ...] = MANAGED
    all_pods_known: bool = True  # the source names every pod (see :func:`.ledger.ledger`)
    refusals: Refusals = Refusals.CERTAIN
    shadow: bool = False  # the verbs reject nothing (:mod:`.verbs.shadowing`)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node answers to a request. Nodes of one equivalence class share one decision."""

    rejection: Rejection | None = None  # None if the pod passes
    assessment: Assessment | None = None  # None if nothing can be decided about the node
    also: tuple[Rejection, ...] = ()  # further reasons to reject the pod

    @property
    def verdict(self) -> str:
        """The word of the verdict; ``unknown`` if there is no usable record."""
        return self.assessment.verdict.value if self.assessment else "unknown"

    @property
    def guaranteed(self) -> bool:
        """Whether the verdict is ``guaranteed``."""
        return self.assessment is not None and self.assessment.verdict is Verdict.GUARANTEED
