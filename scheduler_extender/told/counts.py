"""How many nodes take a pod, and for which reasons the others do not: the answer in one line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_extender.told.answers import Answer
from scheduler_extender.told.words import nodes_text, sentence
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest

CLOSED = "closed to it by its selector, or by taints or cordon"
"""What is said of nodes to which kube-scheduler will not send a pod."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes by what they answer to a pod."""

    nodes: int
    takes: int = 0
    closed: int = 0  # of those that take it: kube-scheduler will not send it there
    refused: Mapping[Rejection, int] = field(default_factory=dict)
    doubted: Mapping[Rejection, int] = field(default_factory=dict)  # of those that take it

    @property
    def refusals(self) -> dict[Reason, int]:
        """Those that do not take it, by the kind of reason."""
        return by_kind(self.refused)

    @property
    def doubts(self) -> dict[Reason, int]:
        """Those that take it and promise nothing, by the kind of reason."""
        return by_kind(self.doubted)

    @property
    def headline(self) -> str:
        """All of it in one line."""
        if not self.nodes:
            return "no node is known"
        refused = sentence(self.refused)
        if self.takes == self.closed:
            would = (
                "node that would is"
                if self.closed == 1
                else f"{self.closed:,} nodes that would are"
            )
            closed = f"the {would} {CLOSED}" if self.closed else ""
            return f"no node takes it: {'; '.join(filter(None, (closed, refused)))}"
        taken = f"{self.takes:,} of {nodes_text(self.nodes)} would take it"
        promised = self.takes - sum(self.doubted.values())
        if self.doubted:
            taken += f" ({promised:,} with a promise)"
        taken += closed_text(self.closed, self.takes)
        doubts = f"without a promise: {sentence(self.doubted)}" if self.doubted else ""
        return "; ".join(filter(None, (taken, refused, doubts)))


def by_kind(refused: Mapping[Rejection, int]) -> dict[Reason, int]:
    """The nodes by the kind of their reason."""
    found: dict[Reason, int] = {}
    for why, nodes in refused.items():
        found[why.kind] = found.get(why.kind, 0) + nodes
    return found


def counts_of(answers: Sequence[Answer]) -> Counts:
    """The nodes' answers to a pod, counted."""
    return Counts(
        len(answers),
        sum(answer.passes for answer in answers),
        sum(answer.passes and answer.closed for answer in answers),
        dict(Counter(a.decision.rejection for a in answers if a.decision.rejection is not None)),
        dict(Counter(a.doubt for a in answers if a.passes and a.doubt is not None)),
    )


def summary(request: GpuRequest, answers: Sequence[Answer]) -> str:
    """How many nodes would take the pod, and what that means."""
    counts = counts_of(answers)
    promised = sum(answer.promises for answer in answers)
    text = f"{counts.takes} of {counts.nodes} nodes would take it"
    text += closed_text(counts.closed, counts.takes)
    doubtful = counts.takes - promised
    if not doubtful:
        return text
    if request.plain:
        return f"{text}; on {doubtful} of them nothing is promised about the {request.unit}s"
    return (
        f"{text}: {promised} promise what it asks for, {doubtful} do not "
        "(policy preferred refuses no node for that, it scores them lower)"
    )


def closed_text(closed: int, passing: int) -> str:
    """How many of the ``passing`` nodes are closed to the pod, as the end of a sentence; empty for
    none.

    >>> closed_text(1, 2)
    ', 1 of them closed to it by its selector, or by taints or cordon'
    """
    if not closed:
        return ""
    return f", {f'{closed:,}' if closed < passing else 'all'} of them {CLOSED}"
