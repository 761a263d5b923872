"""What a Node object says: who may be sent to the node, and what kube-scheduler gives out there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_extender.state.pods.standing import Amounts, pieces
from scheduler_extender.wire import Taint


@dataclass(frozen=True, slots=True)
class NodeObject:
    """What is known of a Node object. Nobody's verdict depends on labels, taints and cordons."""

    exists: bool = False  # one was seen
    dra_only: bool = False  # it advertises none of the managed resources
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False  # kube-scheduler sends nobody here
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts | None = None  # what kube-scheduler gives out; None if nobody said so

    def pieces(self, resource: str) -> int | None:
        """How much kube-scheduler gives out of a resource; None if nobody said so."""
        return pieces(self.allocatable or (), resource)
