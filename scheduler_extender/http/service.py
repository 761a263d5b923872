"""What the routes of both ports need of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.http.metrics import Metrics
from scheduler_extender.kube.reviews import Reviews
from scheduler_extender.limits import Bodies
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.verbs import Binder, Turns, WouldRefuse
from scheduler_extender.wire import Pod


def _forget(pod: Pod) -> None:
    """Nobody has to know which pods filter was asked about."""


def _leads() -> None:
    """The only replica answers verbs."""


@dataclass(frozen=True, slots=True)
class Service:
    """The cluster, who writes binds, and what the routes count.

    ``unready`` gives the reason why we cannot answer yet, or None, and ``standby`` why another
    replica answers verbs. ``term`` gives the number of the term in which this one leads, 0 where
    there is one replica only. ``saw`` is told each pod that filter is asked about. ``turns`` says
    when a bind may be written; None where no kubelet answers that we hear of. ``reviews`` judges
    the tokens of people where the admin port asks for one; None where there is no API server.
    ``shadow`` says that nothing is refused, and is told what would have been; None where we refuse.
    ``file_mode`` opens ``POST /v1/reports``. ``bodies`` is the budget of memory that both ports
    share.
    """

    cluster: Cluster
    binder: Binder
    unready: Callable[[], str | None]
    metrics: Metrics
    standby: Callable[[], str | None] = _leads
    term: Callable[[], int] = int
    saw: Callable[[Pod], None] = _forget
    turns: Turns | None = None
    reviews: Reviews | None = None
    shadow: Callable[[WouldRefuse], None] | None = None
    file_mode: bool = False
    bodies: Bodies = field(default_factory=Bodies)

    def not_ready(self) -> str | None:
        """Why nobody should be sent here; verbs go on answering while a watch is blind."""
        blind = self.cluster.unready()
        return self.unready() or (f"blind watches: {', '.join(blind)}" if blind else None)
