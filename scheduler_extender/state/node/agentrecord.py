"""What a node's agent has published."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_extender.state.node.contradictions import contradiction
from topology.core.graph import NodeTopology
from topology.core.report import MissingGpu, Report


@dataclass(frozen=True, slots=True, eq=False)
class AgentRecord:
    """The record of a node: its hardware, and the last report about it."""

    topology: NodeTopology | None = None
    report: Report | None = None
    problem: str | None = None  # why the record cannot be used: then the two above are None
    uid: str = ""  # the object's own
    boot_id: str = ""  # the last that a report told of: it outlives the record
    stale: bool = False  # the agent has not reported for too long
    _contradictions: dict[str, str | None] = field(init=False, repr=False, default_factory=dict)

    @property
    def missing(self) -> tuple[MissingGpu, ...]:
        """The GPUs that do not answer their driver."""
        return self.report.missing if self.report is not None else ()

    def contradiction(self, resource: str) -> str | None:
        """Why the record cannot be true over a resource; None if it can."""
        if self.topology is None:
            return None
        if resource not in self._contradictions:
            why = contradiction(self.topology, self.report or Report(), resource)
            self._contradictions[resource] = why
        return self._contradictions[resource]
