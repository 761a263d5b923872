"""How many nodes take a pod, and for which reasons the others do not: the answer in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_extender.told.answers import Answer, closed_text
from scheduler_extender.told.words import sentence
from topology.core.placement import Reason


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes by what they answer to a pod.

    ``refusals`` counts those that do not take it by their reason, ``doubts`` those that take it and
    promise nothing, by why. ``takes`` counts those that take it, and ``closed`` those of them to
    which kube-scheduler will not send it, by its selector or affinity, or by the node's taints or
    cordon.
    """

    nodes: int
    takes: int = 0
    closed: int = 0
    refusals: Mapping[Reason, int] = field(default_factory=dict)
    doubts: Mapping[Reason, int] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """All of it in one line."""
        if not self.nodes:
            return "no node is known"
        refused = sentence(self.refusals.items())
        if not self.takes:
            return f"no node takes it: {refused}"
        nodes = f"{self.nodes:,} node{'s' if self.nodes != 1 else ''}"
        taken = f"{self.takes:,} of {nodes} would take it"
        promised = self.takes - sum(self.doubts.values())
        if self.doubts:
            taken += f" ({promised:,} with a promise)"
        taken += closed_text(self.closed, self.takes)
        return f"{taken}; {refused}" if refused else taken


def counts_of(told: Sequence[Answer]) -> Counts:
    """The nodes' answers to a pod, counted."""
    return Counts(
        len(told),
        sum(answer.passes for answer in told),
        sum(answer.passes and answer.closed for answer in told),
        dict(Counter(a.kind for a in told if not a.passes and a.kind is not None)),
        dict(Counter(a.kind for a in told if a.passes and a.kind is not None)),
    )
