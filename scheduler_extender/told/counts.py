"""How many nodes take a pod, and for which reasons the others do not: the answer in one line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_extender.told.answers import Answer
from scheduler_extender.told.words import nodes_text, sentence
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest

BARS = 3  # that are named
NO_NODE = "no node takes it"


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes by what they answer to a pod."""

    nodes: int
    takes: int = 0
    closed: int = 0  # of those that take it: kube-scheduler will not send it there
    refused: Mapping[Rejection, int] = field(default_factory=dict)
    doubted: Mapping[Rejection, int] = field(default_factory=dict)  # of those that take it
    bars: Mapping[str, int] = field(default_factory=dict)  # what keeps it off the closed ones
    late: bool = False  # there was no time for every node

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
            closed = f"the {would} closed to it by {bars_text(self.bars)}" if self.closed else ""
            none = "not worked out in time, so far no node takes it" if self.late else NO_NODE
            return f"{none}: {'; '.join(filter(None, (closed, refused)))}"
        taken = f"{self.takes:,} of {nodes_text(self.nodes)} would take it"
        promised = self.takes - sum(self.doubted.values())
        if self.doubted:
            taken += f" ({promised:,} with a promise)"
        taken += closed_text(self)
        doubts = f"without a promise: {sentence(self.doubted)}" if self.doubted else ""
        return "; ".join(filter(None, (taken, refused, doubts)))


def by_kind(refused: Mapping[Rejection, int]) -> dict[Reason, int]:
    """The nodes by the kind of their reason."""
    found: dict[Reason, int] = {}
    for why, nodes in refused.items():
        found[why.kind] = found.get(why.kind, 0) + nodes
    return found


def counts_of(answers: Sequence[Answer], *, late: bool = False) -> Counts:
    """The nodes' answers to a pod, counted; ``late`` says that not all were worked out in time."""
    return Counts(
        len(answers),
        sum(answer.passes for answer in answers),
        sum(answer.passes and answer.closed for answer in answers),
        dict(Counter(a.decision.rejection for a in answers if a.decision.rejection is not None)),
        dict(Counter(a.doubt for a in answers if a.passes and a.doubt is not None)),
        dict(Counter(a.bar for a in answers if a.passes and a.closed)),
        late,
    )


def summary(request: GpuRequest, answers: Sequence[Answer]) -> str:
    """How many nodes would take the pod, and what that means."""
    counts = counts_of(answers)
    promised = sum(answer.promises for answer in answers)
    text = f"{counts.takes} of {counts.nodes} nodes would take it"
    text += closed_text(counts)
    doubtful = counts.takes - promised
    if not doubtful:
        return text
    if request.plain:
        return f"{text}; on {doubtful} of them nothing is promised about the {request.unit}s"
    return (
        f"{text}: {promised} promise what it asks for, {doubtful} do not "
        "(policy preferred refuses no node for that, it scores them lower)"
    )


def closed_text(counts: Counts) -> str:
    """How many of the nodes that take the pod are closed to it, as the end of a sentence; empty for
    none.

    >>> closed_text(Counts(3, takes=2, closed=1, bars={"taint gpu:NoSchedule": 1}))
    ', 1 of them closed to it by taint gpu:NoSchedule'
    """
    if not counts.closed:
        return ""
    some = f"{counts.closed:,}" if counts.closed < counts.takes else "all"
    return f", {some} of them closed to it by {bars_text(counts.bars)}"


def bars_text(bars: Mapping[str, int]) -> str:
    """What keeps a pod off nodes, the most frequent first.

    >>> bars_text({"a cordon": 1, "taint gpu:NoSchedule": 3})
    'taint gpu:NoSchedule (3 nodes) or a cordon (1 node)'
    """
    often = sorted(bars, key=lambda bar: (-bars[bar], bar))
    if len(often) == 1:
        return often[0]
    told = [f"{bar} ({nodes_text(bars[bar])})" for bar in often[:BARS]]
    told += [f"{len(often) - BARS} others"] if len(often) > BARS else []
    return f"{', '.join(told[:-1])} or {told[-1]}"
