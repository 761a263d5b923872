"""Whose names a reader may see, and what pods of a node are called."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodName
from topology.core.devices import PodUid

HIDDEN = "a pod of another namespace"
GONE = "a pod that is gone"
"""In place of a pod's name, if nobody says it any more."""


@dataclass(frozen=True, slots=True)
class View:
    """Who looks, and when."""

    today: float  # seconds since 1970
    namespaces: frozenset[str] | None = None  # those whose pods the reader may see; None: all

    def name(self, namespace: str, name: str) -> str:
        """A pod's name as the reader may see it."""
        hidden = self.namespaces is not None and namespace not in self.namespaces
        return HIDDEN if hidden else f"{namespace}/{name}"

    def seconds_since(self, moment: float | None) -> float | None:
        """How long ago a moment was; None if nobody knows the moment."""
        return None if moment is None else max(0.0, self.today - moment)


EVERYBODYS = View(0.0)
"""Sees all pods; what it says of times is of no use."""


def withheld(facts: NodeFacts) -> str:
    """What is said of a GPU that nobody holds and nobody gets."""
    return "in no ResourceSlice, or tainted" if facts.by_dra else "not handed out by the kubelet"


def pods_on(facts: NodeFacts) -> Mapping[PodUid, PodName]:
    """Every pod of the node by UID, also those that only its report names."""
    reported = {
        (a.pod_uid or PodUid(f"{a.namespace}/{a.pod}")): (a.namespace, a.pod)
        for a in (facts.report.allocations if facts.report is not None else ())
    }
    return reported | {pod.uid: (pod.namespace, pod.name) for pod in facts.pods.every}
